"""The first start: `initdb` into a temporary folder, then a server whose watchdog is nobody's child."""

import os
import secrets
import select
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dagster_idempotent.embedded import locks, watchdog
from dagster_idempotent.embedded.binaries import BARE_ENVIRONMENT, Binaries
from dagster_idempotent.embedded.place import Place
from dagster_idempotent.embedded.urls import DATABASE, PORT, SUPERUSER
from dagster_idempotent.errors import EmbeddedPostgresError

SOURCE_SETTING = "dagster_idempotent.source"

_READY_SECONDS = 320.0
_LOG_BYTES = 10_000_000
_TAIL_LINES = 15
_BUILTIN_LOCALES_SINCE = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller may choose for a server that is not running yet."""

    durable: bool
    idle_timeout: float | None


def make_data(place: Place, binaries: Binaries, options: Options, *, start_fd: int) -> Path:
    """Return the data folder, made now if there is none; what a kill leaves, the next start removes."""
    data = place.data(binaries.major)
    # An `initdb` whose parent was killed inherited the start lock: nobody is writing to these now.
    for draft in place.location.glob("initdb-*"):
        shutil.rmtree(draft)
    if data.exists():
        return data
    draft = place.location / f"initdb-{secrets.token_hex(4)}"
    draft.mkdir(mode=0o700)
    place.account.own(draft)
    command = [
        str(binaries.folder / "initdb"),
        f"--pgdata={draft}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--auth-local=trust",  # whoever may enter the socket's folder
        "--auth-host=reject",
        "--no-instructions",
    ]
    if binaries.major >= _BUILTIN_LOCALES_SINCE:
        command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if not options.durable:
        command.append("--no-sync")
    with open_log(place) as log:
        code = _run(command, place, log.fileno(), start_fd)
    if code != 0:
        raise failure(place, f"Found that {command[0]} ended with status {code}; expected a new data folder.")
    draft.rename(data)
    _sync(place.location)
    return data


def _run(command: list[str], place: Place, log: int, start_fd: int) -> int:
    switch = place.account.is_other()
    try:
        return subprocess.run(  # noqa: S603 - initdb of the chosen binaries
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=BARE_ENVIRONMENT,
            cwd="/",
            umask=0o077,
            pass_fds=(start_fd,),
            user=place.account.uid if switch else None,
            group=place.account.gid if switch else None,
            extra_groups=() if switch else None,
        ).returncode
    except OSError as error:
        raise failure(place, f"Found that {command[0]} cannot be run: {error}.") from error


def clear_leftovers(place: Place, data: Path) -> None:
    """Remove what a dead server left; to be called with the server lock held, so that none of ours is alive.

    PostgreSQL believes a pid file whose pid exists, be it another program's by now, or a zombie.
    """
    _clear_pid(data)
    for left in place.sockets.iterdir():
        left.unlink()


def _clear_pid(data: Path) -> None:
    pid_file = data / "postmaster.pid"
    if not pid_file.exists():
        return
    first = pid_file.read_text().partition("\n")[0].strip()
    if not first.isdigit():
        pid_file.unlink()
        return
    pid = int(first)
    if _works_in(pid, data):
        raise EmbeddedPostgresError(
            f"Found a PostgreSQL (pid {pid}) on {data} that was started by something else; expected none. "
            f"Stop it first: pg_ctl stop -D {data}",
            pid=pid,
        )
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return  # PostgreSQL sees that too, and frees the dead server's shared memory
    except (PermissionError, OverflowError):
        pass
    pid_file.unlink()


def _works_in(pid: int, data: Path) -> bool:
    if Path("/proc/self/cwd").exists():
        try:
            return Path(f"/proc/{pid}/cwd").readlink() == data.resolve()
        except OSError:
            return False  # gone, a zombie, or of another user: the folder is the account's alone
    listing = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return str(data) in listing.stdout


def launch(place: Place, binaries: Binaries, data: Path, options: Options, *, held: tuple[int, int, int]) -> None:
    """Start the server and its watchdog, and wait until it has answered; `held`: start, watch, server."""
    settings = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": '"{}"'.format(str(place.sockets).replace('"', '""')),
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        "cluster_name": DATABASE,
        SOURCE_SETTING: binaries.source,
    }
    if not options.durable:
        settings |= {"fsync": "off", "full_page_writes": "off"}
    command = [str(binaries.folder / "postgres"), "-D", str(data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    watch(place, data, options, command=command, held=held)


def watch(place: Place, data: Path, options: Options, *, command: list[str], held: tuple[int, int, int]) -> None:
    """Run a watchdog with the locks `held` and wait for its first word."""
    start_fd, watch_fd, server_fd = held
    readable, writable = os.pipe()
    switch = place.account.is_other()
    orders = watchdog.Orders(
        command=command,
        uid=place.account.uid if switch else None,
        gid=place.account.gid if switch else None,
        url=place.maintenance_url,
        database=DATABASE,
        folder=str(place.folder),
        location=str(place.location),
        data=str(data),
        socket=str(place.sockets / f".s.PGSQL.{PORT}"),
        idle_seconds=options.idle_timeout or None,
        ready_fd=writable,
        start_fd=start_fd,
        watch_fd=watch_fd,
        server_fd=server_fd,
    )
    try:
        with open_log(place) as log:
            subprocess.run(  # noqa: S603 - our own program; -P keeps this folder out of its import path
                [sys.executable, "-P", str(Path(watchdog.__file__)), orders.dumps()],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(writable, *(lock for lock in held if lock >= 0)),
            )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(readable)
        raise failure(place, f"Found that the server's watchdog cannot be run: {error}.") from error
    finally:
        os.close(writable)
    answer = _first_word(readable)
    if answer != watchdog.READY:
        found = answer.decode(errors="replace") or "the watchdog ended without a word"
        raise failure(place, f"Found that the server did not start: {found}.")


def _first_word(readable: int) -> bytes:
    try:
        ready, _, _ = select.select([readable], [], [], _READY_SECONDS)
        return os.read(readable, 4096) if ready else b"no answer in time"
    finally:
        os.close(readable)


def open_log(place: Place) -> IO[bytes]:
    """Open the log for appending; a long one is put aside first."""
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES:
        place.log.replace(place.log.with_suffix(".log.1"))
    return os.fdopen(locks.open_private(place.log, os.O_WRONLY | os.O_APPEND), "ab")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failure(place: Place, found: str) -> EmbeddedPostgresError:
    """Return an error with the end of the log, which is where the reason stands."""
    lines = place.log.read_text(errors="replace").splitlines() if place.log.exists() else []
    tail = "\n".join(lines[-_TAIL_LINES:])
    return EmbeddedPostgresError(
        f"{found} The end of {place.log} says why; put that right and start again:\n{tail}", path=place.log
    )
