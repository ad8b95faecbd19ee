"""An operator's word about a call in doubt: evidence, giving up, or sending again knowingly (R14)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import CallKey, SettledBy, SubmissionState
from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.engine.listing import unknown_call
from dagster_idempotent.errors import ConfigurationError, DecisionRefused
from dagster_idempotent.providers.outcome import Answer
from dagster_idempotent.store import decisions, listing
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.submissions import AnswerRow, Call

_SENDING = "its sender is alive until {after[until]}. Wait: its own answer is the best evidence there is."
_REFUSALS = {
    "sending": _SENDING,
    "changed": "submission {before[submission]} is {before[state]}, sent {before[sends]} time(s), and not in doubt as "
    "it was when it was read. Look again with `dagster-idempotent calls show`. Of an accepted job only its end can be "
    "told: succeeded or failed.",
    "too_early": "the request may still land at the provider until {after[until]}; before that, not finding it proves "
    "nothing. Look again at the provider after that.",
    "late_answer": "a paid answer is on record; the next run uses it without sending anything.",
    "ended": "the task is {after[status]}: nothing would send this call again. A second charge buys nothing.",
    "missing": "the submission does not exist.",
}


class Proof(StrEnum):
    """What an operator's evidence says about a request."""

    SUCCEEDED = "succeeded"
    ACCEPTED = "accepted"
    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the operator found outside: a ticket, an invoice line, a screenshot; for a success also its answer."""

    proof: Proof
    told: str
    answer: bytes | None = None
    remote_ref: str | None = None
    cost: Money | None = None

    def __post_init__(self) -> None:
        if self.proof is Proof.SUCCEEDED and self.answer is None:
            raise ConfigurationError(
                "A call is resolved as succeeded with its answer, which later runs replay. Give the answer's body as "
                "the provider returned it; without one, resolve it as accepted, or abandon it.",
                field="answer",
            )
        if self.proof is Proof.ACCEPTED and not self.remote_ref:
            raise ConfigurationError(
                "A call is resolved as accepted with the provider's reference, by which the next run asks for the "
                "answer. Give the reference.",
                field="remote_ref",
            )
        if self.proof is Proof.FAILED and self.answer is not None:
            raise ConfigurationError(
                "A job that failed has no answer. Leave it out, or resolve the job as succeeded.", field="answer"
            )
        if self.proof in (Proof.NOT_SENT, Proof.REJECTED) and (self.answer is not None or self.cost is not None):
            raise ConfigurationError(
                f"A call that was {self.proof} has no answer and no cost. Leave them out, or resolve it as succeeded.",
                field="answer",
            )


def resolve(
    database: Database, ref: TaskRef, call_key: str, evidence: Evidence, *, who: Who, dry_run: bool = False
) -> Decision:
    """Make a call in doubt final by evidence; raises DecisionRefused where it is not in doubt, or too early."""
    seen = current(database, ref, call_key)
    call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=CallKey(call_key))
    row = _row(evidence)
    return decide(
        database,
        lambda c: decisions.resolve_call(
            c, call, seen["submission"], row, seen_sends=seen["sends"], evidence=evidence.told, who=who
        ),
        subject=f"{ref} {call_key}",
        accepted="resolved",
        refusals=_REFUSALS,
        dry_run=dry_run,
    )


def abandon(database: Database, ref: TaskRef, call_key: str, *, who: Who, dry_run: bool = False) -> Decision:
    """Give up on the answer of a call in doubt; it counts as paid, at its upper bound."""
    return _abandon(database, ref, call_key, resend=False, amount=None, who=who, dry_run=dry_run)


def resend(
    database: Database, ref: TaskRef, call_key: str, *, amount: Money | None, who: Who, dry_run: bool = False
) -> Decision:
    """Allow a call to be sent again, knowing that it may charge twice; the next run of the task sends it.

    `amount` is what the second charge may come to; None takes what was reserved for the first.
    """
    return _abandon(database, ref, call_key, resend=True, amount=amount, who=who, dry_run=dry_run)


def acknowledge(database: Database, ref: TaskRef, call_key: str, *, who: Who, dry_run: bool = False) -> Decision:
    """Say that the double charges of a call have been seen to, by a refund or otherwise; booked costs stay."""
    current(database, ref, call_key)  # raises where there is no such call
    call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=CallKey(call_key))
    return decide(
        database,
        lambda c: decisions.acknowledge_charges(c, call, who=who),
        subject=f"{ref} {call_key}",
        accepted="acknowledged",
        refusals={"nothing": "nothing of it was charged twice, or somebody has seen to it."},
        dry_run=dry_run,
    )


def current(database: Database, ref: TaskRef, call_key: str) -> dict[str, Any]:
    """Read the current submission of a call: the live one, else the last."""
    rows = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, call_key=call_key))
    found = current_row(rows)
    if found is None:
        raise unknown_call(database, ref, call_key)
    return found


def current_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Pick the live submission of one call's rows, else the last."""
    live = [row for row in rows if row["state"] in ("intended", "in_doubt", "accepted", "succeeded")]
    return live[0] if live else rows[-1] if rows else None


def _abandon(
    database: Database, ref: TaskRef, call_key: str, *, resend: bool, amount: Money | None, who: Who, dry_run: bool
) -> Decision:
    seen = current(database, ref, call_key)
    if resend and seen["resend_allowed_by"]:
        raise DecisionRefused(
            f"{ref} {call_key}: {seen['resend_allowed_by']} has allowed it already; launch the task again. "
            "Nothing was written.",
            verdict="changed",
            subject=f"{ref} {call_key}",
        )
    call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=CallKey(call_key))
    return decide(
        database,
        lambda c: decisions.abandon_call(
            c, call, seen["submission"], seen_sends=seen["sends"], resend=resend, amount=amount, who=who
        ),
        subject=f"{ref} {call_key}",
        accepted="resend_allowed" if resend else "abandoned",
        refusals=_REFUSALS,
        dry_run=dry_run,
    )


def _row(evidence: Evidence) -> AnswerRow:
    answer = None if evidence.answer is None else Answer(head={"resolved_by_operator": True}, body=evidence.answer)
    if answer is not None:
        _check_text(answer.body)
    return AnswerRow(
        state=SubmissionState(evidence.proof),
        settled_by=SettledBy.OPERATOR,
        remote_ref=evidence.remote_ref,
        response=None if answer is None else answer.head,
        body=None if answer is None else answer.body,
        sha256=None if answer is None else answer.sha256,
        cost=None if evidence.cost is None else evidence.cost.amount,
        currency=None if evidence.cost is None else evidence.cost.currency,
        cost_basis=None if evidence.cost is None else "reported",
    )


def _check_text(body: bytes) -> None:
    """Refuse a file that starts like JSON and is none: later runs would stumble over it for ever."""
    if body[:1] not in (b"{", b"["):
        return
    try:
        json.loads(body)
    except ValueError as error:
        raise ConfigurationError(
            f"The answer starts like JSON and cannot be read: {error}. Store the provider's answer unchanged.",
            field="answer",
        ) from error
