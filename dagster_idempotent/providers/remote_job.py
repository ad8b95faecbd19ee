"""`JsonJobApi`: a service with a JSON job API as a remote-job provider, by configuration."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast
from urllib.parse import quote

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.credentials import BEARER, CredentialPlace
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.job_http import JobHttp, JsonPath, at, money_at, text_at
from dagster_idempotent.providers.job_states import JobDone, JobFailed, JobRunning, JobState, JobUnknown
from dagster_idempotent.providers.json_body import json_body
from dagster_idempotent.providers.outcome import (
    Answer,
    Finding,
    LookUpFailed,
    NotFound,
    Outcome,
    Unfinished,
    first_found,
)
from dagster_idempotent.providers.protocol import Sink, whole
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Route

JobRequest = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a remote job made; a large one lies in a file, which is read when `body` is first asked for."""

    answer: Answer = field(repr=False)
    media_type: str
    remote_ref: str

    @property
    def body(self) -> bytes:
        """The bytes, whole."""
        return self.answer.body

    def pieces(self) -> Iterator[bytes]:
        """Give the bytes piece by piece, so that a large file never is in memory."""
        return self.answer.pieces()

    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode("utf-8")

    def json(self) -> object:
        """Return the body as JSON."""
        return json.loads(self.body)


