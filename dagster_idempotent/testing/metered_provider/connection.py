"""Access to the TCP connection below an ASGI application, for faults that HTTP has no word for."""

import asyncio
from typing import cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_EXTENSION = "dagster_idempotent.transport"


class OpenConnection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol; the transport stands in the scope, as an ASGI extension."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's
        """Put the transport of this connection into the scope of each of its requests."""
        super().connection_made(transport)
        inner = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope.setdefault("extensions", {})[_EXTENSION] = transport
            await inner(scope, receive, send)  # pyright: ignore[reportArgumentType] - two spellings of one ASGI type

        self.app = app


def transport_of(scope: Scope) -> asyncio.Transport:
    """Return the transport that a request came in on."""
    return cast("asyncio.Transport", scope["extensions"][_EXTENSION])
