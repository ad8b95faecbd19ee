"""The guard as an HTTP client of stripe."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

from dagster_idempotent.providers.guarded_exchange import GuardedExchange
from dagster_idempotent.providers.http_request import HttpRequest

PostData = bytes | str | Mapping[str, Any] | None


def guarded_http_client(guarded: GuardedExchange) -> Any:  # noqa: ANN401 - stripe need not be installed
    """Return a `stripe.HTTPClient` that never retries by itself."""
    import stripe  # noqa: PLC0415 - an optional dependency
    from requests.structures import CaseInsensitiveDict  # noqa: PLC0415 - comes with stripe

    class GuardedHTTPClient(stripe.HTTPClient):
        name = "dagster-idempotent"

        def request(  # pyright: ignore[reportIncompatibleMethodOverride] - stripe's own clients return bytes too
            self, method: str, url: str, headers: Mapping[str, str] | None, post_data: PostData = None, **_: object
        ) -> tuple[bytes, int, Mapping[str, str]]:
            answer = guarded(_asked(method, url, headers, post_data))
            if isinstance(answer, str):
                raise stripe.APIConnectionError(f"A free request got no answer: {answer}", should_retry=False)
            content = answer.content()
            kept = [(name, value) for name, value in answer.headers if name.lower() not in _ENCODED]
            return answer.body if content is None else content, answer.status, CaseInsensitiveDict(kept)

        def request_stream(
            self, method: str, url: str, headers: Mapping[str, str] | None, post_data: PostData = None, **_: object
        ) -> tuple[BytesIO, int, Mapping[str, str]]:
            body, status, kept = self.request(method, url, headers, post_data)
            return BytesIO(body), status, kept

        async def request_async(
            self, method: str, url: str, headers: Mapping[str, str], post_data: PostData = None
        ) -> tuple[bytes, int, Mapping[str, str]]:
            return await asyncio.to_thread(self.request, method, url, headers, post_data)

        async def request_stream_async(
            self, method: str, url: str, headers: Mapping[str, str], post_data: PostData = None
        ) -> tuple[AsyncIterator[bytes], int, Mapping[str, str]]:
            body, status, kept = await self.request_async(method, url, headers, post_data)
            return _once(body), status, kept

        def close(self) -> None:
            """Nothing is kept open between requests."""

        async def close_async(self) -> None:
            """Nothing is kept open between requests."""

        def _should_retry(self, *_: object, **__: object) -> bool:
            return False

    return GuardedHTTPClient()


_ENCODED = frozenset({"content-encoding", "content-length"})


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _asked(method: str, url: str, headers: Mapping[str, str] | None, post_data: PostData) -> HttpRequest:
    return HttpRequest(
        method=method,
        url=url,
        headers=tuple((name, str(value)) for name, value in (headers or {}).items()),
        body=_bytes(post_data),
    )


def _bytes(post_data: PostData) -> bytes:
    if post_data is None:
        return b""
    if isinstance(post_data, bytes):
        return post_data
    return post_data.encode() if isinstance(post_data, str) else urlencode(post_data).encode()