class JsonJobApi:
    """Submits jobs once, and asks how they are until their result is fetched.

    `name` is the service and account that is charged. Building one reads no credential: the environment variable
    `api_key_variable` is read when a request leaves, and its value goes to the host of `base_url` only.
    """

    def __init__(
        self,
        api: JobApi,
        *,
        name: str,
        base_url: str,
        api_key_variable: str | None = None,
        credential: CredentialPlace = BEARER,
        upper_bound: Money | None = None,
        route: Route | None = None,
    ) -> None:
        if not name.strip() or not name.isprintable():
            raise ConfigurationError(
                f"The provider's name is {name!r}. Expected the service and account that is charged, such as "
                '"runway:studio".',
                field="name",
            )
        self.api = api
        self._name = name
        self._upper_bound = upper_bound
        self._http = JobHttp(
            base_url=base_url,
            api_key_variable=api_key_variable,
            credential=credential,
            route=route or Route(read_timeout=timedelta(minutes=2)),
        )

    @property
    def name(self) -> str:
        """The service and account that is charged."""
        return self._name

    @property
    def lookup(self) -> LookUp:
        """Exact where jobs are listed by key."""
        return LookUp.NONE if self.api.look_up_path is None else LookUp.EXACT

    @property
    def settle_delay(self) -> timedelta:
        """How long a submission may take to land and to be listed."""
        return self.api.settle_delay

    @property
    def key_window(self) -> timedelta | None:
        """How long the service documents that it honours an idempotency key."""
        return self.api.key_window

    @property
    def pace(self) -> Backoff:
        """How long to wait between two polls."""
        return self.api.pace

    @property
    def poll_budget(self) -> timedelta:
        """How long one run keeps polling."""
        return self.api.poll_budget

    @property
    def expected_within(self) -> timedelta | None:
        """How long a job takes where nothing is wrong."""
        return self.api.expected_within

    def operation(self, request: JobRequest) -> str:  # noqa: ARG002 - part of the protocol
        """Name the endpoint, without the host."""
        return f"POST {self.api.submit_path}"

    def payload(self, request: JobRequest) -> object:
        """Return the JSON body."""
        json_body(request)  # refuses what JSON cannot carry before anything is recorded
        return request

    def estimate(self, request: JobRequest) -> Money | None:  # noqa: ARG002 - part of the protocol
        """Return the upper bound that was configured."""
        return self._upper_bound

    def submit(self, request: JobRequest, *, key: IdempotencyKey, window: SendWindow) -> Outcome:
        """Submit the job once."""
        headers = {} if self.api.key_header is None else {self.api.key_header: key}
        return self._http.submit(self.api.submit_path, json_body(request), headers, window, id_at=_path(self.api.id_at))

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        """Look up each key; the first that names a job decides."""
        return first_found(keys, self._find_one)

    def poll(self, remote_ref: str) -> JobState:
        """Ask how far the job is."""
        return self._state(self._http.told("GET", _filled(self.api.status_path, remote_ref)))

    def cancel(self, remote_ref: str) -> JobState:
        """Ask for the job to be stopped; where the answer is not the job itself, ask how it is."""
        if self.api.cancel_path is None:
            raise ConfigurationError(
                f"Provider {self._name!r} has no cancel_path: its jobs cannot be cancelled from here. Nothing was "
                "sent. Cancel the job at the provider; the next poll sees it.",
                field="cancel_path",
            )
        told = self._http.told(self.api.cancel_method, _filled(self.api.cancel_path, remote_ref))
        if text_at(None if isinstance(told, str) else told, _path(self.api.id_at)) != remote_ref:
            # "failed" may be said of the cancellation.
            return self.poll(remote_ref)
        state = self._state(told)
        return self.poll(remote_ref) if isinstance(state, JobUnknown) else state

    def fetch(self, remote_ref: str, done: JobDone) -> Answer | JobUnknown:
        """Fetch the result from where the configuration says that it is."""
        return whole(lambda into: self.fetch_into(remote_ref, done, into))

    def fetch_into(self, remote_ref: str, done: JobDone, into: Sink) -> Mapping[str, object] | JobUnknown:
        """Fetch the result piece by piece."""
        head = {"remote_ref": remote_ref}
        if self.api.result_at is not None:
            part = at(done.facts, _path(self.api.result_at))
            if part is None:
                return JobUnknown(reason=f"the finished job has nothing at `{self.api.result_at}`")
            into(part.encode() if isinstance(part, str) else json.dumps(part, default=str, sort_keys=True).encode())
            return {**head, "media_type": "text/plain" if isinstance(part, str) else "application/json"}
        if self.api.result_url_at is not None:
            url = text_at(done.facts, _path(self.api.result_url_at))
            if url is None:
                return JobUnknown(reason=f"the finished job has no address at `{self.api.result_url_at}`")
            place = self._http.absolute(url)
        else:
            place = _filled(self.api.result_path or "", remote_ref)
        response = self._http.download(place, into)
        if isinstance(response, JobUnknown):
            return response
        kind = response.header("content-type") or "application/octet-stream"
        return {**head, "media_type": kind, "status": 200}

    def cost_of(self, ended: JobDone | JobFailed) -> Money | None:
        """Return what the service reports for the job."""
        if self.api.cost_at is None:
            return None
        currency = self.api.currency
        if self.api.currency_at is not None:
            currency = text_at(ended.facts, _path(self.api.currency_at))
        return None if currency is None else money_at(ended.facts, _path(self.api.cost_at), currency)

    def decode(self, answer: Answer) -> JobResult:
        """Return the stored result."""
        return JobResult(
            answer=answer,
            media_type=str(answer.head.get("media_type", "application/octet-stream")),
            remote_ref=str(answer.head.get("remote_ref", "")),
        )

    def content(self, answer: Answer) -> bytes:
        """Return the result itself, which a model class validates as JSON."""
        return answer.body

    def _find_one(self, key: IdempotencyKey) -> Finding:
        if self.api.look_up_path is None:
            return NotFound(complete=False)
        told = self._http.told("GET", self.api.look_up_path.replace("{key}", quote(key, safe="")))
        if isinstance(told, str):
            return LookUpFailed(reason=told)
        rows = at(told, _path(self.api.look_up_at))
        if not isinstance(rows, list):
            return LookUpFailed(reason=f"the look-up has no list at `{self.api.look_up_at}`")
        found = [text_at(row, _path(self.api.id_at)) for row in cast("list[object]", rows)]
        if not found:
            where = self.api.look_up_complete_at
            return NotFound(complete=where is None or at(told, _path(where)) is True)
        if found[0] is None:
            return LookUpFailed(reason=f"the look-up found a job without `{self.api.id_at}`")
        return Unfinished(remote_ref=found[0], also=tuple(each or "a job without an id" for each in found[1:]))

    def _state(self, told: Mapping[str, object] | str) -> JobState:
        if isinstance(told, str):
            return JobUnknown(reason=told)
        word = text_at(told, _path(self.api.status_at))
        if word in self.api.running:
            return JobRunning(progress=self._progress(told), note=word or "")
        if word in self.api.succeeded:
            return JobDone(facts=told)
        if word in self.api.failed or word in self.api.cancelled:
            error = None if self.api.error_at is None else at(told, _path(self.api.error_at))
            reason = error if isinstance(error, str) else json.dumps(error, default=str) if error else "no reason given"
            return JobFailed(reason=f"{word}: {reason[:500]}", cancelled=word in self.api.cancelled, facts=told)
        return JobUnknown(reason=f"the status {word!r} at `{self.api.status_at}` is in no list of the configuration")

    def _progress(self, told: Mapping[str, object]) -> float | None:
        value = None if self.api.progress_at is None else at(told, _path(self.api.progress_at))
        try:
            found = float(str(value))
        except ValueError:
            return None
        return found if 0 <= found <= 1 else found / 100 if 1 < found <= 100 else None  # noqa: PLR2004 - per cent


def _path(text: str) -> JsonPath:
    return tuple(text.split("."))


def _filled(path: str, remote_ref: str) -> str:
    return path.replace("{id}", quote(remote_ref, safe=""))
