"""The embedded server is started once, shared, kept and stopped."""

import os
import shutil
import signal
import stat
import time
from pathlib import Path

import psycopg
import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded import locks, place as places
from tests.integration.embedded.conftest import START, Person, is_alive, remember, remembered, starts, wait_for


def test_data_are_kept_over_a_stop_and_a_start(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    remember(server.url)
    assert embedded.stop(used_folder)
    assert embedded.status(used_folder) is None
    again = embedded.start(used_folder, durable=False)
    assert again.url == server.url
    assert remembered(again.url) == 1


def test_a_server_has_the_settings_that_the_ledger_expects(folder: Path) -> None:
    server = embedded.start(folder)
    names = ("listen_addresses", "fsync", "TimeZone", "server_encoding", "unix_socket_permissions")
    with psycopg.connect(server.url) as connection:
        found = {name: connection.execute(f"SHOW {name}").fetchone() for name in names}  # pyright: ignore[reportArgumentType]
        current = connection.execute("SELECT current_database()").fetchone()
    assert found == {
        "listen_addresses": ("",),
        "fsync": ("on",),
        "TimeZone": ("UTC",),
        "server_encoding": ("UTF8",),
        "unix_socket_permissions": ("0700",),
    }
    assert current == (embedded.DATABASE,)
    assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700
    assert server.version.split(".")[0] in str(next(places.find(folder).location.glob("data-*")))


def test_a_server_that_need_not_be_durable_does_not_sync(used_folder: Path) -> None:
    with psycopg.connect(embedded.start(used_folder, durable=False).url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("off",)


def test_stop_may_be_said_twice_and_of_nothing(folder: Path) -> None:
    assert not embedded.stop(folder)
    server = embedded.start(folder, durable=False)
    assert embedded.stop(folder)
    assert not is_alive(server.pid)
    assert not embedded.stop(folder)


def test_status_writes_nothing(folder: Path) -> None:
    assert embedded.status(folder) is None
    assert not folder.exists()


@pytest.mark.parametrize("count", [2, 8])
def test_processes_that_start_at_once_get_one_server(folder: Path, count: int) -> None:
    printed = starts(Person(), folder, count)
    assert len(set(printed)) == 1
    server = embedded.status(folder)
    assert server is not None
    assert printed[0] == f"{server.url} {server.pid}\n"


def test_a_server_survives_the_exit_of_its_starter(folder: Path) -> None:
    starts(Person(), folder, 1)
    assert embedded.status(folder) is not None


def test_a_server_survives_the_kill_of_its_starter_and_all_of_its_group(folder: Path) -> None:
    starter = Person().run(START + "sys.stdin.readline()", str(folder))
    with starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdin.write("\n")
        starter.stdin.flush()
        assert starter.stdout.readline() == "ready\n"
        url, pid = starter.stdout.readline().split()
        os.killpg(starter.pid, signal.SIGKILL)
    server = embedded.status(folder)
    assert server is not None
    assert (server.url, server.pid) == (url, int(pid))
    remember(url)


def test_a_long_folder_works(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 40)
    try:
        server = embedded.start(long, durable=False)
        assert len(os.fsencode(server.sockets)) < 100
        remember(server.url)
    finally:
        embedded.remove(long)
    assert not server.sockets.exists()


def test_a_start_needs_neither_home_nor_path(folder: Path) -> None:
    starter = Person().run(START, str(folder), variables={"HOME": "/nonexistent", "PATH": ""})
    printed, error = starter.communicate("\n", timeout=60)
    assert (starter.returncode, error) == (0, "")
    server = embedded.status(folder)
    assert server is not None
    assert f"{server.url} {server.pid}" in printed


def test_an_idle_server_stops(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False, idle_timeout=0.4)
    wait_for(lambda: not is_alive(server.pid))
    wait_for(lambda: locks.is_free(places.find(used_folder).watch_lock))
    assert embedded.status(used_folder) is None


def test_short_connections_keep_a_server_awake(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False, idle_timeout=1)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with psycopg.connect(server.url) as connection:
            connection.execute("SELECT 1")
    assert is_alive(server.pid)


def test_a_removed_folder_stops_its_server_and_takes_the_data_along(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    location = places.find(used_folder).location

    def removed() -> bool:
        shutil.rmtree(used_folder, ignore_errors=True)
        return not used_folder.exists()

    wait_for(removed)
    wait_for(lambda: not is_alive(server.pid))
    wait_for(lambda: not location.exists())


def test_a_folder_that_is_removed_and_made_again_begins_empty(folder: Path) -> None:
    first = embedded.start(folder, durable=False)
    remember(first.url)
    folder.rename(folder.with_name("old"))
    shutil.rmtree(folder.with_name("old"), ignore_errors=True)
    second = embedded.start(folder, durable=False)
    assert second.pid != first.pid
    wait_for(lambda: not is_alive(first.pid))
    with psycopg.connect(embedded.start(folder, durable=False).url) as connection:
        assert connection.execute("SELECT to_regclass('remembered')").fetchone() == (None,)


def test_a_moved_folder_stops_its_server_and_keeps_the_data(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    remember(server.url)
    moved = used_folder.with_name("moved")
    used_folder.rename(moved)
    try:
        wait_for(lambda: not is_alive(server.pid))
        assert remembered(embedded.start(moved, durable=False).url) == 1
    finally:
        embedded.remove(moved)
