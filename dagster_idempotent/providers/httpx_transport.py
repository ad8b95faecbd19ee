"""The guard as a transport of httpx or httpx2: one piece of code, made for a given module.

A client and a transport of different modules do not fit together, and SDKs changed from one to the other.
"""

import asyncio
from datetime import timedelta
from functools import cache
from typing import Any

from dagster_idempotent.providers.guarded_exchange import GuardedExchange
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest


@cache
def sync_transport(module: Any) -> Any:  # noqa: ANN401 - httpx or httpx2, neither of which need be installed
    """Return the transport class for the clients of `module`."""

    class GuardedTransport(module.BaseTransport):
        def __init__(self, guarded: GuardedExchange) -> None:
            self._guarded = guarded

        def handle_request(self, request: Any) -> Any:  # noqa: ANN401 - the module's own types
            body = request.read()
            return _response(module, request, self._guarded(_asked(request, body)))

    return GuardedTransport


@cache
def async_transport(module: Any) -> Any:  # noqa: ANN401 - httpx or httpx2, neither of which need be installed
    """Return the transport class for the asyncio clients of `module`.

    The exchange blocks, so it runs in a worker thread, with the context variables of the task that awaits it. A
    cancelled task stops waiting; the request goes on and its answer is kept.
    """

    class GuardedAsyncTransport(module.AsyncBaseTransport):
        def __init__(self, guarded: GuardedExchange) -> None:
            self._guarded = guarded

        async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - the module's own types
            body = await request.aread()
            answer = await asyncio.to_thread(self._guarded, _asked(request, body))
            return _response(module, request, answer)

    return GuardedAsyncTransport


def _asked(request: Any, body: bytes) -> HttpRequest:  # noqa: ANN401 - the module's own type
    timeouts = request.extensions.get("timeout", {})
    return HttpRequest(
        method=request.method,
        url=str(request.url),
        headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw),
        body=body,
        connect_timeout=_seconds(timeouts.get("connect")),
        read_timeout=_seconds(timeouts.get("read")),
    )


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _response(module: Any, request: Any, answer: HttpAnswer | str) -> Any:  # noqa: ANN401 - the module's own types
    if isinstance(answer, str):
        raise module.ConnectError(answer, request=request)
    return module.Response(
        status_code=answer.status,
        headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers],
        stream=module.ByteStream(answer.body),
        extensions={"http_version": b"HTTP/1.1"},
        request=request,
    )
