"""A pool without threads: the caller who needs a connection opens it, so that its error is the caller's at once.

A background pool that backs off hides why the server does not answer, and it may still be backing off when the
server is there again.
"""

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

Pooled = TypeVar("Pooled", bound=psycopg.Connection[dict[str, object]])

# Long enough for the steps of one op, short enough to leave a quiet process without connections.
MAX_IDLE = 60.0


class PoolBusy(Exception):
    """Every connection of the pool stayed in use for the time allowed."""


class Pool(Generic[Pooled]):
    """At most `size` connections; `open_one` is called with the seconds it may take."""

    def __init__(self, open_one: Callable[[float], Pooled], *, size: int) -> None:
        self._open_one = open_one
        self._slots = threading.Semaphore(size)
        self._lock = threading.Lock()
        # The last used goes out first, so that the others grow old and are closed.
        self._idle: list[tuple[float, Pooled]] = []
        self._closed = False
        self._pid = os.getpid()

    def __del__(self) -> None:
        # In a fork the sockets are the parent's: closing them would end its sessions.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    @contextmanager
    def connection(self, timeout: float) -> Generator[Pooled]:
        """Lend a connection; raises PoolBusy, or whatever opening one raises."""
        deadline = time.monotonic() + timeout
        if not self._slots.acquire(timeout=max(0.0, timeout)):
            raise PoolBusy
        try:
            connection = self._take() or self._open_one(deadline - time.monotonic())
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._slots.release()

    def forget_idle(self) -> None:
        """Close what is idle: one lost connection says that the others are lost too."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back."""
        self._closed = True
        self.forget_idle()

    def _take(self) -> Pooled | None:
        oldest = time.monotonic() - MAX_IDLE
        with self._lock:
            old = [connection for since, connection in self._idle if since < oldest]
            self._idle = [(since, connection) for since, connection in self._idle if since >= oldest]
            taken = self._idle.pop()[1] if self._idle else None
        for connection in old:
            connection.close()
        return taken

    def _give_back(self, connection: Pooled) -> None:
        # Anything but idle is a transaction cut short, or a connection that is no more.
        if self._closed or connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()
            return
        with self._lock:
            self._idle.append((time.monotonic(), connection))
