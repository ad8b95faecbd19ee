"""One paid call of a claimed task: sent at most once, replayed afterwards (R11-R18). The provider's bill decides."""

import json
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, cast

import psycopg
import pytest
from psycopg import sql as psql
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import CallKey, IdempotencyKey, SettledBy
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.guard import CallResult, Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.reconciliation import reconcile_task
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import (
    BudgetExceeded,
    CallAbandoned,
    CallInDoubt,
    CallInProgress,
    CallNotSent,
    CallRejected,
    CandidateInvalid,
    ConfigurationError,
    CredentialMissing,
    LeaseBusy,
    PayloadMismatch,
    PipelineFrozen,
    TaskHeld,
    TaskNotFound,
)
from dagster_idempotent.providers.chat_completions import ChatCompletion, ChatCompletionsProvider
from dagster_idempotent.providers.outcome import Finding, NotFound
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]
SECRET = "sk-a-key-that-must-not-be-seen"  # noqa: S105 - the test looks for it everywhere
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "summarise"}]}
CHANGED = {"model": "m", "messages": [{"role": "user", "content": "translate"}]}
# What no text about a call in doubt may advise (R14).
ADVICE = r"(?i)try again|retry|rerun|re-run|run (it|this|the job) again|send (it )?again"


class Digest(BaseModel):
    title: str
    highlights: list[str]


@dataclass(kw_only=True)
class Bench:
    """A ledger, a provider, and Dagster runs numbered from 1."""

    database: Database
    sql: Sql
    metered: MeteredProvider
    pipeline: Pipeline[Digest] = field(default_factory=lambda: Pipeline("weekly_digest", output=Digest))
    runs: int = 0
    charges_before: int = 0
    requests_before: int = 0

    def __post_init__(self) -> None:
        self.charges_before = self.metered.charges
        self.requests_before = len(self.metered.requests())

    def provider(self, kind: type[ChatCompletionsProvider] = ChatCompletionsProvider, **options: Any) -> Any:
        """Make a provider that can look up unless told otherwise."""
        settings: dict[str, Any] = {
            "look_up_path": "/lookup",
            "settle_delay": timedelta(minutes=1),
            "read_timeout": timedelta(seconds=30),
            **options,
        }
        return kind(base_url=self.metered.base_url, api_key_variable="K", **settings)

    def without_look_up(self, **options: Any) -> ChatCompletionsProvider:
        return cast("ChatCompletionsProvider", self.provider(look_up_path=None, **options))

    def allocate(self, subject: str = "") -> TaskId:
        instant = datetime(2026, 8, 3, tzinfo=UTC)
        identity = Identity(pipeline=self.pipeline.name, subject=subject, scheduled_at=instant)
        return Allocator(self.database).allocate(self.pipeline, identity).task_id

    def claim(self, task_id: TaskId, providers: Sequence[ChatCompletionsProvider] = ()) -> Work:
        """Claim for a new Dagster run; every earlier one is over."""
        self.runs += 1
        owner = Owner(f"run-{self.runs}")
        return claim(
            self.database,
            Heartbeat(self.database),
            self.pipeline,
            task_id,
            owner,
            is_finished=lambda _: True,
            providers=providers,
        )

    def call(
        self, provider: ChatCompletionsProvider, request: Mapping[str, object] = REQUEST, *, work: Work | None = None
    ) -> CallResult[ChatCompletion]:
        """Make the call `summary` of the one task, in a new run unless `work` is given."""
        if work is None:
            work = self.claim(self.allocate(), [provider])
        with work.renewed():
            return Guard(work, provider).call(CallKey("summary"), request)

    def expire(self, *, seconds: float = 0.0) -> None:
        """Make every sender's lease be over since that many seconds."""
        self.sql.execute(
            "UPDATE dagster_idempotent.submissions "
            "SET sender_expires_at = clock_timestamp() - make_interval(secs => %s)",
            [seconds],
        )

    def rows(self) -> list[dict[str, Any]]:
        return self.sql.execute("SELECT * FROM dagster_idempotent.submissions ORDER BY call_key, submission").fetchall()

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows()]

    def task(self) -> dict[str, Any]:
        row = self.sql.execute("SELECT * FROM dagster_idempotent.tasks").fetchone()
        assert row is not None
        return row

    @property
    def charges(self) -> int:
        """How often the provider charged since this test began."""
        return self.metered.charges - self.charges_before

    @property
    def posts(self) -> list[str | None]:
        """The keys of all requests that arrived, also of those that were not accepted."""
        return [r.client_reference for r in self.metered.requests()[self.requests_before :] if r.method == "POST"]


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    """Start one provider for the module; each test counts from where it began."""
    with MeteredProvider.start(tmp_path_factory.mktemp("metered")) as provider:
        yield provider


