"""One HTTP answer as it is stored and replayed: status, the headers that matter, the body as it came."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from dagster_idempotent.providers.outcome import Answer
from dagster_idempotent.providers.single_send import HeaderPairs

# Never kept: credentials and cookies; what is about one connection; hints to send again, which a replay must not give.
_CREDENTIALS = {"authorization", "proxy-authorization", "www-authenticate", "x-api-key", "x-goog-api-key", "api-key"}
_COOKIES = {"set-cookie", "set-cookie2", "cookie"}
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"}
_RETRY_HINTS = {"retry-after", "retry-after-ms", "x-should-retry", "stripe-should-retry"}
DROPPED_HEADERS = frozenset(_CREDENTIALS | _COOKIES | _HOP_BY_HOP | _RETRY_HINTS)
_EXCERPT = 300
_ENCODINGS = {"gzip", "x-gzip", "deflate"}
_WINDOW_BITS = 32 + zlib.MAX_WBITS  # gzip and zlib, told apart by their first bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer; `body` is what came on the wire, before any content encoding is undone."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)

    @classmethod
    def kept(cls, status: int, headers: HeaderPairs, body: bytes) -> "HttpAnswer":
        """Return the answer with the headers that are kept; a length that is not the body's is dropped too."""
        named = {
            name.strip().lower() for key, value in headers if key.lower() == "connection" for name in value.split(",")
        }
        pairs = tuple(
            (name, value)
            for name, value in headers
            if name.lower() not in DROPPED_HEADERS
            and name.lower() not in named
            and not (name.lower() == "content-length" and value != str(len(body)))
        )
        return cls(status=status, headers=pairs, body=body)

    @classmethod
    def stored(cls, answer: Answer) -> "HttpAnswer":
        """Return the answer that the ledger keeps."""
        pairs = cast("list[list[str]]", answer.head.get("headers", []))
        return cls(
            status=cast("int", answer.head.get("status", 200)),
            headers=tuple((name, value) for name, value in pairs),
            body=answer.body,
        )

    def to_store(self, **facts: object) -> Answer:
        """Return what the ledger keeps; `facts` are small and say more about the answer."""
        head = {"status": self.status, "headers": [list(pair) for pair in self.headers], **facts}
        return Answer(head=head, body=self.body)

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in small letters; empty for none."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def content(self) -> bytes | None:
        """Return the body with its content encoding undone; None where it is not whole or not gzip or deflate."""
        content, whole = self._decoded()
        return content if whole or (content and self.is_event_stream) else None

    def readable(self) -> bytes:
        """Return as much of the body as can be read, for a person."""
        return self._decoded()[0] or self.body

    def _decoded(self) -> tuple[bytes, bool]:
        encoding = (self.header("content-encoding") or "identity").strip().lower()
        if encoding == "identity" or not self.body:
            return self.body, True
        if encoding not in _ENCODINGS:
            return b"", False
        decoder = zlib.decompressobj(_WINDOW_BITS)
        try:
            return decoder.decompress(self.body) + decoder.flush(), decoder.eof
        except zlib.error:
            return b"", False

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events; its terminal event says whether it is whole."""
        return self.media_type == "text/event-stream"

    def json(self) -> object:
        """Return the body as JSON; None where it is not."""
        content = self.content()
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError):
            return None

    def json_object(self) -> Mapping[str, object] | None:
        """Return the body as a JSON object; None where it is not one."""
        found = self.json()
        return cast("Mapping[str, object]", found) if isinstance(found, dict) else None


def excerpt(body: bytes) -> str:
    """Return the beginning of a body, for a person."""
    return body[:_EXCERPT].decode("utf-8", "replace").replace("\0", "")
