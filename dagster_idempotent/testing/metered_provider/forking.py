"""The process that loads the provider once and forks one for each order; see nursery.py for who orders."""

import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import NoReturn, cast

from dagster_idempotent.testing.metered_provider.__main__ import main
from dagster_idempotent.testing.metered_provider.nursery import NUMBER, receive


class _Parent:
    """Takes orders on its stdin, forks, passes signals on, and reaps."""

    def __init__(self) -> None:
        self._orders = socket.socket(fileno=os.dup(0))
        self._lines: dict[int, socket.socket] = {}
        self._wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, _note)
        # Somebody who interrupts the tests interrupts the providers; we end with the tests.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._orders, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the process that started us has gone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._orders:
                    if not self._obey():
                        return
                elif key.fd == self._wake:
                    self._reap()
                elif key.data in self._lines:
                    self._pass_on(cast("int", key.data))

    def _obey(self) -> bool:
        head, given, _, _ = socket.recv_fds(self._orders, NUMBER.size, 3)
        if not head:
            return False
        order = json.loads(receive(self._orders, NUMBER.unpack(head)[0]))
        talk, log, line = given
        pid = os.fork()
        if pid == 0:
            os.close(line)
            self._become(order, talk, log)
        os.close(talk)
        os.close(log)
        self._lines[pid] = socket.socket(fileno=line)
        self._selector.register(self._lines[pid], selectors.EVENT_READ, pid)
        self._lines[pid].sendall(NUMBER.pack(pid))
        return True

    def _become(self, order: Mapping[str, object], talk: int, log: int) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._selector.close()
        # An open copy of the line of another provider would hide the end of that one.
        for mine in (self._orders, *self._lines.values()):
            mine.close()
        for descriptor, place in ((talk, 0), (talk, 1), (log, 2)):
            os.dup2(descriptor, place)
        os.close(talk)
        os.close(log)
        os.environ.clear()
        os.environ.update(cast("Mapping[str, str]", order["environment"]))
        os.chdir(cast("str", order["folder"]))
        code = _run(cast("list[str]", order["arguments"]))
        sys.stdout.flush()
        sys.stderr.flush()
        # Python would take longer to clean up than the provider took to start.
        os._exit(code)

    def _reap(self) -> None:
        os.read(self._wake, 4096)
        while self._lines:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            line = self._lines.pop(pid)
            if line.fileno() in self._selector.get_map():
                self._selector.unregister(line)
            line.close()

    def _pass_on(self, pid: int) -> None:
        try:
            number = NUMBER.unpack(receive(self._lines[pid], NUMBER.size))[0]
        except ConnectionError:
            # Nobody holds its handle any more: its stdin has closed too, and it ends by itself.
            self._selector.unregister(self._lines[pid])
        else:
            os.kill(pid, number)


def _note(_signal: int, _frame: FrameType | None) -> None:
    """Take a signal, for the sake of the descriptor that it wakes."""


def _run(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _load() -> None:
    """Load what every provider needs, where the extra `testing` is installed; else each says so itself."""
    if find_spec("starlette") is not None and find_spec("uvicorn") is not None:
        import_module("dagster_idempotent.testing.metered_provider.server")
    gc.freeze()


if __name__ == "__main__":
    _load()
    _Parent().serve()