@pytest.fixture
def bench(ledger: Database, sql: Sql, metered: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give a bench; at the end the counters of all budgets must equal what the costs add up to."""
    monkeypatch.setenv("K", SECRET)
    # Copies of one template would share a ledger id, and with it the keys at the provider of this module.
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.ledger SET ledger_id = gen_random_uuid()")
    sql.execute("SET session_replication_role = origin")
    yield Bench(database=ledger, sql=sql, metered=metered)
    metered.clear_faults()
    metered.release()
    metered.configure(deduplicate=False, lookup=True)
    unbalanced = sql.execute(
        """WITH booked AS (
            SELECT c.pipeline, s.scope, c.currency,
                sum(CASE c.kind WHEN 'reserved' THEN amount WHEN 'released' THEN -amount ELSE 0 END) AS reserved,
                sum(CASE c.kind WHEN 'settled' THEN amount WHEN 'adjusted' THEN amount ELSE 0 END) AS settled
            FROM dagster_idempotent.costs c JOIN dagster_idempotent.tasks t USING (pipeline, task_id)
            CROSS JOIN LATERAL (VALUES ('pipeline'), ('period:' || t.period_id), ('task:' || t.task_id)) AS s (scope)
            GROUP BY 1, 2, 3)
        SELECT * FROM dagster_idempotent.budgets b FULL JOIN booked USING (pipeline, scope, currency)
        WHERE (coalesce(b.reserved, 0), coalesce(b.settled, 0))
            <> (coalesce(booked.reserved, 0), coalesce(booked.settled, 0))"""
    ).fetchall()
    assert unbalanced == []


def doubt(bench: Bench, provider: ChatCompletionsProvider, fault: str = "accept_then_drop") -> CallInDoubt:
    """Make the call and lose its answer."""
    bench.metered.fault(fault)
    with pytest.raises(CallInDoubt) as caught:
        bench.call(provider)
    return caught.value


class TestReplay:
    def test_a_completed_call_replays_the_same_value_and_type_without_a_request(self, bench: Bench) -> None:
        first = bench.call(bench.provider(cost_of=lambda _: Money.parse("0.02 USD")))
        again = bench.call(bench.provider())
        assert (first.replayed, again.replayed) == (False, True)
        assert type(again.value) is type(first.value) is ChatCompletion
        assert again.value == first.value
        assert again.answer == first.answer
        assert again.cost == first.cost == Money.parse("0.02 USD")
        assert again.remote_ref == first.remote_ref
        assert len(bench.posts) == bench.charges == 1

    def test_a_replay_needs_no_credential(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        first = bench.call(bench.provider())
        monkeypatch.delenv("K")
        assert bench.call(bench.provider()).value == first.value

    def test_an_accepted_model_is_replayed_and_a_refused_answer_is_the_next_call(self, bench: Bench) -> None:
        request = {**REQUEST, "response_format": {"type": "json_object"}}
        bench.metered.fault("answer_with", content="not a digest")
        task_id = bench.allocate()
        found: list[Digest] = []
        for _ in range(3):
            work = bench.claim(task_id)
            with work.renewed():
                found.append(Calls(work, bench.provider()).ask("summary", request, accept=Digest, tries=2))
        assert found == [found[0]] * 3
        assert bench.charges == 2
        assert [row["call_key"] for row in bench.rows()] == ["summary", "summary#2"]

    def test_a_bad_answer_is_not_paid_for_again(self, bench: Bench) -> None:
        bench.metered.fault("answer_with", times=None, content="not a digest")
        for _ in range(3):
            work = bench.claim(bench.allocate())
            with work.renewed(), pytest.raises(CandidateInvalid, match="stored and paid"):
                Calls(work, bench.provider()).ask("summary", REQUEST, accept=Digest, tries=2)
        assert bench.charges == 2

    @pytest.mark.parametrize(
        "answer",
        [
            {"id": "a\0b", "choices": [{"message": {"content": "{}"}}]},
            {"id": "\ud800", "choices": [{"message": {"content": "{}"}}]},
            {"id": "", "choices": [{"message": {"content": "{}"}}]},
            {"choices": [{"message": {"content": None, "tool_calls": [{"id": "t"}]}}]},
            {"id": "x" * 10_000, "choices": [{"message": {"content": ""}}]},
        ],
        ids=["nul", "surrogate", "empty", "tool-call", "long"],
    )
    def test_an_odd_answer_is_kept_because_it_is_paid(self, bench: Bench, answer: dict[str, object]) -> None:
        bench.metered.fault("garbage", body=json.dumps(answer))
        first = bench.call(bench.provider())
        assert json.loads(first.answer.body) == answer
        assert bench.call(bench.provider()).value == first.value
        assert bench.charges == 1

    @pytest.mark.parametrize("cost_of", [lambda raw: raw["no such key"], lambda _: Money.parse("-1 USD")])
    def test_an_answer_whose_cost_cannot_be_told_is_kept(self, bench: Bench, cost_of: Callable[..., Money]) -> None:
        result = bench.call(bench.provider(cost_of=cost_of, upper_bound=Money.parse("0.50 USD")))
        assert result.cost is None
        settled = bench.sql.execute("SELECT kind, amount FROM dagster_idempotent.costs ORDER BY kind").fetchall()
        # It was not free: the upper bound stands in.
        assert [(row["kind"], str(row["amount"])) for row in settled] == [
            ("released", "0.50"),
            ("reserved", "0.50"),
            ("settled", "0.50"),
        ]


class TestPayload:
    def test_another_payload_is_refused_by_the_names_that_differ(self, bench: Bench) -> None:
        bench.call(bench.provider())
        with pytest.raises(PayloadMismatch, match="/messages/0/content") as caught:
            bench.call(bench.provider(), CHANGED)
        assert caught.value.facts["fields"] == ("/messages/0/content",)
        assert len(bench.posts) == 1

    def test_it_is_refused_before_any_word_about_progress(self, bench: Bench) -> None:
        bench.metered.fault("hold")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(), work=work)
            bench.metered.wait_held(1)
            with pytest.raises(PayloadMismatch):
                Guard(work, bench.provider()).call(CallKey("summary"), CHANGED)
            with pytest.raises(CallInProgress) as caught:
                Guard(work, bench.provider()).call(CallKey("summary"), REQUEST)
            bench.metered.release()
            assert sending.result().replayed is False
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 30
        assert caught.value.facts["owner"] == "run-1"
        assert len(bench.posts) == 1

    def test_it_is_refused_while_the_call_is_in_doubt(self, bench: Bench) -> None:
        doubt(bench, bench.without_look_up())
        bench.sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
            "lease_expires_at = NULL, fencing_token = fencing_token + 1"
        )
        with pytest.raises(PayloadMismatch):
            bench.call(bench.without_look_up(), CHANGED)
        assert len(bench.posts) == 1

    def test_a_rejected_request_may_be_changed_and_gets_a_new_key(self, bench: Bench) -> None:
        bench.metered.fault("status", status=400)
        with pytest.raises(CallRejected, match="HTTP 400"):
            bench.call(bench.provider())
        assert bench.call(bench.provider(), CHANGED).submission == 2
        assert bench.states() == ["rejected", "succeeded"]
        assert [row["key_no"] for row in bench.rows()] == [0, 1]
        assert len(set(bench.posts)) == 2
        assert bench.charges == 1

    def test_what_the_sender_proved_unsent_may_be_changed(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("K")
        with pytest.raises(CredentialMissing):
            bench.call(bench.provider())
        monkeypatch.setenv("K", SECRET)
        bench.call(bench.provider(), CHANGED)
        assert [row["key_no"] for row in bench.rows()] == [0, 1]
        assert len(bench.posts) == 1

    def test_what_a_look_up_called_unsent_may_not_be_changed(self, bench: Bench) -> None:
        doubt(bench, bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)
        with pytest.raises(PayloadMismatch):
            bench.call(bench.provider(), CHANGED)
        assert bench.states() == ["not_sent"]
        assert bench.charges == 0


class TestKeys:
    def test_after_not_found_the_same_key_goes_again(self, bench: Bench) -> None:
        doubt(bench, bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)
        bench.call(bench.provider())
        first, second = bench.posts
        assert first == second
        assert bench.charges == 1

    def test_after_a_rejection_a_new_key_goes(self, bench: Bench) -> None:
        bench.metered.fault("status", status=422)
        with pytest.raises(CallRejected):
            bench.call(bench.provider())
        bench.call(bench.provider())
        assert len(set(bench.posts)) == 2

    def test_two_ledgers_never_share_a_key(self, bench: Bench) -> None:
        bench.call(bench.provider())
        (row,) = bench.rows()
        ledger = bench.sql.execute("SELECT ledger_id::text AS id FROM dagster_idempotent.ledger").fetchone()
        assert ledger is not None
        assert row["idempotency_key"] == bench.posts[0]
        assert ledger["id"] not in row["idempotency_key"]


class TestInDoubt:
    def test_without_look_up_the_task_is_held_and_nothing_is_ever_sent_again(self, bench: Bench) -> None:
        error = doubt(bench, bench.without_look_up())
        assert error.retry_after is None
        for _ in range(5):
            bench.expire(seconds=1e6)
            with pytest.raises(TaskHeld) as caught:
                bench.call(bench.without_look_up())
            assert caught.value.facts["held_for"] == "in_doubt"
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "in_doubt")
        assert len(bench.posts) == bench.charges == 1

    def test_not_even_under_a_lease_got_by_force(self, bench: Bench) -> None:
        doubt(bench, bench.without_look_up())
        for _ in range(5):
            bench.expire(seconds=1e6)
            bench.sql.execute(
                "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
                "lease_expires_at = NULL, fencing_token = fencing_token + 1"
            )
            with pytest.raises(CallInDoubt):
                bench.call(bench.without_look_up())
        assert len(bench.posts) == 1

    @pytest.mark.parametrize(
        "fault",
        [
            ("accept_then_drop", {}),
            ("accept_then_drop", {"reset": True}),
            ("drop_before_accepting", {}),
            ("half_answer", {}),
            ("garbage", {}),
            ("garbage", {"body": "[]"}),
            ("garbage", {"body": '{"choices": []}'}),
            ("status", {"status": 500}),
            ("status", {"status": 502, "charged": True}),
            ("status", {"status": 408}),
            ("status", {"status": 409}),
            ("status", {"status": 429}),
            ("status", {"status": 202, "charged": True}),
            ("redirect", {}),
            ("redirect", {"status": 302}),
        ],
        ids=lambda fault: "-".join([fault[0], *(str(value) for value in fault[1].values())]),
    )
    def test_whatever_is_not_a_proof_is_in_doubt(self, bench: Bench, fault: tuple[str, dict[str, object]]) -> None:
        kind, options = fault
        bench.metered.fault(kind, **options)
        with pytest.raises(CallInDoubt) as caught:
            bench.call(bench.without_look_up())
        assert bench.states() == ["in_doubt"]
        assert len(bench.posts) == 1
        assert "may have been accepted and charged" in str(caught.value)

    def test_no_text_about_it_advises_to_send_again(self, bench: Bench) -> None:
        first = doubt(bench, bench.without_look_up())
        with pytest.raises(TaskHeld) as held:
            bench.call(bench.without_look_up())
        row_text = str(bench.rows()[0]["error"])
        for text in (str(first), str(held.value), row_text, bench.task()["error"]):
            assert not re.search(ADVICE, text), text

    def test_a_success_is_found_at_once_and_settles(self, bench: Bench) -> None:
        bench.metered.fault("accept_then_drop")
        result = bench.call(bench.provider())
        assert result.settled_by is SettledBy.LOOK_UP
        assert bench.charges == len(bench.posts) == 1
        assert bench.call(bench.provider()).value == result.value

    def test_not_found_before_the_settle_delay_proves_nothing(self, bench: Bench) -> None:
        error = doubt(bench, bench.provider(), "drop_before_accepting")
        assert error.retry_after is not None
        assert 60 < error.retry_after <= 90
        bench.expire(seconds=59)
        with pytest.raises(CallInDoubt) as caught:
            bench.call(bench.provider())
        assert caught.value.retry_after is not None
        assert caught.value.retry_after <= 1
        assert bench.states() == ["in_doubt"]
        bench.expire(seconds=61)
        bench.call(bench.provider())
        assert bench.states() == ["not_sent", "succeeded"]
        assert len(bench.posts) == 2
        assert bench.charges == 1

    def test_not_found_is_the_word_of_a_look_up_begun_after_the_delay(self, bench: Bench) -> None:
        doubt(bench, bench.provider(), "drop_before_accepting")
        bench.expire(seconds=59.5)

        class Slow(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                found = super().find(keys)
                bench.expire(seconds=61)  # the delay ended while the look-up was on its way
                return found

        (result,) = reconcile_task(bench.database, "weekly_digest", bench.allocate(), [bench.provider(Slow)])
        assert result.settled is False
        assert bench.states() == ["in_doubt"]

    def test_not_found_does_not_void_what_was_sent_again_meanwhile(self, bench: Bench) -> None:
        doubt(bench, bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)

        class Overtaken(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                bench.sql.execute(
                    "UPDATE dagster_idempotent.submissions SET sends = sends + 1, sender = gen_random_uuid()"
                )
                return super().find(keys)

        with pytest.raises(CallInDoubt, match="somebody else acted"):
            bench.call(bench.provider(Overtaken))
        assert bench.states() == ["in_doubt"]
        assert bench.charges == 0

    def test_an_incomplete_search_proves_nothing(self, bench: Bench) -> None:
        class Incomplete(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                assert keys
                return NotFound(complete=False)

        doubt(bench, bench.without_look_up(), "drop_before_accepting")
        bench.expire(seconds=1e6)
        with pytest.raises(CallInDoubt, match="not complete"):
            bench.call(bench.provider(Incomplete), work=self._forced(bench))
        assert bench.states() == ["in_doubt"]

    def test_a_look_up_that_fails_proves_nothing(self, bench: Bench) -> None:
        bench.metered.configure(lookup=False)
        error = doubt(bench, bench.provider())
        assert "look-up failed: HTTP 404" in str(error)
        bench.expire(seconds=1e6)
        with pytest.raises(CallInDoubt):
            bench.call(bench.provider())
        bench.metered.configure(lookup=True)
        assert bench.call(bench.provider()).settled_by is SettledBy.LOOK_UP
        assert len(bench.posts) == 1

    def test_one_call_sends_once_however_fast_a_look_up_says_no(self, bench: Bench) -> None:
        class Hasty(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                return super().find(keys)

        bench.metered.fault("drop_before_accepting", times=None)

        class Aging(Database):
            def run(self, function: Any, *, patience: timedelta | None = None) -> Any:
                bench.expire(seconds=1e6)
                return super().run(function, patience=patience)

        work = bench.claim(bench.allocate())
        work.database = Aging(bench.database.url)
        with pytest.raises(CallNotSent, match="its answer was lost"):
            Guard(work, bench.provider(Hasty)).call(CallKey("summary"), REQUEST)
        work.database.close()
        assert len(bench.posts) == 1

    def test_an_accepted_call_is_resumed_and_never_submitted_again(self, bench: Bench) -> None:
        bench.metered.fault("hold")
        read_timeout = timedelta(milliseconds=200)
        with pytest.raises(CallInProgress, match="not submitted again"):
            bench.call(bench.provider(read_timeout=read_timeout))
        assert bench.states() == ["accepted"]
        for _ in range(3):
            with pytest.raises(CallInProgress, match="not submitted again"):
                bench.call(bench.provider())
        bench.metered.release()
        assert bench.call(bench.provider()).settled_by is SettledBy.POLL
        assert len(bench.posts) == bench.charges == 1

    def test_an_abandoned_call_raises(self, bench: Bench) -> None:
        doubt(bench, bench.without_look_up())
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'abandoned', settled_by = 'operator', settled_at = now()"
        )
        for _ in range(2):
            with pytest.raises(CallAbandoned, match="may charge twice"):
                bench.call(bench.without_look_up())
        assert len(bench.posts) == 1

    def test_a_call_settled_before_its_hold_does_not_hold_the_task_for_ever(self, bench: Bench) -> None:
        doubt(bench, bench.without_look_up())
        assert bench.task()["status"] == "held"
        reconcile_task(bench.database, "weekly_digest", bench.allocate(), [bench.provider()])
        assert bench.states() == ["succeeded"]
        assert bench.call(bench.without_look_up()).replayed is True

    def test_a_hold_gives_the_attempt_back_only_to_a_run_that_sent_nothing(self, bench: Bench) -> None:
        doubt(bench, bench.without_look_up())
        assert bench.task()["attempts"] == 1
        with pytest.raises(CallInDoubt):
            bench.call(bench.without_look_up(), work=self._forced(bench))
        assert bench.task()["attempts"] == 1

    def _forced(self, bench: Bench) -> Work:
        bench.sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
            "lease_expires_at = NULL, fencing_token = fencing_token + 1"
        )
        return bench.claim(bench.allocate())


class TestLateAnswers:
    """An answer after a look-up said no: the documented limit. It is kept and shown, never dropped."""

    @contextmanager
    def _overtaken(self, bench: Bench) -> Iterator[Callable[[], CallResult[ChatCompletion]]]:
        """Void the submission of a request that is still on its way; yield what waits for its answer."""
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            yield sending.result

    def _void(self, bench: Bench, submission: int) -> None:
        """As a look-up does that finds nothing."""
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'not_sent', settled_by = 'look_up', settled_at = now() "
            "WHERE submission = %s",
            [submission],
        )

    def test_it_is_adopted_where_nothing_else_is_live(self, bench: Bench) -> None:
        with self._overtaken(bench) as result:
            bench.metered.release()
            assert result().submission == 1
        assert bench.states() == ["succeeded"]
        assert bench.charges == 1

    def test_it_is_kept_as_late_beside_a_live_submission_and_its_cost_is_booked(self, bench: Bench) -> None:
        price = Money.parse("0.02 USD")
        settings = {"cost_of": lambda _: price, "upper_bound": Money.parse("1 USD")}
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(**settings), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            second = Guard(work, bench.provider(**settings)).call(CallKey("summary"), REQUEST)
            bench.metered.release()
            # The sender of the late answer goes on with the answer that was accepted first.
            assert sending.result().value == second.value
        late, live = bench.rows()
        assert (late["state"], late["late"], late["cost"]) == ("not_sent", True, price.amount)
        assert (live["state"], live["late"]) == ("succeeded", False)
        assert bench.charges == 2
        budget = bench.sql.execute(
            "SELECT reserved, settled FROM dagster_idempotent.budgets WHERE scope = 'pipeline'"
        ).fetchone()
        assert budget == {"reserved": 0, "settled": 2 * price.amount}

    def test_it_is_adopted_later_instead_of_a_new_send(self, bench: Bench) -> None:
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.without_look_up(), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            bench.metered.fault("drop_before_accepting")
            with pytest.raises(CallInDoubt):
                Guard(work, bench.without_look_up()).call(CallKey("summary"), REQUEST)
            bench.metered.release()
            with pytest.raises((CallInDoubt, TaskHeld)):
                sending.result()
        assert [(row["state"], row["late"]) for row in bench.rows()] == [("not_sent", True), ("in_doubt", False)]
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'abandoned', settled_by = 'operator', "
            "settled_at = now() WHERE submission = 2"
        )
        posts = len(bench.posts)
        result = bench.call(bench.without_look_up())
        assert (result.submission, result.replayed) == (1, True)
        assert [(row["state"], row["late"]) for row in bench.rows()] == [("succeeded", False), ("abandoned", False)]
        assert len(bench.posts) == posts
        with pytest.raises(PayloadMismatch):
            bench.call(bench.without_look_up(), CHANGED)


class TestResend:
    """Same key, same bytes, where the provider documents that this is one request."""

    def _provider(self, bench: Bench, **options: Any) -> ChatCompletionsProvider:
        bench.metered.configure(deduplicate=True)
        settings: dict[str, Any] = {"key_window": timedelta(hours=1), "settle_delay": timedelta(seconds=1), **options}
        return bench.without_look_up(**settings)

    def test_inside_the_window_the_provider_answers_from_memory(self, bench: Bench) -> None:
        provider = self._provider(bench)
        assert doubt(bench, provider).retry_after is not None
        result = bench.call(provider)
        assert result.settled_by is SettledBy.SENDER
        (row,) = bench.rows()
        assert (row["state"], row["sends"], row["owner"]) == ("succeeded", 2, "run-2")
        assert bench.posts == [row["idempotency_key"]] * 2
        assert bench.charges == 1

    def test_outside_the_window_nothing_goes_again(self, bench: Bench) -> None:
        provider = self._provider(bench)
        doubt(bench, provider)
        bench.sql.execute("SET session_replication_role = replica")
        # Less than the key window ago, but the request could land after it: send window and settle delay are counted.
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions "
            "SET intended_at = clock_timestamp() - interval '59 minutes 50 seconds'"
        )
        bench.sql.execute("SET session_replication_role = origin")
        with pytest.raises(CallInDoubt) as caught:
            bench.call(provider)
        assert caught.value.retry_after is None
        assert bench.task()["status"] == "held"
        assert len(bench.posts) == 1

    @pytest.mark.parametrize("refusal", [400, 401, 403, 422])
    def test_a_refused_resend_says_nothing_about_the_first_send(self, bench: Bench, refusal: int) -> None:
        provider = self._provider(bench)
        doubt(bench, provider)
        bench.metered.fault("status", status=refusal)
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        (row,) = bench.rows()
        assert (row["state"], row["sends"]) == ("in_doubt", 2)
        assert bench.call(provider).replayed is False
        assert bench.charges == 1

    def test_a_resend_that_never_left_says_nothing_either(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        provider = self._provider(bench)
        doubt(bench, provider)
        monkeypatch.delenv("K")
        with pytest.raises(CredentialMissing):
            bench.call(provider)
        assert bench.states() == ["in_doubt"]

    def test_a_frozen_pipeline_sends_nothing_again(self, bench: Bench) -> None:
        provider = self._provider(bench)
        doubt(bench, provider)
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover'")
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        assert len(bench.posts) == 1

    def test_a_resend_with_another_payload_is_refused(self, bench: Bench) -> None:
        provider = self._provider(bench)
        doubt(bench, provider)
        with pytest.raises(PayloadMismatch):
            bench.call(provider, CHANGED)
        assert len(bench.posts) == 1


class TestSenders:
    """Owner and token never suffice: only the process that committed the intent sends, once, in its window."""

    def test_an_orphan_step_and_its_retry_send_once(
        self, crew: "Crew", ledger_url: str, metered_provider: MeteredProvider
    ) -> None:
        provider = {"base_url": metered_provider.base_url, "api_key_variable": "K", "look_up_path": "/lookup"}
        both = crew.connected(2, url=ledger_url, provider=provider, environment={"K": "k"})
        for number in range(10):
            task_id = both[0].ask("allocate", subject=f"tenant-{number}")
            for worker in both:
                worker.ask("claim", task_id=task_id, owner="run")
            answers = crew.at_once(both, "call", [{}, {}])
            assert {answer["error"] for answer in answers if "error" in answer} <= {"CallInProgress"}
            assert any("value" in answer for answer in answers)
            assert metered_provider.charges == number + 1
        assert len([r for r in metered_provider.requests() if r.method == "POST"]) == 10

    def test_a_sender_paused_past_its_window_does_not_send(
        self, crew: "Crew", ledger_url: str, sql: Sql, metered_provider: MeteredProvider, until: Until
    ) -> None:
        settings: dict[str, Any] = {
            "pipeline": {"lease": "1h", "sender_lease": "600ms", "send_window": "500ms"},
            "provider": {
                "base_url": metered_provider.base_url,
                "api_key_variable": "K",
                "look_up_path": "/lookup",
                "settle_delay": 0.1,
            },
            "environment": {"K": "k"},
        }
        paused, other = crew.connected(2, url=ledger_url, **settings)
        task_id = paused.ask("allocate")
        paused.ask("claim", task_id=task_id, owner="paused")
        with psycopg.connect(ledger_url) as lock:
            lock.execute("LOCK TABLE dagster_idempotent.submissions IN SHARE MODE")
            paused.tell("call")
            # Its intent waits for this lock: it is past every check and has not sent.
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'dagster_idempotent.submissions'::regclass"
            until(lambda: sql.execute(waiting).rowcount)
            paused.pause()
        until(lambda: sql.execute("SELECT FROM dagster_idempotent.submissions WHERE state = 'intended'").rowcount)
        owner = iter(range(1000))

        def done() -> bool:
            other.tell("claim", task_id=task_id, owner=f"other-{next(owner)}", finished=["*"])
            if "error" in other.answer():
                return False
            other.tell("call")
            return "value" in other.answer()

        until(done)
        assert metered_provider.charges == 1
        paused.go_on()
        answer = paused.answer()
        assert answer.get("error") == "CallNotSent" or answer["value"]["replayed"] is True, answer
        assert len([r for r in metered_provider.requests() if r.method == "POST"]) == 1

    def test_a_fork_voids_the_sender(
        self, crew: "Crew", ledger_url: str, sql: Sql, metered_provider: MeteredProvider
    ) -> None:
        provider = {"base_url": metered_provider.base_url, "api_key_variable": "K"}
        (worker,) = crew.connected(1, url=ledger_url, provider=provider, environment={"K": "k"})
        task_id = worker.ask("allocate")
        worker.ask("claim", task_id=task_id, owner="run")
        # Between the intent and the request the process forks, and the child goes on too.
        found = worker.ask("call_in_fork_too")
        assert found == {"child": "CallNotSent", "state_after_child": "intended", "replayed": False}
        assert metered_provider.charges == 1
        row = sql.execute("SELECT state FROM dagster_idempotent.submissions").fetchone()
        assert row == {"state": "succeeded"}


class RawServer:
    """Accepts one connection and reads as slowly as it is told."""

    def __init__(self, *, bytes_a_tick: int) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.received = 0
        self.ended = threading.Event()
        self._bytes_a_tick = bytes_a_tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @property
    def base_url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.listener.close()

    def _serve(self) -> None:
        while not select.select([self.listener], [], [], 0.05)[0]:
            if self._stop.is_set():
                return
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(0.05)
            while not self._stop.is_set():
                try:
                    part = connection.recv(self._bytes_a_tick) if self._bytes_a_tick else b"-"
                except TimeoutError:
                    continue
                except OSError:
                    break
                if not part:
                    break
                self.received += len(part)
                self._stop.wait(0.02)
        self.ended.set()


class TestSendWindow:
    BODY = 8 * 1024 * 1024

    @pytest.mark.parametrize("bytes_a_tick", [0, 4 * 1024], ids=["stuck", "crawling"])
    def test_a_body_that_crawls_out_is_cut_off_and_in_doubt(self, bench: Bench, bytes_a_tick: int) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, sender_lease="5s", send_window="2s")
        request = {**REQUEST, "padding": "x" * self.BODY}
        with RawServer(bytes_a_tick=bytes_a_tick) as server:
            provider = ChatCompletionsProvider(base_url=server.base_url, api_key_variable="K")
            started = time.monotonic()
            with pytest.raises(CallInDoubt):
                bench.call(provider, request)
            # The window and the closing of a socket; a crawling body would go on for forty seconds and more.
            assert time.monotonic() - started < 10
            assert server.received < self.BODY
        assert bench.states() == ["in_doubt"]

    def test_a_window_that_ends_before_the_first_byte_proves_not_sent(self, bench: Bench, until: Until) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, sender_lease="2s", send_window="100ms")

        class Slow(ChatCompletionsProvider):
            def submit(self, request: Any, *, key: Any, window: Any) -> Any:
                until(lambda: window.remaining() < 0)
                return super().submit(request, key=key, window=window)

        with pytest.raises(CallNotSent, match="send window"):
            bench.call(bench.provider(Slow))
        assert bench.states() == ["not_sent"]
        assert bench.posts == []

    def test_a_provider_that_refuses_the_connection_got_nothing(self, bench: Bench) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            provider = ChatCompletionsProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key_variable="K")
            with pytest.raises(CallNotSent):
                bench.call(provider)
        assert bench.states() == ["not_sent"]


class Recording(dict[str, str]):
    """An environment that remembers what was asked of it."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked: list[object] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.asked.append(key)
        return super().__getitem__(key)


class TestNothingBeforeItsTime:
    def test_a_missing_task_stops_before_any_credential_or_connection(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment = Recording(os.environ)
        monkeypatch.setattr(os, "environ", environment)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            host, port = listener.getsockname()
            provider = ChatCompletionsProvider(
                base_url=f"http://{host}:{port}/v1", api_key_variable="K", look_up_path="/lookup"
            )
            with pytest.raises(TaskNotFound, match="2026-W32-7"):
                bench.claim(TaskId("2026-W32-7"), [provider])
            assert select.select([listener], [], [], 0)[0] == []
        assert "K" not in environment.asked

    def test_a_credential_is_read_only_when_a_request_leaves(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment = Recording(os.environ)
        monkeypatch.setattr(os, "environ", environment)
        provider = bench.provider()
        work = bench.claim(bench.allocate(), [provider])
        guard = Guard(work, provider)
        assert "K" not in environment.asked
        guard.call(CallKey("summary"), REQUEST)
        assert "K" in environment.asked

    @pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "ключ"])
    def test_a_credential_that_is_missing_sends_nothing_and_costs_nothing(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, value: str | None
    ) -> None:
        monkeypatch.delenv("K") if value is None else monkeypatch.setenv("K", value)
        with pytest.raises(CredentialMissing, match="variable K"):
            bench.call(bench.provider(upper_bound=Money.parse("1 USD")))
        assert bench.states() == ["not_sent"]
        monkeypatch.setenv("K", SECRET)
        bench.call(bench.provider(upper_bound=Money.parse("1 USD")))
        assert bench.states() == ["not_sent", "succeeded"]
        assert len(bench.posts) == bench.charges == 1

    def test_a_frozen_pipeline_sends_nothing_until_it_is_thawed(self, bench: Bench) -> None:
        work = bench.claim(bench.allocate())
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover of the database'")
        with pytest.raises(PipelineFrozen, match="failover of the database"):
            bench.call(bench.provider(), work=work)
        assert bench.rows() == []
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = NULL")
        bench.call(bench.provider(), work=work)
        assert len(bench.posts) == 1

    def test_a_closed_spend_gate_holds_the_task_until_somebody_approves(self, bench: Bench) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, approval="spend")
        for _ in range(2):
            with pytest.raises(TaskHeld) as caught:
                bench.call(bench.provider())
            assert caught.value.facts["held_for"] == "gate"
        assert (bench.posts, bench.task()["attempts"]) == ([], 0)
        bench.sql.execute(
            "INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, shown_sha256) "
            "SELECT pipeline, task_id, 'spend', 'ada', 'looks right', repeat('0', 64) FROM dagster_idempotent.tasks"
        )
        bench.call(bench.provider())
        assert len(bench.posts) == 1

    def test_a_missing_upper_bound_is_refused_where_there_is_a_budget(self, bench: Bench) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, budget=Budget.per_task("1 USD"))
        with pytest.raises(ConfigurationError, match="upper bound"):
            bench.call(bench.provider())
        with pytest.raises(ConfigurationError, match="in USD"):
            bench.call(bench.provider(upper_bound=Money.parse("1 EUR")))
        assert bench.posts == []


