"""Submissions: the intent, its outcome, and what a finder may write (R12-R18)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum, auto
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from dagster_idempotent.domain.fingerprint import Fingerprint
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import (
    CallKey,
    IdempotencyKey,
    LookUp,
    SettledBy,
    Submission,
    SubmissionState,
)
from dagster_idempotent.domain.task import Lease, TaskStatus
from dagster_idempotent.errors import BudgetExceeded
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row, submission_of
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.texts import storable

SQL = statements("submissions")
BUDGET_FULL = "DI001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a task: what every statement about a submission names."""

    pipeline: str
    task_id: TaskId
    call_key: CallKey

    def parameters(self) -> dict[str, object]:
        """Return the call as statement parameters."""
        return {"pipeline": self.pipeline, "task_id": self.task_id, "call_key": self.call_key}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """Everything that decides what a caller may do, in one snapshot."""

    status: TaskStatus
    owner: str | None
    token: int
    run_id: str | None
    ledger_id: UUID
    send_window: timedelta
    sender_lease: timedelta
    frozen_reason: str | None
    submissions: Sequence[Submission]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is committed before a request leaves."""

    submission: int
    sender: UUID
    provider: str
    fingerprint: Fingerprint
    idempotency_key: IdempotencyKey
    key_no: int
    lookup: LookUp
    settle_delay: timedelta
    key_window: timedelta | None
    expected_within: timedelta
    reserve: Money | None


class Recorded(StrEnum):
    """What became of a positive answer."""

    AS_ANSWER = auto()
    AS_LATE = auto()
    UNCHANGED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """Where the body of an answer was written, and the name of its artifact."""

    name: str
    uri: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """A positive answer as it is stored; `accepted` has a reference and no body yet."""

    state: SubmissionState
    settled_by: SettledBy
    remote_ref: str | None
    response: Mapping[str, object] | None
    body: bytes | None
    sha256: str | None
    cost: Decimal | None
    currency: str | None
    cost_basis: str | None
    file: AnswerFile | None = None


def read_call(connection: Connection, call: Call) -> CallState | None:
    """Read a call with its task, pipeline and ledger; None where the task does not exist."""
    rows = connection.execute(SQL["read_call"], call.parameters()).fetchall()
    if not rows:
        return None
    head = rows[0]
    return CallState(
        status=TaskStatus(head["status"]),
        owner=head["task_owner"],
        token=head["task_token"],
        run_id=head["run_id"],
        ledger_id=UUID(str(head["ledger_id"])),
        send_window=head["send_window"],
        sender_lease=head["sender_lease"],
        frozen_reason=head["frozen_reason"],
        submissions=[submission_of(row) for row in rows if row["submission"] is not None],
    )


def unsettled_calls(connection: Connection, pipeline: str, task_id: TaskId) -> Sequence[tuple[CallKey, str]]:
    """List the calls of a task whose outcome is not known, each with its provider's name."""
    rows = connection.execute(SQL["unsettled_calls"], {"pipeline": pipeline, "task_id": task_id})
    return [(row["call_key"], row["provider"]) for row in rows]


def list_calls(connection: Connection, pipeline: str, task_id: TaskId) -> Sequence[Row]:
    """List every submission of a task, without its payload."""
    return connection.execute(SQL["settled_calls"], {"pipeline": pipeline, "task_id": task_id}).fetchall()


def intend(connection: Connection, call: Call, lease: Lease, intent: Intent, *, send_window: timedelta) -> Row:
    """Commit the intent; return the row with its `verdict`. Raises BudgetExceeded where a limit is full."""
    values = {
        **call.parameters(),
        "submission": intent.submission,
        "sender": str(intent.sender),
        "owner": lease.owner,
        "fencing_token": lease.token,
        "provider": intent.provider,
        "fingerprint": intent.fingerprint.digest,
        "fingerprint_version": intent.fingerprint.version,
        "fingerprint_fields": dict(intent.fingerprint.fields),
        "idempotency_key": intent.idempotency_key,
        "key_no": intent.key_no,
        "lookup": str(intent.lookup),
        "settle_delay": _interval(intent.settle_delay),
        "key_window": intent.key_window and _interval(intent.key_window),
        "expected_within": _interval(intent.expected_within),
    }
    parameters = {
        "intent": Jsonb(values),
        "send_window": send_window,
        "reserve": None if intent.reserve is None else intent.reserve.amount,
        "reserve_currency": None if intent.reserve is None else intent.reserve.currency,
    }
    try:
        row = connection.execute(SQL["intend"], parameters).fetchone()
    except psycopg.Error as error:
        if error.sqlstate != BUDGET_FULL:
            raise
        scope = error.diag.message_primary
        raise BudgetExceeded(
            f"Call {call.call_key!r} of task {call.task_id} would reserve {intent.reserve}, which does not fit the "
            f"budget of {scope}. Nothing was sent. Raise the limit, or wait until reserved amounts are settled.",
            task_id=call.task_id,
            call_key=call.call_key,
            scope=scope,
        ) from error
    if row is None:  # the function always returns one row
        raise psycopg.InternalError("intend returned no row")
    return row


