"""Server-sent events, as far as it takes to know whether a stream is whole."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from dagster_idempotent.providers.single_send import HeaderPairs

_WINDOW_BITS = 32 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream; `name` is empty where the stream names none."""

    name: str
    data: str

    def json_object(self) -> Mapping[str, object] | None:
        """Return the data as a JSON object; None where it is not one."""
        try:
            found: object = json.loads(self.data)
        except (ValueError, RecursionError):
            return None
        return cast("Mapping[str, object]", found) if isinstance(found, dict) else None

    def is_one_of(self, kinds: frozenset[str]) -> bool:
        """Whether its name, its data (`[DONE]`) or the `type` in its data is one of `kinds`."""
        if self.name in kinds or self.data in kinds:
            return True
        kind = (self.json_object() or {}).get("type")
        return isinstance(kind, str) and kind in kinds


class EventReader:
    """Takes a stream in pieces and gives its whole events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Take in the next piece; events that it completes come back."""
        buffered = (self._rest + piece).replace(b"\r\n", b"\n")
        if buffered.endswith(b"\r"):  # half of a line end, perhaps
            buffered, held = buffered[:-1], b"\r"
        else:
            held = b""
        *blocks, rest = buffered.replace(b"\r", b"\n").split(b"\n\n")
        self._rest = rest + held
        for block in blocks:
            event = _event(block)
            if event is not None:
                yield event


def events(content: bytes) -> Iterator[Event]:
    """Return the whole events of a stream."""
    return EventReader().feed(content.replace(b"\r\n", b"\n"))


class StreamEnd:
    """Fed the pieces of a body as they come, says when its last event is there."""

    def __init__(self, headers: HeaderPairs, terminal: frozenset[str]) -> None:
        encoding = next((value.lower() for name, value in headers if name.lower() == "content-encoding"), "")
        self._decoder = zlib.decompressobj(_WINDOW_BITS) if encoding in {"gzip", "x-gzip", "deflate"} else None
        self._terminal = terminal
        self._reader = EventReader()

    def __call__(self, piece: bytes) -> bool:
        """Take in the next piece; True once nothing more is needed."""
        if self._decoder is not None:
            try:
                piece = self._decoder.decompress(piece)
            except zlib.error:
                return False  # not what it says it is: read to its end and judged as a whole
        return any(event.is_one_of(self._terminal) for event in self._reader.feed(piece))


def _event(block: bytes) -> Event | None:
    name, data = "", list[str]()
    for line in block.decode("utf-8", "replace").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return Event(name=name, data="\n".join(data)) if data else None
