"""Reconciliation: making a submission in doubt final by the provider's own answer (R13, R14).

It needs no lease: every write is a compare-and-swap on what was read before the look-up began.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import (
    LookUp,
    SettledBy,
    Submission,
    SubmissionState,
    current_of,
    keys_of,
)
from dagster_idempotent.engine import sightings
from dagster_idempotent.errors import CredentialMissing
from dagster_idempotent.providers.outcome import (
    Finding,
    LookUpFailed,
    NotFound,
    PossibleMatches,
    Rejected,
    Succeeded,
    Unfinished,
)
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.submissions import AnswerRow, Call

logger = logging.getLogger(__name__)
# A paid answer in memory is worth waiting for a database that is away.
OUTCOME_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What a look-up brought: `settled`, else why not, and after how many seconds asking again can bring more."""

    settled: bool
    reason: str = ""
    retry_after: float | None = None


SETTLED = Reconciled(settled=True)


def reconcile_task(
    database: Database, pipeline: str, task_id: TaskId, providers: Sequence[AnyProvider]
) -> Sequence[Reconciled]:
    """Look up every call of a task that is in doubt, where one of `providers` made it."""
    by_name = {provider.name: provider for provider in providers}
    unsettled = database.run(lambda c: submissions.unsettled_calls(c, pipeline, task_id))
    results: list[Reconciled] = []
    for call_key, name in unsettled:
        provider = by_name.get(name)
        if provider is not None:
            results.append(
                reconcile_call(database, Call(pipeline=pipeline, task_id=task_id, call_key=call_key), provider)
            )
    return results


def reconcile_call(database: Database, call: Call, provider: AnyProvider) -> Reconciled:
    """Look up one call, if it is in doubt, and write what the provider's answer proves."""
    state = database.run(lambda c: submissions.read_call(c, call))
    current = None if state is None else current_of(state.submissions)
    if state is None or current is None:
        return SETTLED
    if current.state is SubmissionState.INTENDED:
        if not current.expired:
            wait = current.sender_expires_in.total_seconds()
            return Reconciled(settled=False, reason="its sender is alive", retry_after=wait)
        database.run(lambda c: submissions.mark_in_doubt(c, call, current.submission))
        return reconcile_call(database, call, provider)
    if current.state is not SubmissionState.IN_DOUBT:
        return SETTLED
    if provider.lookup is LookUp.NONE:
        return Reconciled(settled=False, reason=f"provider {provider.name!r} has no look-up")
    try:
        finding: Finding = provider.find(keys_of(state.submissions))
    except CredentialMissing as error:
        finding = LookUpFailed(reason=error.message)
    logger.info("reconciliation.looked_up", extra={"call": call.call_key, "finding": type(finding).__name__})
    if provider.lookup is LookUp.FUZZY:
        shown = sightings.possible_matches(database, call, current, finding)
        reason = f"provider {provider.name!r} has only a fuzzy look-up, which never decides alone; {shown}"
        return Reconciled(settled=False, reason=reason)
    return _apply(database, call, current, finding)


def _apply(database: Database, call: Call, seen: Submission, finding: Finding) -> Reconciled:
    match finding:
        case Succeeded():
            row = answer_row(finding, SettledBy.LOOK_UP)
            database.run(lambda c: submissions.record_answer(c, call, seen.submission, row), patience=OUTCOME_PATIENCE)
            sightings.note(database, call, seen, finding)
            return SETTLED
        case Unfinished(remote_ref=str() as reference):
            row = accepted_row(reference, SettledBy.LOOK_UP)
            database.run(lambda c: submissions.record_answer(c, call, seen.submission, row))
            sightings.note(database, call, seen, finding)
            return SETTLED
        case PossibleMatches():
            return Reconciled(settled=False, reason="the look-up is called exact and shows only possible matches")
        case Unfinished():
            return Reconciled(settled=False, reason="the provider accepted it and is not finished", retry_after=10.0)
        case Rejected():
            return _refuse(database, call, seen, SubmissionState.REJECTED, finding)
        case NotFound(complete=True):
            return _refuse(database, call, seen, SubmissionState.NOT_SENT)
        case NotFound():
            return Reconciled(settled=False, reason="the provider's search was not complete")
        case LookUpFailed():
            return Reconciled(settled=False, reason=f"the look-up failed: {finding.reason}", retry_after=10.0)
        case _:
            assert_never(finding)


def _refuse(
    database: Database,
    call: Call,
    seen: Submission,
    state: SubmissionState,
    finding: Rejected | None = None,
) -> Reconciled:
    """Write a look-up's no, which counts only where the look-up began after the settle delay."""
    if not seen.settle_delay_over:
        wait = max(0.1, seen.settles_in.total_seconds())
        return Reconciled(settled=False, reason="the request may still land at the provider", retry_after=wait)
    written = database.run(
        lambda c: submissions.record_refusal(
            c,
            call,
            seen.submission,
            state=state,
            error="looked up: the provider does not know it" if finding is None else finding.reason,
            sender=None,
            seen_sends=seen.sends,
            remote_ref=None if finding is None else finding.remote_ref,
        )
    )
    return SETTLED if written else Reconciled(settled=False, reason="somebody else acted meanwhile", retry_after=0.1)


def accepted_row(remote_ref: str, settled_by: SettledBy) -> AnswerRow:
    """Return the row of a remote job that was taken in: a reference, and no answer yet (R13)."""
    return AnswerRow(
        state=SubmissionState.ACCEPTED,
        settled_by=settled_by,
        remote_ref=remote_ref,
        response=None,
        body=None,
        sha256=None,
        cost=None,
        currency=None,
        cost_basis=None,
    )


def answer_row(outcome: Succeeded, settled_by: SettledBy) -> AnswerRow:
    """Turn a provider's answer into the row that keeps it."""
    cost = outcome.cost if outcome.cost is not None and outcome.cost.amount >= 0 else None
    return AnswerRow(
        state=SubmissionState.SUCCEEDED,
        settled_by=settled_by,
        remote_ref=outcome.remote_ref,
        response=outcome.answer.head,
        body=outcome.answer.body,
        sha256=outcome.answer.sha256,
        cost=None if cost is None else cost.amount,
        currency=None if cost is None else cost.currency,
        cost_basis=None if cost is None else outcome.cost_basis,
    )
