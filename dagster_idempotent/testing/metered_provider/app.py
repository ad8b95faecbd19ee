"""The provider as an ASGI application: the paid API, look-up, the bill, and the controls of a test."""

import json
from collections.abc import Mapping
from typing import cast

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dagster_idempotent.testing.metered_provider.bill import Bill
from dagster_idempotent.testing.metered_provider.endpoints import ENDPOINTS, UNKNOWN, Endpoint
from dagster_idempotent.testing.metered_provider.exchange import Exchange, Refused, error_body
from dagster_idempotent.testing.metered_provider.faults import (
    FaultOrder,
    FaultQueue,
    order_from_header,
    order_from_json,
)
from dagster_idempotent.testing.metered_provider.holding import HeldRequest, HoldingPen
from dagster_idempotent.testing.metered_provider.job_book import JobBook
from dagster_idempotent.testing.metered_provider.settings import Settings
from dagster_idempotent.testing.metered_provider.unpaid_jobs import UnpaidJobs

_CREDENTIALS = {"authorization", "proxy-authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie"}
_LONG_POLL_SECONDS = 30.0


class PaidApi:
    """Takes in every request below /v1 except look-up, on record before anything is decided."""

    def __init__(self, bill: Bill, pen: HoldingPen, faults: FaultQueue, settings: Settings) -> None:
        self._bill = bill
        self._pen = pen
        self._faults = faults
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Record the request, then accept, refuse or spoil it."""
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return  # half a request has not arrived
        endpoint = ENDPOINTS.get(request.url.path)
        exchange = self._arrive(request, body, receive, send, endpoint or UNKNOWN)
        try:
            self._check(request, body, endpoint)
            order = self._order(request, exchange)
            if order is None:
                await exchange.answer(exchange.accept())
            else:
                await order.play(exchange)
        except Refused as refusal:
            await exchange.refuse(refusal)

    def _arrive(self, request: Request, body: bytes, receive: Receive, send: Send, endpoint: Endpoint) -> Exchange:
        payload = endpoint.read(body) or {}
        reference = _client_reference(request.headers, payload)
        sequence = self._bill.arrive(
            method=request.method,
            path=request.url.path,
            client_reference=reference,
            headers=_redacted(request.headers),
            body=body,
        )
        wish = request.headers.get("x-deduplicate", "").lower()
        return Exchange(
            request.scope,
            receive,
            send,
            sequence=sequence,
            client_reference=reference,
            body=body,
            payload=payload,
            endpoint=endpoint,
            deduplicate=wish == "on" or (self._settings.deduplicate and wish != "off"),
            bill=self._bill,
            pen=self._pen,
            settings=self._settings,
        )

    def _check(self, request: Request, body: bytes, endpoint: Endpoint | None) -> None:
        if endpoint is None:
            raise Refused(404, f"found path {request.url.path}, expected one of {', '.join(ENDPOINTS)}")
        if request.method != "POST":
            raise Refused(405, f"found {request.method}, expected POST")
        self._check_credential(request)
        payload = endpoint.read(body)
        if payload is None:
            raise Refused(400, "expected a JSON object as the body (for Stripe's endpoints, a form)")
        problem = endpoint.problem(payload)
        if problem is not None:
            raise Refused(400, problem)
        if payload.get("stream") and endpoint.events is None:
            raise Refused(400, "this endpoint does not stream; leave out `stream`")

    def _check_credential(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = request.headers.get("x-api-key", key if scheme.lower() == "bearer" else "").strip()
        if not key:
            raise Refused(401, "expected the header Authorization: Bearer <key>, or x-api-key: <key>")
        if self._settings.required_key not in {None, key}:
            raise Refused(401, "this key is not the one that the provider was started with")

    def _order(self, request: Request, exchange: Exchange) -> FaultOrder | None:
        header = request.headers.get("x-fault")
        return self._faults.take(exchange) if header is None else order_from_header(header)


class Controls:
    """What a test asks and tells the provider; none of it is counted as a request."""

    def __init__(self, bill: Bill, pen: HoldingPen, faults: FaultQueue, settings: Settings) -> None:
        self._bill = bill
        self._pen = pen
        self._faults = faults
        self._settings = settings

    async def bill(self, _: Request) -> Response:
        """GET /bill."""
        charges = self._bill.charges()
        lines = [
            {
                "number": charge.number,
                "id": charge.request_id,
                "sequence": charge.sequence,
                "client_reference": charge.client_reference,
                "accepted_at": charge.accepted_at,
                "amount": str(charge.amount),
                "currency": charge.currency,
                "finished": charge.finished,
            }
            for charge in charges
        ]
        total = sum((charge.amount for charge in charges), start=self._settings.price * 0)
        summary = {"charges": len(lines), "total": str(total), "currency": self._settings.currency}
        return JSONResponse({**summary, "lines": lines})

    async def requests(self, _: Request) -> Response:
        """GET /requests."""
        arrivals = [
            {
                "sequence": arrival.sequence,
                "arrived_at": arrival.arrived_at,
                "method": arrival.method,
                "path": arrival.path,
                "client_reference": arrival.client_reference,
                "headers": dict(arrival.headers),
                "body": arrival.body.decode(errors="replace"),
                "outcome": arrival.outcome,
            }
            for arrival in self._bill.arrivals()
        ]
        return JSONResponse({"requests": arrivals})

    async def lookup(self, request: Request) -> Response:
        """GET /v1/lookup?client_reference=…."""
        if not self._settings.lookup:
            return _error(Refused(404, "this provider has no look-up"))
        reference = request.query_params.get("client_reference")
        if not reference:
            return _error(Refused(400, "expected ?client_reference=…"))
        found = [
            {
                "id": charge.request_id,
                "accepted_at": charge.accepted_at,
                "response": json.loads(charge.answer) if charge.finished else None,
                "charge": {"amount": str(charge.amount), "currency": charge.currency},
            }
            for charge in self._bill.find(reference)
        ]
        return JSONResponse({"client_reference": reference, "complete": True, "requests": found})

    async def faults(self, request: Request) -> Response:
        """GET, POST or DELETE /faults."""
        if request.method == "POST":
            try:
                self._faults.add(order_from_json(_json_object(await request.body())))
            except Refused as refusal:
                return _error(refusal)
        elif request.method == "DELETE":
            self._faults.clear()
        orders = [
            {
                "fault": order.kind,
                "times": order.times,
                "client_reference": order.client_reference,
                "body_contains": order.body_contains,
                "path_contains": order.path_contains,
                **order.options,
            }
            for order in self._faults.orders
        ]
        return JSONResponse({"faults": orders})

    async def held(self, request: Request) -> Response:
        """GET /held, or GET /held?wait=N&timeout=SECONDS to wait for N of them."""
        try:
            wanted = int(request.query_params.get("wait", "0"))
            timeout = float(request.query_params.get("timeout", _LONG_POLL_SECONDS))
        except ValueError:
            return _error(Refused(400, "expected ?wait=<number>&timeout=<seconds>"))
        held = await self._pen.wait_for(wanted, timeout=timeout)
        return JSONResponse({"held": [_describe(entry) for entry in held]})

    async def release(self, request: Request) -> Response:
        """POST /release, or POST /release?reference=… for some; also finishes work orphaned by a kill."""
        reference = request.query_params.get("reference")
        self._bill.finish(reference)
        return JSONResponse({"released": self._pen.release(reference)})

    async def settings(self, request: Request) -> Response:
        """POST /settings with `deduplicate` or `lookup`, true or false."""
        wanted = _json_object(await request.body())
        if wanted is None or not set(wanted) <= {"deduplicate", "lookup"}:
            return _error(Refused(400, "expected an object with `deduplicate` or `lookup`, true or false"))
        self._settings.deduplicate = bool(wanted.get("deduplicate", self._settings.deduplicate))
        self._settings.lookup = bool(wanted.get("lookup", self._settings.lookup))
        return JSONResponse({"deduplicate": self._settings.deduplicate, "lookup": self._settings.lookup})


def build_app(bill: Bill, book: JobBook, pen: HoldingPen, settings: Settings) -> Starlette:
    """Make the application over an open bill and the book of its jobs."""
    faults = FaultQueue()
    controls = Controls(bill, pen, faults, settings)
    return Starlette(
        routes=[
            Route("/v1/lookup", controls.lookup, methods=["GET"]),
            *UnpaidJobs(bill, book, pen, faults, settings).routes(),
            Route("/v1/{path:path}", PaidApi(bill, pen, faults, settings)),
            Route("/bill", controls.bill, methods=["GET"]),
            Route("/requests", controls.requests, methods=["GET"]),
            Route("/faults", controls.faults, methods=["GET", "POST", "DELETE"]),
            Route("/held", controls.held, methods=["GET"]),
            Route("/release", controls.release, methods=["POST"]),
            Route("/settings", controls.settings, methods=["POST"]),
        ]
    )


def _describe(entry: HeldRequest) -> dict[str, object]:
    return {
        "sequence": entry.sequence,
        "client_reference": entry.client_reference,
        "accepted": entry.accepted,
    }


def _error(refusal: Refused) -> Response:
    return Response(
        error_body(refusal.status, refusal.message),
        status_code=refusal.status,
        media_type="application/json",
    )


def _json_object(body: bytes) -> Mapping[str, object] | None:
    try:
        value: object = json.loads(body)
    except ValueError:
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _client_reference(headers: Headers, payload: Mapping[str, object]) -> str | None:
    metadata = payload.get("metadata")
    in_body: Mapping[str, object] = {}
    if isinstance(metadata, dict):
        in_body = cast("Mapping[str, object]", metadata)
    reference = headers.get("idempotency-key") or headers.get("x-client-request-id") or in_body.get("client_reference")
    return str(reference) if reference else None


def _redacted(headers: Headers) -> dict[str, str]:
    return {name: "***" if name in _CREDENTIALS else value for name, value in headers.items()}