def record_answer(connection: Connection, call: Call, submission: int, answer: AnswerRow) -> Recorded:
    """Write a positive answer, whoever received it.

    A row on which nothing is left to write (succeeded already, failed) is left as it is. Where another submission is
    live the answer is kept as late, its cost booked.
    """
    parameters = {"answer": Jsonb(_answer(call, submission, answer)), "body": answer.body}
    while True:
        try:
            written = connection.execute(SQL["record_answer"], parameters).fetchone()
        except psycopg.errors.UniqueViolation:
            kept = connection.execute(SQL["keep_late_answer"], parameters).fetchone()
        else:
            return Recorded.UNCHANGED if written is None else Recorded.AS_ANSWER
        if kept is not None:
            return Recorded.AS_LATE
        # The live submission has become void between the two statements: adopt after all.


def adopt_late_answer(connection: Connection, call: Call, submission: int) -> bool:
    """Make a late answer the call's answer, now that no other submission is live."""
    try:
        adopted = connection.execute(SQL["adopt_late_answer"], _numbered(call, submission)).fetchone()
    except psycopg.errors.UniqueViolation:
        return False
    return adopted is not None


def end_job(connection: Connection, call: Call, submission: int, *, error: str, cost: Money | None) -> bool:
    """Write a remote job's own end without a result; return whether it was accepted until now."""
    parameters = _numbered(call, submission) | {
        "error": storable(error),
        "cost": None if cost is None else cost.amount,
        "currency": None if cost is None else cost.currency,
    }
    return connection.execute(SQL["end_job"], parameters).fetchone() is not None


def record_refusal(
    connection: Connection,
    call: Call,
    submission: int,
    *,
    state: SubmissionState,
    error: str,
    sender: UUID | None,
    seen_sends: int,
    remote_ref: str | None = None,
) -> bool:
    """Write not_sent or rejected, by its sender or (sender None) by a look-up; return whether it counted.

    A refusal may name what it is about: the provider's `remote_ref` is kept.
    """
    parameters = _numbered(call, submission) | {
        "state": state,
        "error": storable(error),
        "sender": sender,
        "seen_sends": seen_sends,
        "remote_ref": _reference(remote_ref),
    }
    return connection.execute(SQL["record_refusal"], parameters).fetchone() is not None


def record_doubt(
    connection: Connection, call: Call, submission: int, *, sender: UUID, error: str, remote_ref: str | None
) -> None:
    """Write in_doubt, by the sender that gave up waiting."""
    parameters = _numbered(call, submission) | {
        "sender": sender,
        "error": storable(error),
        "remote_ref": _reference(remote_ref),
    }
    connection.execute(SQL["record_doubt"], parameters)


def mark_in_doubt(connection: Connection, call: Call, submission: int) -> None:
    """Write in_doubt, by a finder, where the sender's lease is over."""
    connection.execute(SQL["mark_in_doubt"], _numbered(call, submission))


def claim_resend(connection: Connection, call: Call, lease: Lease, seen: Submission, *, sender: UUID) -> str:
    """Claim a same-key resend of a submission in doubt; return claimed, lease_lost, frozen, gate or refused."""
    parameters = _numbered(call, seen.submission) | {
        "sender": sender,
        "seen_sends": seen.sends,
        "fingerprint": seen.fingerprint.digest,
        "owner": lease.owner,
        "token": lease.token,
    }
    row = connection.execute(SQL["claim_resend"], parameters).fetchone()
    if row is None:  # the function always returns one row
        raise psycopg.InternalError("claim_resend returned no row")
    return row["verdict"]


def renew_senders(connection: Connection, senders: Sequence[UUID]) -> set[UUID]:
    """Renew the sender leases of a process; return the senders that still have an outcome to write."""
    rows = connection.execute(SQL["renew_senders"], {"senders": list(senders)})
    return {UUID(str(row["sender"])) for row in rows}


def _interval(duration: timedelta) -> str:
    return f"{duration // timedelta(microseconds=1)} microseconds"


def _answer(call: Call, submission: int, answer: AnswerRow) -> dict[str, object]:
    return {
        **call.parameters(),
        "submission": submission,
        "state": str(answer.state),
        "settled_by": str(answer.settled_by),
        "remote_ref": _reference(answer.remote_ref),
        "response": None if answer.response is None else _head(answer.response),
        "response_sha256": answer.sha256,
        "cost": None if answer.cost is None else str(answer.cost),
        "currency": answer.currency,
        "cost_basis": answer.cost_basis,
        **_file(answer.file),
    }


def _file(file: AnswerFile | None) -> dict[str, object]:
    if file is None:
        return {}
    return {
        "response_artifact": file.name,
        "file_uri": file.uri,
        "file_size": file.size,
        "file_media_type": storable(file.media_type) or "application/octet-stream",
    }


def _reference(text: str | None) -> str | None:
    return storable(text) or None if text is not None else None


def _head(head: Mapping[str, object]) -> Mapping[str, object]:
    """Return the head of a paid answer so that nothing in it can keep the answer out of the ledger."""
    return {storable(name): storable(value) if isinstance(value, str) else value for name, value in head.items()}


def _numbered(call: Call, submission: int) -> dict[str, object]:
    return call.parameters() | {"submission": submission}
