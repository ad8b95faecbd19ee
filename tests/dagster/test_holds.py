"""In doubt without look-up: the run fails once, nothing spins, and nothing is sent again (R14)."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dagster as dg
from real_dagster import Dagster

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.resolutions import Evidence, Proof, resolve
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.testing.metered_provider import MeteredProvider

START = Callable[..., AbstractContextManager[Dagster]]
MAX_RETRIES = "dagster/max_retries"
WEEK = "2026-08-03"
TASK = TaskId("2026-W32-0")


def _held_run(dagster: Dagster, provider: MeteredProvider) -> dg.DagsterRun:
    provider.fault("accept_then_drop")
    return dagster.launch("blind", partition=WEEK)


def test_a_call_in_doubt_fails_its_run_once_with_what_happened_and_who_decides(
    start_dagster: START, ledger: Database, metered_provider: MeteredProvider
) -> None:
    with start_dagster(run_retries=3) as dagster:
        run = _held_run(dagster, metered_provider)
        assert run.status is dg.DagsterRunStatus.FAILURE
        (text,) = dagster.failures(run)
        assert "Call 'summary' of task 2026-W32-0" in text
        assert "is in doubt" in text
        assert "a named operator with evidence" in text
        assert "try again" not in text.lower()
        assert get_task(ledger, "blind", TASK).status is TaskStatus.HELD

        dagster.retry_failed_runs()
        dagster.retry_failed_runs()
        assert len(dagster.runs()) == 1
        assert dagster.run(run.run_id).tags[MAX_RETRIES] == "0"
        assert len(metered_provider.requests()) == 1


def test_each_re_execution_of_a_held_task_stops_without_a_request_and_without_retries(
    start_dagster: START, metered_provider: MeteredProvider
) -> None:
    with start_dagster(run_retries=3) as dagster:
        run = _held_run(dagster, metered_provider)
        for strategy in ("FROM_FAILURE", "ALL_STEPS", "FROM_FAILURE"):
            run = dagster.reexecute(run, strategy)
            assert run.status is dg.DagsterRunStatus.FAILURE
            assert "is held (in_doubt)" in dagster.failures(run)[-1]
            dagster.retry_failed_runs()
        assert len(dagster.runs()) == 4
        assert {run.tags[MAX_RETRIES] for run in dagster.runs()} == {"0"}
        assert len(metered_provider.requests()) == 1


def test_once_settled_the_retry_setting_is_back_and_a_later_failure_is_retried(
    start_dagster: START, ledger: Database, folder: Path, metered_provider: MeteredProvider
) -> None:
    with start_dagster(run_retries=3) as dagster:
        held = _held_run(dagster, metered_provider)
        # Held again, so that the setting has to survive two runs that both took it away.
        again = dagster.reexecute(held, "FROM_FAILURE")
        _resolve(ledger)
        (folder / "after_payment_blind").touch()
        last = dagster.reexecute(again, "FROM_FAILURE")
        assert last.status is dg.DagsterRunStatus.FAILURE
        assert "the fault after_payment_blind was ordered" in dagster.failures(last)[0]
        assert dagster.run(last.run_id).tags[MAX_RETRIES] == "3"

        dagster.retry_failed_runs()
        assert dagster.runs()[-1].status is dg.DagsterRunStatus.SUCCESS
        assert len(dagster.runs()) == 4
        assert len(metered_provider.requests()) == 1


def _resolve(ledger: Database) -> None:
    """Give the answer that a named operator found in the provider's console."""
    content = json.dumps({"title": "from the console", "highlights": []})
    answer = json.dumps({"id": "chat-1", "choices": [{"message": {"content": content}}]}).encode()
    evidence = Evidence(proof=Proof.SUCCEEDED, told="seen in the provider's console", answer=answer)
    who = Who(actor="ada", reason="ticket 12")
    resolve(ledger, TaskRef(pipeline="blind", task_id=TASK), "summary", evidence, who=who)
