"""Remote jobs after their submission: asked about until they end, their result stored at once (R13).

Nothing here submits. A poll needs no sender and no lease: what it brings is written by submission, whoever brings it.
"""

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import SettledBy, Submission, SubmissionState
from dagster_idempotent.engine.answer_files import spool_for, stored_aside
from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.engine.large_artifacts import LargeArtifacts
from dagster_idempotent.engine.reconciliation import OUTCOME_PATIENCE, answer_row
from dagster_idempotent.engine.resolutions import current
from dagster_idempotent.engine.spool import Spool
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import ConfigurationError, DecisionRefused, RemoteJobFailed, RemoteJobUnfinished
from dagster_idempotent.providers.job_states import JobDone, JobFailed, JobRunning, JobState, JobUnknown
from dagster_idempotent.providers.outcome import Answer, Succeeded
from dagster_idempotent.providers.protocol import AnyJobProvider, AnyProvider, RemoteJobProvider, fetched
from dagster_idempotent.store import decisions, submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.submissions import Call

logger = logging.getLogger(__name__)
# Seconds between two lines about a job that says nothing new.
_SILENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An accepted submission, and the provider that knows its job."""

    database: Database
    call: Call
    submission: int
    remote_ref: str
    provider: AnyJobProvider
    large: LargeArtifacts | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What an error about the job tells."""
        return {
            "task_id": self.call.task_id,
            "call_key": self.call.call_key,
            "submission": self.submission,
            "remote_ref": self.remote_ref,
        }

    def look(self) -> JobState:
        """Ask once how the job is, and write its end; a result that did not come whole is no end."""
        state = self.provider.poll(self.remote_ref)
        match state:
            case JobDone():
                with spool_for(self.call, self.large) as spool:
                    found = fetched(self.provider, self.remote_ref, state, spool.write)
                    if isinstance(found, JobUnknown):
                        return replace(found, reason=f"its result could not be fetched: {found.reason}")
                    self._store(state, found, spool)
            case JobFailed():
                cost = _cost_of(self.provider, state)
                self.database.run(
                    lambda c: submissions.end_job(c, self.call, self.submission, error=state.reason, cost=cost),
                    patience=OUTCOME_PATIENCE,
                )
            case JobRunning() | JobUnknown():
                pass
            case _:
                assert_never(state)
        logger.info("remote_job.polled", extra={"job": self.remote_ref, "state": type(state).__name__})
        return state

    def _store(self, done: JobDone, head: Mapping[str, object], spool: Spool) -> None:
        cost, answer = self.provider.cost_of(done), Answer(head=head, body=b"")
        outcome = Succeeded(answer=answer, remote_ref=self.remote_ref, cost=cost, cost_basis="reported")
        row = answer_row(outcome, SettledBy.POLL)
        row = stored_aside(row, self.call, self.submission, self.large, spool=spool)
        self.database.run(
            lambda c: submissions.record_answer(c, self.call, self.submission, row), patience=OUTCOME_PATIENCE
        )


def await_job(work: Work, call: Call, row: Submission, provider: AnyJobProvider) -> None:
    """Poll an accepted job until its result is in the ledger.

    Raises RemoteJobFailed for the job's own end, RemoteJobUnfinished when the poll budget is spent (nothing is written
    then, and nothing is lost), LeaseLost at once when somebody else owns the task.
    """
    reference = row.remote_ref or ""
    job = Job(
        database=work.database,
        call=call,
        submission=row.submission,
        remote_ref=reference,
        provider=provider,
        large=work.large,
    )
    told = _Told(work, f"Job {reference} of call {call.call_key!r} at {provider.name}")
    deadline = time.monotonic() + provider.poll_budget.total_seconds()
    polls = 0
    while True:
        work.check_lease()
        state = job.look()
        polls += 1
        told.state(state)
        if isinstance(state, JobDone):
            return
        if isinstance(state, JobFailed):
            raise _failed(job, state)
        wait = provider.pace.delay(polls, random.random()).total_seconds()  # noqa: S311 - spreads load, hides nothing
        if time.monotonic() + wait > deadline:
            raise _unfinished(job, state, wait)
        work.pause(wait)


