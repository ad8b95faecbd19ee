"""The handle of the process that has loaded the provider once and forks one for each order: a start takes moments.

A forked provider is a process like any other, with its own folder, bill and environment: it can be killed.
"""

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_MODULE = "dagster_idempotent.testing.metered_provider.forking"
NUMBER = struct.Struct("!i")
_lock = threading.Lock()
_ours: "list[Nursery]" = []


class Child:
    """A provider's process. Signals go through the process that forked it, so that none meets a reused pid."""

    def __init__(self, line: socket.socket, talk: socket.socket) -> None:
        self.talk = talk
        self._line = line
        self.pid: int = NUMBER.unpack(receive(line, NUMBER.size))[0]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        try:
            self._line.sendall(NUMBER.pack(number))
        except ConnectionError:
            return

    def wait(self, seconds: float | None = None) -> None:
        """Return when it has ended, or nobody is left to tell; raises TimeoutError."""
        self._line.settimeout(seconds)
        try:
            self._line.recv(1)
        except ConnectionError:
            return

    def close(self) -> None:
        """Let go of it; it ends, where it has not."""
        self.talk.close()
        self._line.close()


class Nursery:
    """The handle of the process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._orders, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _MODULE]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)  # noqa: S603
        atexit.register(self._end)

    @property
    def pid(self) -> int:
        """The process that forks."""
        return self._process.pid

    def wait(self) -> None:
        """Return when the process that forks has ended."""
        self._process.wait()

    def is_running(self) -> bool:
        """Tell whether this process has it, not the one that forked us, and it runs."""
        return self._owner == os.getpid() and self._process.poll() is None

    def start(self, arguments: Sequence[str], log: IO[bytes]) -> Child:
        """Start a provider with these arguments of its command line; its stderr goes to `log`."""
        # Relative paths, and names of variables, mean what they mean here and now.
        order = {"arguments": list(arguments), "environment": dict(os.environ), "folder": os.fspath(Path.cwd())}
        text = json.dumps(order).encode()
        line, their_line = socket.socketpair()
        talk, their_talk = socket.socketpair()
        with their_line, their_talk, self._lock:
            given = [their_talk.fileno(), log.fileno(), their_line.fileno()]
            socket.send_fds(self._orders, [NUMBER.pack(len(text))], given)
            self._orders.sendall(text)
        return Child(line, talk)

    def _end(self) -> None:
        self._orders.close()
        if self._owner == os.getpid():
            self._process.wait()


def nursery() -> Nursery:
    """Return the nursery of this process, started unless it runs."""
    with _lock:
        if not _ours or not _ours[-1].is_running():
            _ours.append(Nursery())
        return _ours[-1]


def receive(line: socket.socket, size: int) -> bytes:
    """Return that many bytes; raises ConnectionError where the other side has gone."""
    found = line.recv(size, socket.MSG_WAITALL)
    if len(found) < size:
        raise ConnectionError
    return found
