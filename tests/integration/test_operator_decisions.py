"""What operators decide, against senders, claimants and other operators that act at the same time."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine import dead_letters, freezing, resolutions, retention
from dagster_idempotent.engine.allocator import Allocator, get_task
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.explain import explain
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.engine.verify import verify
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import CallInDoubt, DecisionRefused, IdempotentError
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.testing.metered_provider import MeteredProvider

WHO = Who(actor="ada", reason="ticket 812")
CALL = CallKey("summary")
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
Sql = psycopg.Connection[dict[str, Any]]


class Output(BaseModel):
    text: str


PIPELINE: Pipeline[Any] = Pipeline("decided", output=Output)


@pytest.fixture
def provider(metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> ChatCompletionsProvider:
    monkeypatch.setenv("METERED_PROVIDER_KEY", "sk-made-up")
    return ChatCompletionsProvider(
        base_url=metered_provider.base_url,
        api_key_variable="METERED_PROVIDER_KEY",
        settle_delay=timedelta(milliseconds=10),
        cost_of=lambda _: Money.parse("0.02 USD"),
        upper_bound=Money.parse("0.05 USD"),
    )


@pytest.fixture
def ref(ledger: Database) -> TaskRef:
    identity = Identity(pipeline=PIPELINE.name, scheduled_at=datetime(2026, 8, 3, tzinfo=UTC))
    return TaskRef(pipeline=PIPELINE.name, task_id=Allocator(ledger).allocate(PIPELINE, identity).task_id)


@contextmanager
def working(ledger: Database, ref: TaskRef, owner: str) -> Iterator[Work]:
    work = claim(ledger, Heartbeat(ledger), PIPELINE, ref.task_id, Owner(owner), is_finished=lambda _: True)
    with work.renewed():
        yield work


@pytest.fixture
def doubtful(
    ledger: Database, ref: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider, sql: Sql
) -> TaskRef:
    """Give a held task whose call was accepted, charged, and its answer lost, long enough ago."""
    metered_provider.fault("accept_then_drop")
    with working(ledger, ref, "first") as work, pytest.raises(CallInDoubt):
        Guard(work, provider).call(CALL, REQUEST)
    sql.execute("UPDATE dagster_idempotent.submissions SET sender_expires_at = clock_timestamp() - interval '1 hour'")
    return ref


def test_of_many_operators_exactly_one_decides(ledger: Database, doubtful: TaskRef) -> None:
    barrier = threading.Barrier(6)

    def decide(number: int) -> str:
        barrier.wait()
        try:
            if number % 2:
                told = Evidence(proof=Proof.NOT_SENT, told="not in the console")
                return resolutions.resolve(ledger, doubtful, CALL, told, who=WHO).action
            return resolutions.abandon(ledger, doubtful, CALL, who=WHO).action
        except DecisionRefused as refused:
            return str(refused.facts["verdict"])

    with ThreadPoolExecutor(6) as pool:
        done = sorted(pool.map(decide, range(6)))
    assert done.count("changed") == 5
    assert verify(ledger).sound


def test_a_paid_answer_that_comes_after_a_wrong_word_is_adopted(
    ledger: Database, doubtful: TaskRef, sql: Sql, metered_provider: MeteredProvider, provider: ChatCompletionsProvider
) -> None:
    told = Evidence(proof=Proof.NOT_SENT, told="not in the console")
    resolutions.resolve(ledger, doubtful, CALL, told, who=WHO)
    _receive_answer(sql, doubtful)
    with working(ledger, doubtful, "second") as work:
        result = Guard(work, provider).call(CALL, REQUEST)
    assert (result.replayed, metered_provider.charges) == (True, 1)


def test_two_runs_after_a_resend_send_it_once(
    ledger: Database, doubtful: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider, sql: Sql
) -> None:
    resolutions.resend(ledger, doubtful, CALL, amount=None, who=WHO)
    metered_provider.fault("hold")
    with working(ledger, doubtful, "second") as work:
        same = Work(database=ledger, heartbeat=work.heartbeat, pipeline=work.pipeline, task=work.task, lease=work.lease)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(Guard(work, provider).call, CALL, REQUEST)
            metered_provider.wait_held()
            with pytest.raises(IdempotentError, match="is being sent"):
                Guard(same, provider).call(CALL, REQUEST)
            metered_provider.release()
            assert not first.result().replayed
    assert metered_provider.charges == 2
    (permission,) = sql.execute("SELECT * FROM dagster_idempotent.resends").fetchall()
    assert (permission["actor"], permission["reason"], str(permission["amount"])) == ("ada", "ticket 812", "0.05")


def test_the_first_answer_coming_after_a_resend_is_kept_and_shown_in_red(
    ledger: Database, doubtful: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider, sql: Sql
) -> None:
    resolutions.resend(ledger, doubtful, CALL, amount=Money.parse("0.03 USD"), who=WHO)
    with working(ledger, doubtful, "second") as work:
        Guard(work, provider).call(CALL, REQUEST)
    _receive_answer(sql, doubtful)
    found = verify(ledger)
    assert (found.sound, len(found.notices), metered_provider.charges) == (True, 1, 2)
    assert any(line.startswith("RED: call summary, submission 1") for line in explain(ledger, doubtful).evidence)
    query = "SELECT settled FROM dagster_idempotent.budgets WHERE scope = 'pipeline'"
    assert str((sql.execute(query).fetchone() or {})["settled"]) == "0.04"


def test_a_permission_is_used_up_by_one_submission(
    ledger: Database, doubtful: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider
) -> None:
    resolutions.resend(ledger, doubtful, CALL, amount=None, who=WHO)
    metered_provider.fault("accept_then_drop")
    with working(ledger, doubtful, "second") as work, pytest.raises(CallInDoubt):
        Guard(work, provider).call(CALL, REQUEST)
    with pytest.raises(IdempotentError, match="held"), working(ledger, doubtful, "third"):
        pass
    assert metered_provider.charges == 2


def test_a_freeze_waits_for_the_intent_under_way_and_stops_the_next(
    ledger: Database, ref: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider, sql: Sql
) -> None:
    with working(ledger, ref, "first") as work:
        with ThreadPoolExecutor(1) as pool:
            with sql.transaction():
                # As an intent holds its task until it commits.
                sql.execute("SELECT FROM dagster_idempotent.tasks FOR SHARE")
                frozen = pool.submit(freezing.freeze, ledger, PIPELINE.name, who=WHO)
                with pytest.raises(TimeoutError):
                    frozen.result(timeout=0.3)
            assert frozen.result(timeout=30).after["running_tasks"] == 1
        with pytest.raises(IdempotentError, match="is frozen"):
            Guard(work, provider).call(CALL, REQUEST)
    assert metered_provider.charges == 0


def test_a_redriven_task_keeps_its_paid_answers(
    ledger: Database, ref: TaskRef, provider: ChatCompletionsProvider, metered_provider: MeteredProvider, sql: Sql
) -> None:
    with working(ledger, ref, "first") as work:
        Guard(work, provider).call(CALL, REQUEST)
        work.fail("the answer was no good", final=True)
    with pytest.raises(IdempotentError, match="is dead"), working(ledger, ref, "second"):
        pass
    dead_letters.redrive(ledger, ref, who=WHO)
    with working(ledger, ref, "third") as work:
        assert Guard(work, provider).call(CALL, REQUEST).replayed
    assert metered_provider.charges == 1
    row = sql.execute("SELECT before, after FROM dagster_idempotent.audit WHERE action = 'redrive'").fetchone() or {}
    assert (row["before"]["status"], row["after"]["status"], row["after"]["attempts"]) == ("dead", "pending", 0)


def test_a_decision_and_its_audit_row_are_one_transaction(ledger: Database, doubtful: TaskRef, sql: Sql) -> None:
    sql.execute(
        "CREATE FUNCTION refuse_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no audit today'; END $$"
    )
    sql.execute(
        "CREATE TRIGGER broken BEFORE INSERT ON dagster_idempotent.audit FOR EACH ROW EXECUTE FUNCTION refuse_audit()"
    )
    for decision in (
        lambda: resolutions.abandon(ledger, doubtful, CALL, who=WHO),
        lambda: freezing.freeze(ledger, PIPELINE.name, who=WHO),
    ):
        with pytest.raises(psycopg.Error, match="no audit today"):
            decision()
    assert get_task(ledger, doubtful.pipeline, doubtful.task_id).status == "held"
    assert (sql.execute("SELECT state FROM dagster_idempotent.submissions").fetchone() or {})["state"] == "in_doubt"
    assert (sql.execute("SELECT frozen_reason FROM dagster_idempotent.pipelines").fetchone() or {})[
        "frozen_reason"
    ] is None


def test_pruning_never_stands_in_the_way_of_allocation(ledger: Database, ref: TaskRef, ledger_url: str) -> None:
    with psycopg.connect(ledger_url) as pruning:
        pruning.execute(
            "SELECT * FROM dagster_idempotent.prune_v1(%s, clock_timestamp(), NULL, NULL, 500, 'ada', 'retention')",
            [ref.pipeline],
        )
        identity = Identity(pipeline=PIPELINE.name, scheduled_at=datetime(2026, 8, 4, tzinfo=UTC))
        assert Allocator(ledger).allocate(PIPELINE, identity).sequence == 1
    assert retention.prune(ledger, older_than=timedelta(0), who=WHO)[0].tasks == 0


def test_a_resend_of_the_same_key_makes_an_older_word_stale(ledger: Database, doubtful: TaskRef, sql: Sql) -> None:
    told = Evidence(proof=Proof.NOT_SENT, told="not in the console")
    seen = resolutions.current(ledger, doubtful, CALL)
    # Somebody claims a same-key resend between the look and the word.
    sql.execute("UPDATE dagster_idempotent.submissions SET sends = sends + 1, sender = gen_random_uuid()")
    row = sql.execute(
        "SELECT verdict FROM dagster_idempotent.resolve_v1(%s::jsonb, NULL, %s, %s, 'ada', 'ticket 812')",
        [
            json.dumps({**doubtful_call(doubtful), "submission": seen["submission"], "state": "not_sent"}),
            seen["sends"],
            told.told,
        ],
    ).fetchone()
    assert (row or {})["verdict"] == "changed"


def doubtful_call(ref: TaskRef) -> dict[str, object]:
    return {"pipeline": ref.pipeline, "task_id": ref.task_id, "call_key": CALL}


def _receive_answer(sql: Sql, ref: TaskRef) -> None:
    """Let the answer of the first submission arrive, as its sender would write it."""
    body = b'{"choices": [{"message": {"content": "late"}}]}'
    answer = {
        **doubtful_call(ref),
        "submission": 1,
        "state": "succeeded",
        "settled_by": "sender",
        "response": {},
        "cost": "0.02",
        "currency": "USD",
        "cost_basis": "computed",
    }
    digest = sql.execute("SELECT encode(sha256(%s), 'hex') AS hash", [body]).fetchone() or {}
    answer["response_sha256"] = digest["hash"]
    try:
        sql.execute("SELECT * FROM dagster_idempotent.record_answer_v1(%s::jsonb, %s)", [json.dumps(answer), body])
    except psycopg.errors.UniqueViolation:
        sql.execute("SELECT * FROM dagster_idempotent.keep_late_answer_v1(%s::jsonb, %s)", [json.dumps(answer), body])
