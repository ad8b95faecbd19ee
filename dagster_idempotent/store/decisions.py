"""What operators decide: one statement each, which locks, decides, writes and audits, or writes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.submissions import AnswerRow, Call
from dagster_idempotent.store.texts import storable

SQL = statements("decisions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Who decides and why; both are kept in the audit trail."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a decision, and what it was about before and after."""

    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def resolve_call(
    connection: Connection,
    call: Call,
    submission: int,
    answer: AnswerRow,
    *,
    seen_sends: int,
    evidence: str,
    who: Who,
) -> Verdict:
    """Write what an operator's evidence proves of a submission in doubt."""
    values = {
        **call.parameters(),
        "submission": submission,
        "state": str(answer.state),
        "remote_ref": answer.remote_ref,
        "response": answer.response,
        "response_sha256": answer.sha256,
        "cost": None if answer.cost is None else str(answer.cost),
        "currency": answer.currency,
        "cost_basis": answer.cost_basis,
    }
    return _decide(
        connection,
        SQL["resolve_call"],
        {"answer": Jsonb(values), "body": answer.body, "seen_sends": seen_sends, "evidence": storable(evidence)},
        who,
    )


def abandon_call(
    connection: Connection,
    call: Call,
    submission: int,
    *,
    seen_sends: int,
    resend: bool,
    amount: Money | None,
    who: Who,
) -> Verdict:
    """Give up on a submission in doubt; with `resend`, allow another one after it."""
    parameters = call.parameters() | {
        "submission": submission,
        "seen_sends": seen_sends,
        "resend": resend,
        "amount": None if amount is None else amount.amount,
        "currency": None if amount is None else amount.currency,
    }
    return _decide(connection, SQL["abandon_call"], parameters, who)


def cancel_job(
    connection: Connection, call: Call, submission: int, *, ended: bool, said: str, cost: Money | None, who: Who
) -> Verdict:
    """Write what a provider said to a cancellation: `ended` where the job is over without a result."""
    parameters = call.parameters() | {
        "submission": submission,
        "ended": ended,
        "said": storable(said),
        "cost": None if cost is None else cost.amount,
        "currency": None if cost is None else cost.currency,
    }
    return _decide(connection, SQL["cancel_job"], parameters, who)


def acknowledge_charges(connection: Connection, call: Call, *, who: Who) -> Verdict:
    """Write that a person has seen to the double charges of a call."""
    return _decide(connection, SQL["acknowledge_charges"], call.parameters(), who)


def move_task(connection: Connection, pipeline: str, task_id: TaskId, *, action: str, who: Who) -> Verdict:
    """Release, release_budget, redrive or discard a task."""
    return _decide(connection, SQL["move_task"], {"pipeline": pipeline, "task_id": task_id, "action": action}, who)


def approve(
    connection: Connection, pipeline: str, task_id: TaskId, *, shown: str, up_to: Money | None, who: Who
) -> Verdict:
    """Open the gate of a task for what was shown, by its hash."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "shown": shown,
        "amount": None if up_to is None else up_to.amount,
        "currency": None if up_to is None else up_to.currency,
    }
    return _decide(connection, SQL["approve"], parameters, who)


def revoke(connection: Connection, approval: int, *, who: Who) -> Verdict:
    """Take an approval back."""
    return _decide(connection, SQL["revoke"], {"id": approval}, who)


def freeze(connection: Connection, pipeline: str, *, why: str | None, who: Who) -> Verdict:
    """Stop every new paid call of a pipeline (`why` None: let them start again)."""
    return _decide(connection, SQL["freeze"], {"pipeline": pipeline, "why": why}, who)


def wait_for_intents(connection: Connection, pipeline: str) -> None:
    """Wait until every intent that began before a freeze was committed has committed too."""
    for name in ("wait_for_intents", "wait_for_delivery_intents"):
        connection.execute(SQL[name], {"pipeline": pipeline})


def set_limit(
    connection: Connection, pipeline: str, scope: str, *, currency: str, limit: Decimal | None, who: Who
) -> Verdict:
    """Set or lift the limit of one budget counter."""
    return _decide(
        connection,
        SQL["set_limit"],
        {"pipeline": pipeline, "scope": scope, "currency": currency, "limit": limit},
        who,
    )


def resolve_message(
    connection: Connection, pipeline: str, task_id: TaskId, channel: str, *, state: str, evidence: str, who: Who
) -> Verdict:
    """Write what an operator knows of a delivery."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "channel": channel,
        "state": state,
        "evidence": storable(evidence),
    }
    return _decide(connection, SQL["resolve_message"], parameters, who)


def prune(
    connection: Connection,
    pipeline: str,
    *,
    before: datetime,
    after: tuple[datetime, str] | None,
    limit: int,
    who: Who,
) -> Row:
    """Drop the bodies of one batch of ended tasks, in the order of their end; `after` is where the last one stopped."""
    parameters = {
        "pipeline": pipeline,
        "before": before,
        "after_at": None if after is None else after[0],
        "after_task": None if after is None else after[1],
        "limit": limit,
        "actor": storable(who.actor),
        "reason": storable(who.reason),
    }
    row = connection.execute(SQL["prune"], parameters).fetchone()
    if row is None:  # the function always returns one row
        raise psycopg.InternalError("prune returned no row")
    return row


def _decide(connection: Connection, statement: LiteralString, parameters: dict[str, Any], who: Who) -> Verdict:
    row = connection.execute(
        statement, parameters | {"actor": storable(who.actor), "reason": storable(who.reason)}
    ).fetchone()
    if row is None:  # every function returns one row
        raise psycopg.InternalError("a decision returned no row")
    return Verdict(name=row["verdict"], before=row["before"], after=row["after"])
