"""One paid request in the provider's hands: accept it, answer it, or hang up on it."""

import hashlib
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import cast

from starlette.types import Receive, Scope, Send

from dagster_idempotent.testing.metered_provider.bill import Bill, Charge
from dagster_idempotent.testing.metered_provider.connection import transport_of
from dagster_idempotent.testing.metered_provider.endpoints import Endpoint
from dagster_idempotent.testing.metered_provider.holding import HoldingPen
from dagster_idempotent.testing.metered_provider.settings import Settings

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Refused(Exception):
    """The provider's own, definite no: `status` and a text; nothing is charged."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class StreamEnding(Enum):
    """How a stream ends."""

    CLEAN = auto()
    HANG_UP = auto()
    STAY_OPEN = auto()


class Exchange:
    """A request that arrived, and everything that can be done with its connection."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        sequence: int,
        client_reference: str | None,
        body: bytes,
        payload: Mapping[str, object],
        endpoint: Endpoint,
        deduplicate: bool,
        bill: Bill,
        pen: HoldingPen,
        settings: Settings,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.sequence = sequence
        self.client_reference = client_reference
        self.body = body
        self.payload = payload
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self._endpoint = endpoint
        self._deduplicate = deduplicate
        self._bill = bill
        self._pen = pen
        self._settings = settings

    @property
    def wants_stream(self) -> bool:
        """Whether the request asks for a stream."""
        return self.payload.get("stream") is True

    @property
    def request_id_header(self) -> str:
        """The header in which this kind of provider names a request."""
        return self._endpoint.request_id_header

    def events_of(self, charge: Charge) -> Sequence[bytes]:
        """Return the answer as the frames of a stream; raises Refused where this endpoint does not stream."""
        if self._endpoint.events is None:
            raise Refused(400, "this endpoint does not stream")
        return self._endpoint.events(charge.answer)

    def accept(self, *, content: str | None = None) -> Charge:
        """Charge the request, or find the charge that it repeats; durable on return.

        Raises Refused when deduplication is on and the key is tied to another body or to unfinished work.
        """
        digest = hashlib.sha256(self.body).hexdigest()
        if self._deduplicate and self.client_reference is not None:
            earlier = self._bill.find(self.client_reference)
            if earlier:
                return self._repeat(earlier[0], digest)
        return self._bill.charge(
            sequence=self.sequence,
            client_reference=self.client_reference,
            amount=self._settings.price,
            currency=self._settings.currency,
            body_sha256=digest,
            compose=lambda number: self._endpoint.compose(number, self.payload, content=content),
        )

    def _repeat(self, charge: Charge, digest: str) -> Charge:
        if charge.body_sha256 != digest:
            raise Refused(422, "this idempotency key was used with another body; use a new key for it")
        if not charge.finished:
            raise Refused(409, "a request with this idempotency key is still in progress; look it up later")
        self._bill.conclude(self.sequence, "replayed")
        return charge

    async def hold(self, charge: Charge | None) -> bool:
        """Wait to be released; False when the server stops instead."""
        return await self._pen.hold(
            sequence=self.sequence, client_reference=self.client_reference, accepted=charge is not None
        )

    def finish(self, charge: Charge) -> None:
        """Let look-up show the answer, whether or not the client ever gets it."""
        self._bill.finish(number=charge.number)

    async def answer(self, charge: Charge) -> None:
        """Finish the charge and send its answer."""
        self.finish(charge)
        if self.wants_stream:
            await self.respond_stream(self.events_of(charge), charge)
        else:
            await self.respond(200, charge.answer, headers={self.request_id_header: charge.request_id})

    async def refuse(self, refusal: Refused) -> None:
        """Say no, as OpenAI's API words it."""
        self.conclude("refused")
        await self.respond(refusal.status, error_body(refusal.status, refusal.message))

    def conclude(self, outcome: str) -> None:
        """Record what became of the request, unless it was charged (that stays on record)."""
        self._bill.conclude(self.sequence, outcome)

    async def respond(
        self,
        status: int,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        cut_after: int | None = None,
    ) -> None:
        """Send a response; with `cut_after`, promise all of the body, send that many bytes and hang up."""
        fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
            }
        )
        if cut_after is None:
            await self._send({"type": "http.response.body", "body": body})
            return
        await self._send({"type": "http.response.body", "body": body[:cut_after], "more_body": True})
        await self.hang_up(reset=False)

    async def respond_stream(
        self, frames: Sequence[bytes], charge: Charge, *, ending: StreamEnding = StreamEnding.CLEAN
    ) -> None:
        """Send the frames of a stream one by one, and end it or not."""
        fields = {"content-type": "text/event-stream; charset=utf-8", self.request_id_header: charge.request_id}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        for each in frames:
            await self._send({"type": "http.response.body", "body": each, "more_body": True})
        match ending:
            case StreamEnding.CLEAN:
                await self._send({"type": "http.response.body", "body": b""})
            case StreamEnding.HANG_UP:
                await self.hang_up(reset=False)
            case StreamEnding.STAY_OPEN:
                while (await self._receive())["type"] != "http.disconnect":
                    pass

    async def hang_up(self, *, reset: bool) -> None:
        """Close the TCP connection: after what was written (FIN), or at once and rudely (RST)."""
        transport = transport_of(self._scope)
        if reset:
            connection = cast("socket.socket", transport.get_extra_info("socket"))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        else:
            transport.close()
        # The server would answer 500 for us if we returned before it knows that the connection is gone.
        while (await self._receive())["type"] != "http.disconnect":
            pass


def error_body(status: int, message: str) -> bytes:
    """Make the body of an error as OpenAI's API words it."""
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004 - an HTTP class
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()
