"""Bad answers, later answers, lost files and rows: what was accepted stays, and nothing is paid twice (R21-R25)."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from real_dagster import Dagster

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

PARTITION = "acme|2026-08-03"
TASK = TaskId("2026-W32-0")
GOOD = '{"title": "good", "highlights": ["one"]}'
Rows = psycopg.Connection[dict[str, Any]]


def test_an_answer_that_is_refused_stays_paid_and_the_next_try_is_another_call(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("answer_with", content="no json at all")
    metered_provider.fault("answer_with", content=GOOD)
    run = dagster.launch("weekly_digest", partition=PARTITION)
    assert run.status is dg.DagsterRunStatus.SUCCESS
    calls = [record.data for record in dagster.metadata(run)["transform"]["calls"].records]
    assert [call["call"] for call in calls] == ["summary", "summary#2"]
    assert metered_provider.charges == 2

    again = dagster.launch("weekly_digest", partition=PARTITION)
    assert again.status is dg.DagsterRunStatus.SUCCESS
    assert metered_provider.charges == 2


@pytest.mark.parametrize("content", ["", "{}", '{"title": 1, "highlights": "none"}', "null", "[]"])
def test_no_acceptable_answer_completes_no_task_and_is_not_asked_for_again(
    content: str, dagster: Dagster, ledger: Database, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("answer_with", times=None, content=content)
    run = dagster.launch("weekly_digest", partition=PARTITION)
    assert run.status is dg.DagsterRunStatus.FAILURE
    text = dagster.failures(run)[0]
    assert "No answer of call 'summary' of task 2026-W32-0 was acceptable in 2 tries" in text
    assert metered_provider.charges == 2
    assert get_task(ledger, "weekly_digest", TASK).output is None

    dagster.reexecute(run, "FROM_FAILURE")
    assert metered_provider.charges == 2


def test_a_second_visibly_different_answer_changes_nothing_that_was_accepted(
    dagster: Dagster, ledger: Database, sql: Rows, metered_provider: MeteredProvider
) -> None:
    first = dagster.launch("weekly_digest", partition=PARTITION)
    accepted = get_task(ledger, "weekly_digest", TASK)
    metered_provider.fault("answer_with", times=None, content=GOOD)
    for _ in range(2):
        again = dagster.launch("weekly_digest", partition=PARTITION)
        assert again.status is dg.DagsterRunStatus.SUCCESS
        shown = dagster.metadata(again)["persist"]
        assert (shown["accepted"], shown["accepted_by_run"]) == ("earlier", first.run_id)
    dagster.reexecute_steps(first, ["persist", "deliver"])
    kept = get_task(ledger, "weekly_digest", TASK)
    assert (kept.output, kept.output_sha256) == (accepted.output, accepted.output_sha256)
    messages = sql.execute("SELECT state, payload FROM dagster_idempotent.outbox").fetchall()
    assert accepted.output is not None
    assert messages == [{"state": "delivered", "payload": json.loads(accepted.output)}]
    assert metered_provider.charges == 1


def test_without_the_files_of_the_io_manager_a_re_execution_replays_what_the_ledger_has(
    dagster: Dagster, folder: Path, metered_provider: MeteredProvider
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    run = dagster.launch("weekly_digest", partition=PARTITION)
    shutil.rmtree(Path(dagster.instance.storage_directory()))

    # Dagster itself cannot load the inputs of a run that starts in the middle; it says which file is gone.
    middle = dagster.reexecute(run, "FROM_FAILURE")
    assert middle.status is dg.DagsterRunStatus.FAILURE
    assert "No such file or directory" in dagster.failures(middle)[0]
    again = dagster.reexecute(middle, "ALL_STEPS")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert dagster.metadata(again)["collect"]["collected"] == "earlier"
    assert dagster.metadata(again)["transform"]["calls_replayed"] == 1
    assert metered_provider.charges == 1


def test_without_the_rows_of_its_run_a_task_is_busy_until_its_lease_ends_and_then_replays(
    dagster: Dagster, folder: Path, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    gone = dagster.launch("weekly_digest", partition=PARTITION)
    dagster.instance.delete_run(gone.run_id)
    monkeypatch.setattr("dagster_idempotent.definitions.step.MAX_WAITS", 0)
    waiting = dagster.launch("weekly_digest", partition=PARTITION)
    assert waiting.status is dg.DagsterRunStatus.FAILURE
    assert f"Dagster run {gone.run_id} holds task 2026-W32-0 for at most" in dagster.failures(waiting)[0]

    sql.execute("UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp()")
    again = dagster.reexecute(waiting, "FROM_FAILURE")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert metered_provider.charges == 1
