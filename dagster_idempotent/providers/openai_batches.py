"""OpenAI's batches as a remote-job provider: many requests, one file, one submission, answers within a day."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import cast
from uuid import uuid4

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.errors import InvalidPayload
from dagster_idempotent.providers.http_answer import excerpt
from dagster_idempotent.providers.job_http import JobHttp, at, text_at
from dagster_idempotent.providers.job_states import JobDone, JobFailed, JobRunning, JobState, JobUnknown
from dagster_idempotent.providers.outcome import Answer, Finding, LookUpFailed, NotFound, NotSent, Outcome, Unfinished
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.providers.protocol import Sink, whole
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Route

_KEY = "idempotency_key"
_PAGE, _PAGES = 100, 50
_RUNNING = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
_ENDED = frozenset({"completed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Requests by their `custom_id`, all to one endpoint."""

    requests: Mapping[str, Mapping[str, object]]
    endpoint: str = "/v1/chat/completions"
    completion_window: str = "24h"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The answers by `custom_id`, and what went wrong for those that have none."""

    remote_ref: str
    answers: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    errors: Mapping[str, object] = field(default_factory=dict[str, object])


class OpenAIBatches:
    """Submits a batch once, named in its metadata, by which it is found again.

    The input file is uploaded first, which costs nothing and is repeated with each submission. A batch that expired or
    was cancelled half way is done with the answers that it has: they are paid for. `cost` is unknown, and budgets keep
    the `upper_bound`.
    """

    pace = Backoff(base=timedelta(seconds=10), factor=1.5, cap=timedelta(minutes=5), jitter=0.2)
    # What a batch promises; the poll budget only says how long one run waits for it.
    expected_within = timedelta(hours=24)
    lookup = LookUp.EXACT
    key_window = None

    def __init__(
        self,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key_variable: str = "OPENAI_API_KEY",
        account: str = "",
        settle_delay: timedelta = timedelta(minutes=10),
        poll_budget: timedelta = timedelta(hours=1),
        upper_bound: Money | None = None,
        route: Route | None = None,
    ) -> None:
        self.name = f"openai_batches:{account}" if account else "openai_batches"
        self.settle_delay = settle_delay
        self.poll_budget = poll_budget
        self._upper_bound = upper_bound
        self._http = JobHttp(
            base_url=base_url,
            api_key_variable=api_key_variable,
            refusals=OPENAI.refusals,
            route=route or Route(read_timeout=timedelta(minutes=2)),
        )

    def operation(self, request: Batch) -> str:
        """Name the endpoint, and the one that the lines go to."""
        return f"POST /batches {request.endpoint}"

    def payload(self, request: Batch) -> object:
        """Return the lines and the settings of the batch."""
        _lines(request)
        return {"requests": dict(request.requests), "completion_window": request.completion_window}

    def estimate(self, request: Batch) -> Money | None:  # noqa: ARG002 - part of the protocol
        """Return the upper bound that was configured."""
        return self._upper_bound

    def submit(self, request: Batch, *, key: IdempotencyKey, window: SendWindow) -> Outcome:
        """Upload the input, then create the batch once; an upload that fails has sent nothing paid."""
        uploaded = self._upload(_lines(request))
        if isinstance(uploaded, NotSent):
            return uploaded
        body = {
            "input_file_id": uploaded,
            "endpoint": request.endpoint,
            "completion_window": request.completion_window,
            "metadata": {_KEY: key},
        }
        return self._http.submit(
            "/batches", json.dumps(body).encode(), {"X-Client-Request-Id": key}, window, id_at=("id",)
        )

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        """Go through the account's batches, the newest first; the search is complete when no page is left."""
        wanted, after = set(keys), ""
        for _ in range(_PAGES):
            told = self._http.told("GET", f"/batches?limit={_PAGE}{after}")
            if isinstance(told, str):
                return LookUpFailed(reason=told)
            rows = told.get("data")
            if not isinstance(rows, list):
                return LookUpFailed(reason="the list of batches has no `data`")
            batches = cast("list[object]", rows)
            named = [(at(row, ("metadata", _KEY)), text_at(row, ("id",))) for row in batches]
            found = [(key, reference) for key, reference in named if key in wanted and reference is not None]
            if found:
                key, reference = found[0]
                return Unfinished(remote_ref=reference, also=tuple(other for same, other in found[1:] if same == key))
            if told.get("has_more") is False:
                return NotFound(complete=True)
            last = text_at(batches[-1], ("id",)) if batches else None
            if last is None:
                # A page that neither ends the list nor leads on: what it does not show may be there.
                break
            after = f"&after={last}"
        return NotFound(complete=False)

    def poll(self, remote_ref: str) -> JobState:
        """Ask how far the batch is."""
        return _state(self._http.told("GET", f"/batches/{remote_ref}"))

    def cancel(self, remote_ref: str) -> JobState:
        """Ask for the batch to be stopped, which takes up to some minutes."""
        state = _state(self._http.told("POST", f"/batches/{remote_ref}/cancel"))
        return self.poll(remote_ref) if isinstance(state, JobUnknown) else state

    def fetch(self, remote_ref: str, done: JobDone) -> Answer | JobUnknown:
        """Fetch the answers and the errors, as lines of one body."""
        return whole(lambda into: self.fetch_into(remote_ref, done, into))

    def fetch_into(self, remote_ref: str, done: JobDone, into: Sink) -> Mapping[str, object] | JobUnknown:
        """Fetch the answers and the errors piece by piece."""
        for name in ("output_file_id", "error_file_id"):
            file_id = text_at(done.facts, (name,))
            if file_id is None:
                continue
            response = self._http.download(f"/files/{file_id}/content", into)
            if isinstance(response, JobUnknown):
                return response
            into(b"\n")  # lines without anything in them say nothing
        return {"remote_ref": remote_ref, "media_type": "application/jsonl"}

    def cost_of(self, ended: JobDone | JobFailed) -> Money | None:  # noqa: ARG002 - part of the protocol
        """Return None: a batch does not tell its price."""
        return None

    def decode(self, answer: Answer) -> BatchResult:
        """Return the answers by `custom_id`."""
        answers: dict[str, Mapping[str, object]] = {}
        errors: dict[str, object] = {}
        for line in answer.body.splitlines():
            row: object = json.loads(line) if line.strip() else None
            custom_id = text_at(row, ("custom_id",))
            if custom_id is None:
                continue
            body = at(row, ("response", "body"))
            if at(row, ("response", "status_code")) == 200 and isinstance(body, dict):  # noqa: PLR2004
                answers[custom_id] = cast("Mapping[str, object]", body)
            else:
                errors[custom_id] = at(row, ("error",)) or body
        return BatchResult(
            remote_ref=str(answer.head.get("remote_ref", "")),
            answers=MappingProxyType(answers),
            errors=MappingProxyType(errors),
        )

    def content(self, answer: Answer) -> bytes:
        """Return the lines."""
        return answer.body

    def _upload(self, lines: bytes) -> str | NotSent:
        edge = f"edge-{uuid4().hex}"
        body = (
            (
                f'--{edge}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
                f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="batch.jsonl"\r\n'
                "Content-Type: application/jsonl\r\n\r\n"
            ).encode()
            + lines
            + f"\r\n--{edge}--\r\n".encode()
        )
        response = self._http.free("POST", "/files", body=body, content_type=f"multipart/form-data; boundary={edge}")
        if isinstance(response, str):
            return NotSent(reason=f"the input file could not be uploaded: {response}")
        try:
            file_id = text_at(json.loads(response.body), ("id",))
        except ValueError:
            file_id = None
        if response.status != 200 or file_id is None:  # noqa: PLR2004 - HTTP's own number
            return NotSent(reason=f"the upload was answered HTTP {response.status}: {excerpt(response.body)}")
        return file_id


