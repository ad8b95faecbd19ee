"""Starts PostgreSQL, makes its database, stops it when nobody uses it or when its folder is gone.

A program of its own, run by path: it imports nothing of this package, so that it stays small while it waits.
It is nobody's child: the process that asked for the server may end or be killed at any moment.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from psycopg import sql

READY = b"ready"

_START_SECONDS = 300.0  # crash recovery may have much to replay
_KILL_SECONDS = 20.0
_POLL_SECONDS = 2.0
_LOOK_SECONDS = 0.25

# `sessions` counts connections that came and went between two looks: Dagster's storage opens one a query.
_ACTIVITY = """
SELECT (SELECT count(*) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()),
       (SELECT coalesce(sum(sessions), 0)::bigint FROM pg_stat_database)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the starting process wants; descriptors are inherited."""

    command: list[str]  # empty: a server that lost its watchdog is running already
    uid: int | None
    gid: int | None
    url: str
    database: str
    folder: str
    location: str
    data: str
    socket: str
    idle_seconds: float | None
    ready_fd: int
    start_fd: int
    watch_fd: int
    server_fd: int

    def dumps(self) -> str:
        """Return these orders as the program's one argument."""
        return json.dumps(asdict(self))


class Watch:
    """One watched server: our child, or a process that only its lock file shows."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.child: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.connection: psycopg.Connection[tuple[int, int]] | None = None
        self.sessions = -1
        self.last_active = time.monotonic()
        self.signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGCHLD, self._woken)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._asked_to_end)

    def _woken(self, *_: object) -> None:
        """Do nothing: that the signal arrives is what wakes `ended`."""

    def _asked_to_end(self, *_: object) -> None:
        if not self.pid:
            os._exit(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def launch(self) -> None:
        """Start the postmaster, which keeps the server lock as long as one of its processes lives."""
        orders = self.orders
        self.child = subprocess.Popen(  # noqa: S603 - the command of the starting process
            orders.command,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd="/",
            umask=0o077,
            start_new_session=True,
            pass_fds=(orders.server_fd,),
            user=orders.uid,
            group=orders.gid,
            extra_groups=None if orders.uid is None else (),
        )
        self.pid = self.child.pid
        os.close(orders.server_fd)

    def connect(self) -> None:
        """Open the connection that believes in the server; raises psycopg.OperationalError."""
        self.connection = psycopg.connect(self.orders.url, autocommit=True, connect_timeout=10)
        self.pid = postmaster_pid(self.connection)

    def await_ready(self) -> None:
        """Wait for a real connect, then make the database."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect()
            except psycopg.OperationalError as error:
                if self.ended(seconds=0.02):
                    raise RuntimeError("PostgreSQL ended while it was starting") from error
                if time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL accepted no connection in {_START_SECONDS:.0f} s") from error
            else:
                break
        assert self.connection is not None  # noqa: S101 - connect sets it
        ensure_database(self.connection, self.orders.database)

    def ended(self, *, seconds: float) -> bool:
        """Say whether the server has ended; wait for its end at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._is_running():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # A signal wakes this at once: SIGCHLD when our child ends; another's child has to be looked for.
            if select.select([self.signals], [], [], left if self.child else min(left, _LOOK_SECONDS))[0]:
                os.read(self.signals, 4096)
        return True

    def _is_running(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return not _lock_is_free(Path(self.orders.folder, "server.lock"))

    def is_active(self) -> bool:
        """Say whether a client is connected, or was since the last look; no answer counts as yes."""
        try:
            if self.connection is None:
                self.connect()
            assert self.connection is not None  # noqa: S101 - connect sets it
            row = self.connection.execute(_ACTIVITY).fetchone()
        except psycopg.Error:
            self.connection = None
            return True
        clients, sessions = row or (1, 0)
        known, self.sessions = self.sessions, sessions
        return clients > 0 or sessions != known

    def is_idle(self) -> bool:
        """Say whether the idle time is over."""
        now = time.monotonic()
        if self.is_active():
            self.last_active = now
        limit = self.orders.idle_seconds
        return limit is not None and now - self.last_active >= limit

    def end(self, signal_number: int) -> None:
        """Stop the server by this signal, in the end by SIGKILL."""
        for number in (signal_number, signal.SIGQUIT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if self.ended(seconds=_KILL_SECONDS):
                return


def postmaster_pid(connection: psycopg.Connection[tuple[int, int]]) -> int:
    """Return the postmaster's pid as the server itself reads it, so that it is never a stale one."""
    row = connection.execute("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int, 0").fetchone()
    if row is None:
        raise psycopg.OperationalError("no row from pg_read_file")
    return row[0]


def ensure_database(connection: psycopg.Connection[tuple[int, int]], name: str) -> None:
    """Create the database unless it exists."""
    if connection.execute("SELECT 1, 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
        return
    with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def main() -> None:
    """Watch one server until it ends."""
    orders = Orders(**json.loads(sys.argv[1]))
    if os.fork():
        os._exit(0)  # the starting process waits for this one, not for the watchdog
    os.chdir("/")
    os.ftruncate(orders.watch_fd, 0)
    os.pwrite(orders.watch_fd, f"{os.getpid()}\n".encode(), 0)
    watch = Watch(orders)
    try:
        if orders.command:
            watch.launch()
        watch.await_ready()
    except (OSError, RuntimeError, subprocess.SubprocessError, psycopg.Error) as error:
        _report(orders, f"{error}".encode())
        if watch.child is not None:
            watch.end(signal.SIGINT)
        sys.exit(1)
    _report(orders, READY)
    os.close(orders.start_fd)
    _keep(watch)


def _report(orders: Orders, text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the starting process was killed; the server stays
        os.write(orders.ready_fd, text)
    os.close(orders.ready_fd)


def _keep(watch: Watch) -> None:
    orders = watch.orders
    poll = min(_POLL_SECONDS, (orders.idle_seconds or _POLL_SECONDS) / 4)
    while not watch.ended(seconds=poll):
        if _is_gone(orders):
            _end_gone(watch)
            return
        if watch.is_idle():
            _end_idle(watch)


def _end_idle(watch: Watch) -> None:
    try:
        start = os.open(Path(watch.orders.folder, "start.lock"), os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        # Whoever starts or stops the server holds this lock; whoever comes now waits until it has ended.
        fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if watch.is_idle():
            watch.end(signal.SIGINT)
    except BlockingIOError:
        pass
    finally:
        os.close(start)


def _is_gone(orders: Orders) -> bool:
    try:
        ours = os.path.samestat(os.fstat(orders.watch_fd), Path(orders.folder, "watch.lock").stat())
    except (FileNotFoundError, NotADirectoryError):
        return True
    return not (ours and Path(orders.data, "PG_VERSION").exists() and Path(orders.socket).exists())


def _end_gone(watch: Watch) -> None:
    orders = watch.orders
    deleted = os.fstat(orders.watch_fd).st_nlink == 0  # else moved, and the data is still good
    if deleted and Path(orders.folder).exists():
        # Another server may be there by now, whose socket an orderly end of ours would remove.
        watch.end(signal.SIGKILL)
    else:
        watch.end(signal.SIGQUIT if deleted else signal.SIGINT)
    if deleted and not Path(orders.location).is_relative_to(orders.folder):
        shutil.rmtree(orders.location, ignore_errors=True)


def _lock_is_free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
