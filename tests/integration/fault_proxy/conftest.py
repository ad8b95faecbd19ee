"""An upstream behind a fault proxy."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.fault_proxy.framing import PostgresFraming

SSL_REQUEST = struct.pack("!II", 8, 80877103)
GSS_REQUEST = struct.pack("!II", 8, 80877104)
START_UP = struct.pack("!II", 16, 196608) + b"user\0me\0"
READY = b"Z" + struct.pack("!I", 5) + b"I"


def query(text: str) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text.encode() + b"\0"


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


class Upstream:
    """Serves each connection in a thread; `received` is what came in, over all connections."""

    def __init__(self, listener: socket.socket, new_answer: Callable[[], Callable[[bytes], bytes]]) -> None:
        self.address = listener.getsockname()
        self._listener = listener
        self._new_answer = new_answer
        self._changed = threading.Condition()
        self._received = b""
        self._ends: list[str] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        end, answer = "closed", self._new_answer()
        with connection:
            try:
                while chunk := connection.recv(65536):
                    with self._changed:
                        self._received += chunk
                        self._changed.notify_all()
                    connection.sendall(answer(chunk))
            except ConnectionError:
                end = "reset"
        with self._changed:
            self._ends.append(end)
            self._changed.notify_all()

    @property
    def received(self) -> bytes:
        with self._changed:
            return self._received

    def wait_received(self, data: bytes) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._received == data, 30)

    def wait_ends(self, *ends: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: tuple(self._ends) == ends, 30)

    def close(self) -> None:
        # A shutdown wakes the accepting thread, which a plain close would leave waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def serving(new_answer: Callable[[], Callable[[bytes], bytes]], *, path: Path | None = None) -> Iterator[Upstream]:
    listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if path is None else str(path))
    listener.listen()
    upstream = Upstream(listener, new_answer)
    try:
        yield upstream
    finally:
        upstream.close()


def echo() -> Callable[[bytes], bytes]:
    return bytes


class ScriptedPostgres:
    """Answers each whole frontend message with `ReadyForQuery`, whatever chunks they come in."""

    def __init__(self) -> None:
        self._framing = PostgresFraming(from_client=True)

    def __call__(self, chunk: bytes) -> bytes:
        return READY * len(self._framing.feed(chunk))


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address, 30) as client:
        yield client


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving(echo) as started:
        yield started


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.address) as started:
        yield started


@pytest.fixture
def postgres() -> Iterator[Upstream]:
    with serving(ScriptedPostgres) as started:
        yield started


@pytest.fixture
def postgres_proxy(postgres: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(postgres.address, protocol="postgres") as started:
        yield started
