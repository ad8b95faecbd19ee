"""Only the process that committed the intent sends, once, inside its window (R12)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import CallInDoubt, LeaseBusy, TaskHeld
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew
    from tests.integration.guard.conftest import Bench

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]


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

    def test_of_two_processes_one_sends_and_the_other_is_told_who_is_sending(
        self, crew: "Crew", ledger_url: str, metered_provider: MeteredProvider
    ) -> None:
        provider = {"base_url": metered_provider.base_url, "api_key_variable": "K"}
        first, second = crew.connected(2, url=ledger_url, provider=provider, environment={"K": "k"})
        task_id = first.ask("allocate")
        for worker in (first, second):
            worker.ask("claim", task_id=task_id, owner="the-run-that-sends")
        metered_provider.fault("hold")  # a slow provider: it has accepted, and takes its time
        first.tell("call")
        metered_provider.wait_held(1)
        told = second.refused("call")
        assert told["error"] == "CallInProgress"
        assert told["facts"]["owner"] == "the-run-that-sends"
        assert "is being sent by Dagster run the-run-that-sends" in told["text"]
        metered_provider.release()
        assert first.answer()["value"]["replayed"] is False
        assert second.ask("call")["replayed"] is True
        assert metered_provider.charges == len(metered_provider.requests()) == 1

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

        def done() -> bool:
            # One run that waits, as an op does: attempts count runs, and a quick machine asks often.
            other.tell("claim", task_id=task_id, owner="other", finished=["*"])
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


class TestLeaseAndCalls:
    def test_a_finder_learns_by_whom_a_call_is_being_sent(self, bench: "Bench") -> None:
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

    def test_siblings_of_a_held_step_are_told_why_they_stop(self, bench: "Bench") -> None:
        work = bench.claim(bench.allocate())
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(bench.without_look_up(), work=work)
        with pytest.raises(TaskHeld, match="in doubt"):
            Guard(work, bench.without_look_up()).call(CallKey("other"), bench.request)
        assert len(bench.posts) == 1