class TestBudgets:
    def test_of_64_threads_exactly_as_many_send_as_the_budget_allows(self, bench: Bench) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, budget=Budget.per_task("10 USD"))
        work = bench.claim(bench.allocate())

        def call(number: int) -> type[Exception] | None:
            guard = Guard(work, bench.provider(upper_bound=Money.parse("1 USD")))
            try:
                guard.call(CallKey(f"call-{number}"), REQUEST)
            except (BudgetExceeded, TaskHeld) as error:
                return type(error)
            return None

        with work.renewed(), ThreadPoolExecutor(64) as pool:
            results = list(pool.map(call, range(64)))
        assert results.count(None) == len(bench.posts) == bench.charges == 10
        assert results.count(BudgetExceeded) >= 1
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "budget")

    def test_of_24_processes_exactly_as_many_send_as_the_pipelines_budget_allows(
        self, bench: Bench, crew: "Crew"
    ) -> None:
        provider = {"base_url": bench.metered.base_url, "api_key_variable": "K", "upper_bound": "1 USD"}
        workers = crew.connected(
            24,
            url=bench.database.url,
            provider=provider,
            environment={"K": "k"},
            pipeline={"per_pipeline": "10 USD"},
        )
        for number, worker in enumerate(workers):
            task_id = worker.ask("allocate", subject=f"tenant-{number}")
            worker.ask("claim", task_id=task_id, owner=f"run-{number}")
        answers = crew.at_once(workers, "call", [{}] * len(workers))
        assert {answer["error"] for answer in answers if "error" in answer} == {"BudgetExceeded"}
        assert len([answer for answer in answers if "value" in answer]) == bench.charges == 10

    def test_a_refused_call_gives_its_reservation_back(self, bench: Bench) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, budget=Budget.per_task("1 USD"))
        provider = bench.provider(upper_bound=Money.parse("1 USD"), cost_of=lambda _: Money.parse("0.02 USD"))
        for _ in range(3):
            bench.metered.fault("status", status=400)
            with pytest.raises(CallRejected):
                bench.call(provider)
        bench.call(provider)
        budget = bench.sql.execute(
            "SELECT reserved, settled FROM dagster_idempotent.budgets WHERE scope LIKE 'task:%'"
        ).fetchone()
        assert budget is not None
        assert (str(budget["reserved"]), str(budget["settled"])) == ("0.00", "0.02") or budget["reserved"] == 0

    def test_a_call_in_doubt_keeps_its_reservation(self, bench: Bench) -> None:
        bench.pipeline = Pipeline("weekly_digest", output=Digest, budget=Budget.per_period("1 USD"))
        doubt(bench, bench.without_look_up(upper_bound=Money.parse("1 USD")))
        work = bench.claim(bench.allocate("another tenant"))
        with pytest.raises(BudgetExceeded, match="period:2026-W32"):
            bench.call(bench.without_look_up(upper_bound=Money.parse("1 USD")), work=work)
        assert len(bench.posts) == 1