def _state(told: Mapping[str, object] | str) -> JobState:
    if isinstance(told, str):
        return JobUnknown(reason=told)
    status = text_at(told, ("status",))
    if status in _RUNNING:
        total, done = at(told, ("request_counts", "total")), at(told, ("request_counts", "completed"))
        if isinstance(total, int) and isinstance(done, int) and total > 0:
            return JobRunning(progress=done / total, note=status or "")
        return JobRunning(note=status or "")
    if status in _ENDED and (told.get("output_file_id") or told.get("error_file_id")):
        return JobDone(facts=told)
    if status == "failed" or status in _ENDED:
        reason = json.dumps(told.get("errors"), default=str)
        return JobFailed(reason=f"{status}: {reason[:500]}", cancelled=status == "cancelled", facts=told)
    return JobUnknown(reason=f"the batch has the status {status!r}, which this version does not know")


def _lines(request: Batch) -> bytes:
    if not request.requests:
        raise InvalidPayload("The batch has no requests; nothing was sent. Give at least one.", field="/requests")
    try:
        lines = [
            json.dumps(
                {"custom_id": custom_id, "method": "POST", "url": request.endpoint, "body": body},
                sort_keys=True,
                allow_nan=False,
            )
            for custom_id, body in request.requests.items()
        ]
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(
            f"A request of the batch cannot be written as JSON: {error}. Nothing was sent.", field="/requests"
        ) from error
    return "\n".join(lines).encode()
