"""Where one message ends and the next begins in a byte stream, for the fault proxy."""

import struct
from typing import Protocol

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.fault_proxy.http_framing import HttpFraming

_LENGTH = struct.Struct("!I")
_LENGTH_AND_CODE = struct.Struct("!II")
_ENCRYPTION_REQUESTS = {80877103, 80877104}  # SSLRequest, GSSENCRequest
_PROTOCOLS = ("raw", "postgres", "http")


class Framing(Protocol):
    """Cuts one direction of one connection into messages."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in what arrived; returns the messages that it completed."""
        ...

    def rest(self) -> bytes:
        """Return what is not yet a whole message."""
        ...


class RawFraming:
    """Takes each chunk, as it was read, for a message."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the chunk."""
        return [chunk]

    def rest(self) -> bytes:
        """Return nothing: no chunk is kept."""
        return b""


class PostgresFraming:
    """PostgreSQL's protocol 3: a type byte and a length; a client's first message has no type byte."""

    def __init__(self, *, from_client: bool) -> None:
        self._buffer = bytearray()
        self._starting = from_client

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in what arrived; returns the messages that it completed."""
        self._buffer += chunk
        messages: list[bytes] = []
        while (size := self._size()) is not None and len(self._buffer) >= size:
            message = bytes(self._buffer[:size])
            del self._buffer[:size]
            # A client that asked for encryption and was told no sends its start-up message after that.
            self._starting = self._starting and is_encryption_request(message)
            messages.append(message)
        return messages

    def rest(self) -> bytes:
        """Return what is not yet a whole message."""
        return bytes(self._buffer)

    def _size(self) -> int | None:
        header = 0 if self._starting else 1
        if len(self._buffer) < header + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, header)
        return max(header + int(length), header + _LENGTH.size)


def is_encryption_request(message: bytes) -> bool:
    """Whether a start-up message asks for TLS or GSS encryption."""
    if len(message) != _LENGTH_AND_CODE.size:
        return False
    length, code = _LENGTH_AND_CODE.unpack(message)
    return length == _LENGTH_AND_CODE.size and code in _ENCRYPTION_REQUESTS


def framing_for(protocol: str, *, from_client: bool) -> Framing:
    """Make the framing of one direction of a new connection."""
    if protocol == "raw":
        return RawFraming()
    if protocol == "postgres":
        return PostgresFraming(from_client=from_client)
    if protocol == "http":
        return HttpFraming(from_client=from_client)
    raise ConfigurationError(f"found protocol {protocol!r}, expected one of {', '.join(_PROTOCOLS)}", field="protocol")