class TestSecrets:
    def test_the_credential_is_in_no_table_log_or_text(self, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        texts: list[str] = []

        def fail(**fault: Any) -> None:
            bench.metered.fault(**fault)
            try:
                bench.call(bench.provider(settle_delay=timedelta(0)))
            except (CallRejected, CallInDoubt) as error:
                texts.append(f"{error!r} {error} {error.facts}")

        quoted = json.dumps({"error": {"message": f"Incorrect API key provided: {SECRET}"}})
        fail(kind="status", status=401, body=quoted)
        fail(kind="status", status=400, body=quoted)
        fail(kind="status", status=500, body=quoted)
        bench.expire(seconds=1)
        bench.call(bench.provider(settle_delay=timedelta(0)))
        assert len(texts) == 3
        tables = [
            row["t"]
            for row in bench.sql.execute(
                "SELECT table_name::text AS t FROM information_schema.tables WHERE table_schema = 'dagster_idempotent'"
            )
        ]
        for table in tables:
            rows = bench.sql.execute(
                psql.SQL("SELECT t::text AS r FROM dagster_idempotent.{} t").format(psql.Identifier(table))
            )
            texts += [row["r"] for row in rows]
        bodies = bench.sql.execute(
            "SELECT convert_from(response_body, 'utf-8') AS b FROM dagster_idempotent.submissions"
        )
        texts += [str(row["b"]) for row in bodies]
        texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
        assert len(tables) >= 10
        assert not [text for text in texts if SECRET in text]


class TestLeaseAndCalls:
    def test_a_finder_learns_by_whom_a_call_is_being_sent(self, bench: Bench) -> None:
        bench.metered.fault("hold")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(), work=work)
            bench.metered.wait_held(1)
            with pytest.raises(LeaseBusy, match="is being sent by run run-1"):
                bench.claim(bench.allocate())
            bench.metered.release()
            sending.result()
        assert len(bench.posts) == 1

    def test_siblings_of_a_held_step_are_told_why_they_stop(self, bench: Bench) -> None:
        work = bench.claim(bench.allocate())
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(bench.without_look_up(), work=work)
        with pytest.raises(TaskHeld, match="in doubt"):
            Guard(work, bench.without_look_up()).call(CallKey("other"), REQUEST)
        assert len(bench.posts) == 1
