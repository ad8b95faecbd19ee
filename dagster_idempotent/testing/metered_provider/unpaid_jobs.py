"""What is free about jobs and batches: their status, results, cancellation and look-up, and file uploads."""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from dagster_idempotent.testing.metered_provider.batches_api import batch_output, batch_view, uploaded_file
from dagster_idempotent.testing.metered_provider.bill import Bill, Charge
from dagster_idempotent.testing.metered_provider.endpoints import UNKNOWN
from dagster_idempotent.testing.metered_provider.exchange import Exchange, Refused
from dagster_idempotent.testing.metered_provider.faults import FaultQueue
from dagster_idempotent.testing.metered_provider.holding import HoldingPen
from dagster_idempotent.testing.metered_provider.job_book import ENDED, STATUSES, JobBook, JobState
from dagster_idempotent.testing.metered_provider.jobs_api import Result, job_result, job_view
from dagster_idempotent.testing.metered_provider.settings import Settings

Work = Callable[[Request, bytes], Result]


class _FreeExchange(Exchange):
    """A request that costs nothing, played by the same faults; `result` is worked out when it is accepted."""

    work: Callable[[], Result]
    media_type = "application/json"

    def accept(self, *, content: str | None = None) -> Charge:
        """Do what was asked for; no charge is made, the one that is returned only carries the answer."""
        result = self.work()
        self.media_type = result.media_type
        self.conclude("answered")
        return Charge(
            number=0,
            request_id="",
            sequence=self.sequence,
            client_reference=None,
            accepted_at="",
            amount=self._settings.price,
            currency=self._settings.currency,
            body_sha256="",
            answer=result.body if content is None else content.encode(),
            finished=True,
        )

    async def answer(self, charge: Charge) -> None:
        await self.respond(200, charge.answer, headers={"content-type": self.media_type})


