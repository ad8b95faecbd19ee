from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]


def test_the_server_of_a_folder_is_started_found_and_stopped(cli: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "postgres")
    none = cli("postgres", "status", "--folder", folder)
    assert (none.code, none.out) == (1, "")
    assert "postgres start" in none.err
    assert "would be started" in cli("postgres", "start", "--folder", folder, "--dry-run").err
    started = cli("postgres", "start", "--folder", folder, "--json")
    try:
        assert started.code == 0
        assert set(started.json()) == {"url", "folder", "pid", "version", "source", "sockets"}
        assert cli("postgres", "status", "--folder", folder, "--json").json() == started.json()
        # The typed folder wins over the URL of the environment.
        assert cli("schema", "upgrade", "--folder", folder).code == 0
        both = cli("schema", "check", "--folder", folder, "--url", started.json()["url"])
        assert (both.code, "Give one of them" in both.err) == (2, True)
        assert "would be stopped" in cli("postgres", "stop", "--folder", folder, "--dry-run").err
        assert cli("postgres", "status", "--folder", folder).code == 0
    finally:
        stopped = cli("postgres", "stop", "--folder", folder)
    assert (stopped.code, stopped.out, stopped.err) == (0, "", "Stopped.\n")
    assert cli("postgres", "stop", "--folder", folder).err == "No server was running.\n"


def test_a_folder_without_a_server_is_a_usage_error(cli: Run, tmp_path: Path) -> None:
    done = cli("schema", "check", "--folder", str(tmp_path))
    assert done.code == 2
    assert "holds no embedded server" in done.err
    assert list(tmp_path.iterdir()) == []
