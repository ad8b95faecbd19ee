"""Every move of a submission and who may make it: each writer of the ledger, let loose on every state (R12-R14).

The tables below are protocol.md's. Together they must make every move that the domain allows, and no other: a writer
that finds a state which is not its own changes nothing.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import MOVES, CallKey, SettledBy, SubmissionState as S
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.store import decisions, submissions
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.decisions import Who
from dagster_idempotent.store.submissions import AnswerRow, Call

Sql = psycopg.Connection[dict[str, Any]]
Write = Callable[[Connection, Call], object]
SENDER, STRANGER = UUID(int=1), UUID(int=2)
WHO = Who(actor="ada", reason="the provider's invoice")
SHA = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
VOID_BY_MISTAKE = dict.fromkeys((S.NOT_SENT, S.REJECTED, S.ABANDONED), S.SUCCEEDED)


class Digest(BaseModel):
    title: str


WEEKLY = Pipeline("weekly_digest", output=Digest)


def answer(state: S, by: SettledBy) -> AnswerRow:
    done = state is S.SUCCEEDED
    return AnswerRow(
        state=state,
        settled_by=by,
        remote_ref="thing-1",
        response={} if done else None,
        body=b"" if done else None,
        sha256=SHA if done else None,
        cost=Decimal("0.02") if done else None,
        currency="USD" if done else None,
        cost_basis="computed" if done else None,
    )


def answered(state: S, by: SettledBy = SettledBy.SENDER) -> Write:
    return lambda c, call: submissions.record_answer(c, call, 1, answer(state, by))


def refused(state: S, sender: UUID | None) -> Write:
    return lambda c, call: submissions.record_refusal(c, call, 1, state=state, error="no", sender=sender, seen_sends=1)


def doubted(sender: UUID) -> Write:
    return lambda c, call: submissions.record_doubt(c, call, 1, sender=sender, error="lost", remote_ref=None)


def found_silent(c: Connection, call: Call) -> object:
    return submissions.mark_in_doubt(c, call, 1)


def resolved(state: S) -> Write:
    row = answer(state, SettledBy.OPERATOR)
    return lambda c, call: decisions.resolve_call(c, call, 1, row, seen_sends=1, evidence="seen", who=WHO)


def abandoned(c: Connection, call: Call) -> object:
    return decisions.abandon_call(c, call, 1, seen_sends=1, resend=False, amount=None, who=WHO)


def live(to: S) -> Mapping[S, S]:
    return {S.INTENDED: to, S.IN_DOUBT: to}


EXPIRED, ALIVE = "interval '-1 hour'", "interval '1 hour'"
# Who writes what, whether the sender's lease (and the settle delay) is over, how often it was sent, and what moves.
WRITERS: Mapping[str, tuple[Write, str, int, Mapping[S, S]]] = {
    "anybody, a success": (
        answered(S.SUCCEEDED),
        ALIVE,
        1,
        {**live(S.SUCCEEDED), S.ACCEPTED: S.SUCCEEDED, **VOID_BY_MISTAKE},
    ),
    "anybody, after a resend, a success": (
        answered(S.SUCCEEDED, SettledBy.LOOK_UP),
        EXPIRED,
        2,
        {**live(S.SUCCEEDED), S.ACCEPTED: S.SUCCEEDED, **VOID_BY_MISTAKE},
    ),
    "anybody, a reference": (
        answered(S.ACCEPTED),
        ALIVE,
        1,
        {**live(S.ACCEPTED), **dict.fromkeys(VOID_BY_MISTAKE, S.ACCEPTED)},
    ),
    "its sender, rejected": (refused(S.REJECTED, SENDER), ALIVE, 1, live(S.REJECTED)),
    "its sender, not sent": (refused(S.NOT_SENT, SENDER), ALIVE, 1, live(S.NOT_SENT)),
    "its sender, rejected at a resend": (refused(S.REJECTED, SENDER), ALIVE, 2, {}),
    "its sender, not sent at a resend": (refused(S.NOT_SENT, SENDER), ALIVE, 2, {}),
    "another sender, rejected": (refused(S.REJECTED, STRANGER), EXPIRED, 1, {}),
    "a look-up, not sent": (refused(S.NOT_SENT, None), EXPIRED, 1, {S.IN_DOUBT: S.NOT_SENT}),
    "a look-up, rejected": (refused(S.REJECTED, None), EXPIRED, 1, {S.IN_DOUBT: S.REJECTED}),
    "a look-up begun too early": (refused(S.NOT_SENT, None), ALIVE, 1, {}),
    "a look-up begun before a resend": (refused(S.NOT_SENT, None), EXPIRED, 2, {}),
    "its sender, gave up": (doubted(SENDER), ALIVE, 1, {S.INTENDED: S.IN_DOUBT}),
    "another sender, gave up": (doubted(STRANGER), ALIVE, 1, {}),
    "a finder of a silent sender": (found_silent, EXPIRED, 1, {S.INTENDED: S.IN_DOUBT}),
    "a finder of a live sender": (found_silent, ALIVE, 1, {}),
    "an operator, succeeded": (
        resolved(S.SUCCEEDED),
        EXPIRED,
        1,
        {**live(S.SUCCEEDED), S.ACCEPTED: S.SUCCEEDED},
    ),
    "an operator, accepted": (resolved(S.ACCEPTED), EXPIRED, 1, live(S.ACCEPTED)),
    "an operator, not sent": (resolved(S.NOT_SENT), EXPIRED, 1, live(S.NOT_SENT)),
    "an operator, rejected": (resolved(S.REJECTED), EXPIRED, 1, live(S.REJECTED)),
    "an operator, while its sender lives": (resolved(S.NOT_SENT), ALIVE, 1, {}),
    "an operator, before a resend": (resolved(S.NOT_SENT), EXPIRED, 2, {}),
    "an operator, abandoned": (abandoned, EXPIRED, 1, live(S.ABANDONED)),
    "an operator, abandoned while its sender lives": (abandoned, ALIVE, 1, {}),
}
# The end of a remote job is the poller's word; its tests stand with the remote jobs.
ELSEWHERE = {(S.ACCEPTED, S.FAILED)}


def test_the_writers_make_every_move_of_the_domain_and_no_other() -> None:
    made: set[tuple[S, S]] = set()
    for _, _, _, moves in WRITERS.values():
        for old, new in moves.items():
            # Of an intended row that an operator settles, the ledger makes one in doubt first.
            made.add((old, new))
    allowed = {(old, new) for old, following in MOVES.items() for new in following}
    assert allowed - made == ELSEWHERE
    assert made - allowed == {(S.INTENDED, S.ABANDONED)}


@pytest.fixture
def put(ledger: Database, sql: Sql) -> Callable[..., Call]:
    """Put one submission of a call of its own into any state."""
    task = Allocator(ledger).allocate(WEEKLY, Identity(pipeline="weekly_digest", explicit_key="k"))

    def do(state: S, *, lease: str, sends: int) -> Call:
        call = Call(pipeline="weekly_digest", task_id=TaskId(task.task_id), call_key=CallKey(f"in-{state}"))
        settled = state not in {S.INTENDED, S.IN_DOUBT}
        row = {
            **call.parameters(),
            "submission": 1,
            "state": state,
            "sender": str(SENDER),
            "sends": sends,
            "owner": "run",
            "fencing_token": 1,
            "provider": "p",
            "fingerprint": "f",
            "fingerprint_version": 1,
            "fingerprint_fields": {},
            "idempotency_key": "key",
            "key_no": 0,
            "lookup": "exact",
            "late": False,
            "settle_delay": "1 second",
            "intended_at": "2026-08-03",
            "remote_ref": "thing-1",
            "settled_by": "operator" if settled else None,
            "settled_at": "2026-08-03" if settled else None,
            "response_sha256": SHA if state is S.SUCCEEDED else None,
        }
        sql.execute("SET session_replication_role = replica")
        sql.execute(
            "INSERT INTO dagster_idempotent.submissions SELECT (jsonb_populate_record(NULL::"  # pyright: ignore[reportArgumentType]
            "dagster_idempotent.submissions, %(row)s || jsonb_build_object('sender_expires_at', "
            f"clock_timestamp() + {lease}, 'response_body', %(body)s::bytea))).*",
            {"row": Jsonb(row), "body": b"" if state is S.SUCCEEDED else None},
        )
        sql.execute("SET session_replication_role = origin")
        return call

    return do


@pytest.mark.parametrize("writer", list(WRITERS))
def test_a_writer_moves_what_is_its_own_and_nothing_else(
    ledger: Database, sql: Sql, put: Callable[..., Call], writer: str
) -> None:
    write, lease, sends, moves = WRITERS[writer]
    found: dict[S, S] = {}
    for state in S:
        if sends > 1 and state is S.INTENDED:
            continue  # a resend is of what is in doubt: no such row exists
        call = put(state, lease=lease, sends=sends)
        ledger.run(lambda c, call=call: write(c, call), patience=timedelta(seconds=5))
        query = "SELECT state FROM dagster_idempotent.submissions WHERE call_key = %s"
        row = sql.execute(query, [call.call_key]).fetchone()
        assert row is not None
        if row["state"] != state:
            found[state] = S(row["state"])
    expected = {old: new for old, new in moves.items() if not (sends > 1 and old is S.INTENDED)}
    assert found == expected