class UnpaidJobs:
    """Everything about a job after its submission; on record like any request, never on the bill."""

    def __init__(self, bill: Bill, book: JobBook, pen: HoldingPen, faults: FaultQueue, settings: Settings) -> None:
        self._bill = bill
        self._book = book
        self._pen = pen
        self._faults = faults
        self._settings = settings

    def routes(self) -> list[BaseRoute]:
        """Return the routes; they stand before the paid ones."""
        return [
            self._route("/v1/jobs", "GET", self._list),
            self._route("/v1/jobs/{id}", "GET", self._status),
            self._route("/v1/jobs/{id}/result", "GET", self._result),
            self._route("/v1/jobs/{id}/cancel", "POST", self._cancel),
            self._route("/v1/batches", "GET", self._list_batches),
            self._route("/v1/batches/{id}", "GET", self._batch),
            self._route("/v1/batches/{id}/cancel", "POST", self._cancel_batch),
            self._route("/v1/files", "POST", self._upload),
            self._route("/v1/files/{id}/content", "GET", self._content),
            Route("/jobs", self._control, methods=["GET", "POST"]),
        ]

    def _route(self, path: str, method: str, work: Work) -> Route:
        return Route(path, _Free(self, work), methods=[method])

    async def serve(self, request: Request, receive: Receive, send: Send, work: Work) -> None:
        """Do one free request, or spoil it."""
        body = await request.body()
        exchange = self._exchange(request, body, receive, send)
        exchange.work = lambda: work(request, body)
        order = self._faults.take(exchange, free=True)
        try:
            if not request.headers.get("authorization"):
                await exchange.refuse(Refused(401, "expected the header Authorization: Bearer <key>"))
            elif order is None:
                await exchange.answer(exchange.accept())
            else:
                await order.play(exchange)
        except Refused as refusal:
            await exchange.refuse(refusal)

    def _exchange(self, request: Request, body: bytes, receive: Receive, send: Send) -> _FreeExchange:
        sequence = self._bill.arrive(
            method=request.method, path=request.url.path, client_reference=None, headers={}, body=body[:10_000]
        )
        return _FreeExchange(
            request.scope,
            receive,
            send,
            sequence=sequence,
            client_reference=None,
            body=body,
            payload={},
            endpoint=UNKNOWN,
            deduplicate=False,
            bill=self._bill,
            pen=self._pen,
            settings=self._settings,
        )

    def _list(self, request: Request, _: bytes) -> Result:
        if not self._settings.lookup:
            raise Refused(404, "this provider has no look-up")
        key = request.query_params.get("key")
        if not key:
            raise Refused(400, "expected ?key=…")
        found = [self._view(charge) for charge in self._bill.find(key) if charge.request_id.startswith("job_")]
        return _json({"jobs": found, "complete": True})

    def _status(self, request: Request, _: bytes) -> Result:
        charge = self._charge(request)
        self._poll(charge)
        return _json(self._view(charge))

    def _result(self, request: Request, _: bytes) -> Result:
        charge = self._charge(request)
        state = self._book.get(charge.request_id)
        if state.status != "succeeded":
            raise Refused(409, f"this job is {state.status}, it has no result")
        return job_result(charge.answer, state)

    def _cancel(self, request: Request, _: bytes) -> Result:
        charge = self._charge(request)
        self._stop(charge)
        return _json(self._view(charge))

    def _list_batches(self, request: Request, _: bytes) -> Result:
        if not self._settings.lookup:
            raise Refused(404, "this provider has no look-up")
        charges = [each for each in reversed(self._bill.charges()) if each.request_id.startswith("batch_")]
        after, limit = request.query_params.get("after"), int(request.query_params.get("limit", "20"))
        names = [each.request_id for each in charges]
        start = names.index(after) + 1 if after in names else 0
        page = charges[start : start + limit]
        more = start + limit < len(charges)
        return _json({"object": "list", "data": [self._batch_view(each) for each in page], "has_more": more})

    def _batch(self, request: Request, _: bytes) -> Result:
        charge = self._charge(request)
        self._poll(charge)
        return _json(self._batch_view(charge))

    def _cancel_batch(self, request: Request, _: bytes) -> Result:
        charge = self._charge(request)
        self._stop(charge)
        return _json(self._batch_view(charge))

    def _upload(self, request: Request, body: bytes) -> Result:
        found = uploaded_file(request.headers.get("content-type", ""), body)
        if found is None:
            raise Refused(400, "expected a multipart form with a part `file`")
        file_id = f"file-{uuid.uuid4().hex[:24]}"
        self._book.keep_file(file_id, found)
        return _json({"id": file_id, "object": "file", "bytes": len(found), "purpose": "batch", "created_at": 0})

    def _content(self, request: Request, _: bytes) -> Result:
        file_id = str(request.path_params["id"])
        if file_id.startswith("output-"):
            charge = self._known(file_id.removeprefix("output-"))
            body = batch_output(charge.answer, self._input(charge), self._book.get(charge.request_id))
        else:
            body = self._book.file(file_id)
        if body is None:
            raise Refused(404, f"no file {file_id}")
        return Result(body=body, media_type="application/octet-stream")

    async def _control(self, request: Request) -> Response:
        """GET /jobs: every job and batch; POST /jobs with `id` and what it is to be."""
        if request.method == "POST":
            wanted = cast("dict[str, object]", json.loads(await request.body()))
            job_id, status = str(wanted.pop("id", "")), wanted.get("status")
            if status not in STATUSES or not self._bill.charge_of(job_id):
                text = f"expected `id` of a job and `status`, one of {', '.join(STATUSES)}"
                return JSONResponse({"error": {"message": text}}, status_code=400)
            result = wanted.get("result")
            self._book.put(
                job_id,
                JobState(
                    status=str(status),
                    progress=cast("float | None", wanted.get("progress")),
                    error=cast("str | None", wanted.get("error")),
                    result=None if result is None else str(result).encode(),
                    media_type=cast("str | None", wanted.get("media_type")),
                    polls=self._book.get(job_id).polls,
                    driven=True,
                ),
            )
        jobs = [each for each in self._bill.charges() if each.request_id.startswith(("job_", "batch_"))]
        states = [(each, self._book.get(each.request_id)) for each in jobs]
        return JSONResponse(
            {
                "jobs": [
                    {"id": each.request_id, "key": each.client_reference, "status": state.status, "polls": state.polls}
                    for each, state in states
                ]
            }
        )

    def _charge(self, request: Request) -> Charge:
        return self._known(str(request.path_params["id"]))

    def _known(self, job_id: str) -> Charge:
        charge = self._bill.charge_of(job_id)
        if charge is None:
            raise Refused(404, f"no job {job_id}")
        return charge

    def _poll(self, charge: Charge) -> None:
        """Count a poll; a job that nobody drives is running from the first on and done at the last that it needs."""
        state = self._book.get(charge.request_id)
        polls, needed = state.polls + 1, self._settings.job_polls
        moved = {"polls": polls}
        if not state.driven and needed is not None and state.status not in ENDED:
            status = "succeeded" if polls >= needed else "running"
            self._book.put(charge.request_id, replace(state, **moved, status=status, progress=polls / max(needed, 1)))
        else:
            self._book.put(charge.request_id, replace(state, **moved))

    def _stop(self, charge: Charge) -> None:
        state = self._book.get(charge.request_id)
        if state.status not in ENDED:
            self._book.put(charge.request_id, replace(state, status="cancelled", error="cancelled", driven=True))

    def _view(self, charge: Charge) -> Mapping[str, object]:
        state = self._book.get(charge.request_id)
        key, amount = charge.client_reference, str(charge.amount)
        return job_view(charge.answer, state, key=key, amount=amount, currency=charge.currency)

    def _batch_view(self, charge: Charge) -> Mapping[str, object]:
        requests = len([line for line in self._input(charge).splitlines() if line.strip()])
        return batch_view(charge.answer, self._book.get(charge.request_id), requests=requests)

    def _input(self, charge: Charge) -> bytes:
        return self._book.file(str(json.loads(charge.answer)["input_file_id"])) or b""


class _Free:
    """An ASGI application: Starlette takes a plain function for an endpoint of another kind."""

    def __init__(self, jobs: UnpaidJobs, work: Work) -> None:
        self._jobs = jobs
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._jobs.serve(Request(scope, receive), receive, send, self._work)


def _json(value: Mapping[str, object]) -> Result:
    return Result(body=json.dumps(value).encode(), media_type="application/json")
