"""Runs the provider: one process, one folder, loopback only."""

import asyncio
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.metered_provider.app import build_app
from dagster_idempotent.testing.metered_provider.bill import Bill
from dagster_idempotent.testing.metered_provider.connection import OpenConnection
from dagster_idempotent.testing.metered_provider.holding import HoldingPen
from dagster_idempotent.testing.metered_provider.job_book import JobBook
from dagster_idempotent.testing.metered_provider.settings import Settings

_KEEP_ALIVE_SECONDS = 300


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, pen: HoldingPen, *, folder: Path, until_stdin_closes: bool) -> None:
        super().__init__(config)
        self._pen = pen
        self._folder = folder
        self._until_stdin_closes = until_stdin_closes

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._until_stdin_closes:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_stdin)
        for listener in sockets or []:
            _announce(self._folder, port=listener.getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A held answer would keep the server waiting for its connection; here it never comes.
        self._pen.stop()
        await super().shutdown(sockets)

    def _read_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True


def serve(folder: Path, *, port: int, settings: Settings, until_stdin_closes: bool) -> None:
    """Serve until SIGTERM or SIGINT, or, where asked, until stdin closes.

    Raises ConfigurationError when another provider uses the folder or the port is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _exclusive(folder),
        _listen(port) as listener,
        Bill(folder / "bill.sqlite3") as bill,
        JobBook(folder / "jobs.sqlite3") as book,
    ):
        pen = HoldingPen()
        config = uvicorn.Config(
            build_app(bill, book, pen, settings),
            http=OpenConnection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        server = _Server(config, pen, folder=folder, until_stdin_closes=until_stdin_closes)
        # uvicorn hands the signal on after its shutdown; the bill is closed on the way out.
        signal.signal(signal.SIGTERM, _exit)
        signal.signal(signal.SIGINT, _exit)
        server.run(sockets=[listener])


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


@contextmanager
def _exclusive(folder: Path) -> Generator[None]:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another metered provider uses {folder}, expected none; stop it or use another folder",
                folder=str(folder),
            ) from error
        yield


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    # A restart takes the port back while old connections still linger in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {port} of 127.0.0.1 is taken ({error.strerror}); name a free one, or 0 for any", port=port
        ) from error
    listener.listen(512)
    return listener


def _announce(folder: Path, *, port: int) -> None:
    control_url = f"http://127.0.0.1:{port}"
    address = {"base_url": f"{control_url}/v1", "control_url": control_url, "port": port, "pid": os.getpid()}
    line = json.dumps(address)
    unfinished = folder / "address.json.new"
    unfinished.write_text(line + "\n")
    unfinished.replace(folder / "address.json")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
