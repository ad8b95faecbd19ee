"""Messages of HTTP/1.1: a head, then its body, or each chunk of a chunked one."""

from enum import Enum, auto
from typing import assert_never

_END_OF_HEAD = b"\r\n\r\n"
_END_OF_LINE = b"\r\n"
_BODILESS = {b"204", b"304"}


class _Next(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNK = auto()
    ANYTHING = auto()


class HttpFraming:
    """One direction of an HTTP/1.1 connection; not for HEAD or CONNECT, whose answers need their request.

    A response that ends with the connection, and whatever is not HTTP, passes chunk by chunk as it was read.
    """

    def __init__(self, *, from_client: bool) -> None:
        self._from_client = from_client
        self._buffer = bytearray()
        self._next = _Next.HEAD
        self._length = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in what arrived; returns the messages that it completed."""
        self._buffer += chunk
        messages: list[bytes] = []
        while size := self._size():
            message = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._next = self._after(message)
            messages.append(message)
        return messages

    def rest(self) -> bytes:
        """Return what is not yet a whole message."""
        return bytes(self._buffer)

    def _size(self) -> int:
        """Size of the next message, 0 while it is not all here."""
        match self._next:
            case _Next.HEAD:
                return self._through(_END_OF_HEAD)
            case _Next.BODY:
                return self._length if len(self._buffer) >= self._length else 0
            case _Next.CHUNK:
                return self._chunk_size()
            case _Next.ANYTHING:
                return len(self._buffer)
            case _:  # pyright: ignore[reportUnnecessaryComparison] - reached when a member is added
                assert_never(self._next)

    def _chunk_size(self) -> int:
        line_size = self._through(_END_OF_LINE)
        if not line_size:
            return 0
        size = _number(bytes(self._buffer[:line_size]).partition(b";")[0], base=16)
        if size is None:
            return len(self._buffer)
        if size == 0:
            return self._through(_END_OF_HEAD)
        whole = line_size + size + len(_END_OF_LINE)
        return whole if len(self._buffer) >= whole else 0

    def _through(self, end: bytes) -> int:
        position = self._buffer.find(end)
        return 0 if position < 0 else position + len(end)

    def _after(self, message: bytes) -> _Next:
        match self._next:
            case _Next.HEAD:
                return self._after_head(message)
            case _Next.BODY:
                return _Next.HEAD
            case _Next.CHUNK:
                size = _number(message.partition(_END_OF_LINE)[0].partition(b";")[0], base=16)
                if size is None:
                    return _Next.ANYTHING
                return _Next.CHUNK if size else _Next.HEAD
            case _Next.ANYTHING:
                return _Next.ANYTHING
            case _:  # pyright: ignore[reportUnnecessaryComparison] - reached when a member is added
                assert_never(self._next)

    def _after_head(self, head: bytes) -> _Next:
        first, *lines = head.removesuffix(_END_OF_HEAD).split(_END_OF_LINE)
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        status = b"" if self._from_client else first.partition(b" ")[2][:3]
        if status in _BODILESS or status.startswith(b"1"):
            return _Next.HEAD
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            return _Next.CHUNK
        if b"content-length" not in fields:
            return _Next.HEAD if self._from_client else _Next.ANYTHING
        length = _number(fields[b"content-length"], base=10)
        if length is None:
            return _Next.ANYTHING
        self._length = length
        return _Next.BODY if length else _Next.HEAD


def _number(text: bytes, *, base: int) -> int | None:
    try:
        number = int(text, base)
    except ValueError:
        return None
    return number if number >= 0 else None