def _failed(job: Job, state: JobFailed) -> RemoteJobFailed:
    return RemoteJobFailed(
        f"Job {job.remote_ref} of call {job.call.call_key!r} of task {job.call.task_id} ended at provider "
        f"{job.provider.name!r} without a result: {state.reason}. What it cost stays booked. The next attempt "
        "submits a new job.",
        cancelled=state.cancelled,
        **job.facts,
    )


def _unfinished(job: Job, state: JobState, wait: float) -> RemoteJobUnfinished:
    return RemoteJobUnfinished(
        f"Provider {job.provider.name!r} accepted call {job.call.call_key!r} of task {job.call.task_id} as job "
        f"{job.remote_ref}, which has not ended: {describe(state)}. It goes on there and is asked about later; it "
        "is not submitted again.",
        retry_after=wait,
        **job.facts,
    )


def cancel(
    database: Database, ref: TaskRef, call_key: str, providers: list[AnyProvider], *, who: Who, dry_run: bool = False
) -> Decision:
    """Ask the provider to stop an accepted job; what it says decides, and is kept with who asked and why.

    A job that had ended well meanwhile keeps its result, which the next run fetches. Raises DecisionRefused where there
    is no accepted job.
    """
    seen = current(database, ref, call_key)
    subject = f"{ref} {call_key}"
    if seen["state"] != SubmissionState.ACCEPTED:
        raise DecisionRefused(
            f"{subject}: submission {seen['submission']} is {seen['state']}; only an accepted job can be cancelled. "
            "Nothing was written.",
            verdict="changed",
            subject=subject,
        )
    provider = _provider_of(seen["provider"], providers)
    call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=seen["call_key"])
    state: JobState = JobUnknown(reason="not asked") if dry_run else provider.cancel(seen["remote_ref"])
    ended = isinstance(state, JobFailed)
    cost = _cost_of(provider, state) if isinstance(state, JobFailed) else None
    return decide(
        database,
        lambda c: decisions.cancel_job(
            c, call, seen["submission"], ended=ended, said=describe(state), cost=cost, who=who
        ),
        subject=subject,
        accepted="cancelled" if ended else "asked",
        refusals={
            "missing": "the submission does not exist.",
            "changed": "submission {before[submission]} is {before[state]} by now.",
        },
        dry_run=dry_run,
    )


def describe(state: JobState) -> str:
    """Say in a few words how a job is."""
    match state:
        case JobRunning():
            share = "" if state.progress is None else f", {state.progress:.0%} done"
            return f"{state.note or 'running'}{share}"
        case JobDone():
            return "it has ended well"
        case JobFailed() | JobUnknown():
            return state.reason
        case _:
            assert_never(state)


def _cost_of(provider: AnyJobProvider, state: JobFailed) -> Money | None:
    """Return what a job cost; less than nothing is a refund, and nothing that it cost: unknown."""
    cost = provider.cost_of(state)
    return cost if cost is None or cost.amount >= 0 else None


def _provider_of(name: str, providers: list[AnyProvider]) -> AnyJobProvider:
    for provider in providers:
        if provider.name == name and isinstance(provider, RemoteJobProvider):
            return provider
    given = ", ".join(repr(provider.name) for provider in providers)
    raise ConfigurationError(
        f"The job was submitted with provider {name!r}; given are {given or 'none'}. Nothing was asked or written.",
        field="providers",
    )


class _Told:
    """Tells how a job is when that has changed, and now and then when it has not."""

    def __init__(self, work: Work, subject: str) -> None:
        self._say = work.log
        self._subject = subject
        self._last = ""
        self._at = time.monotonic()

    def state(self, state: JobState) -> None:
        text = describe(state)
        if self._say is not None and (text != self._last or time.monotonic() - self._at > _SILENCE):
            self._say(f"{self._subject}: {text}.")
            self._last, self._at = text, time.monotonic()
