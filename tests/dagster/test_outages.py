"""What breaks around a tick loses no tick and charges nobody twice, and the run says what was missing (R36, R37)."""

import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import CODE, Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

START = Callable[..., AbstractContextManager[Dagster]]
MONDAY = datetime(2026, 8, 10, 9, tzinfo=UTC)
PARTITIONS = {"acme|2026-08-03", "globex|2026-08-03"}
# Each step is a process that loads Dagster: seconds each on a busy machine.
PATIENCE = 180.0


def _ended(dagster: Dagster) -> dict[str, dg.DagsterRunStatus]:
    """Return how the last run of each partition ended."""
    return {run.tags["dagster/partition"]: run.status for run in dagster.runs()}


def test_a_tick_while_the_database_is_away_is_a_failed_run_that_its_retry_makes_good(
    start_dagster: START, metered_provider: MeteredProvider, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_dagster(run_retries=1) as dagster:
        monkeypatch.setenv("TEST_LEDGER_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
        dagster.tick("every_monday", MONDAY)
        assert _ended(dagster) == dict.fromkeys(PARTITIONS, dg.DagsterRunStatus.FAILURE)
        for run in dagster.runs():
            assert "PostgreSQL at 127.0.0.1/nowhere did not serve us within" in dagster.failures(run)[0]
        assert metered_provider.requests() == ()

        monkeypatch.setenv("TEST_LEDGER_URL", ledger_url)
        dagster.retry_failed_runs()
        assert _ended(dagster) == dict.fromkeys(PARTITIONS, dg.DagsterRunStatus.SUCCESS)
        assert metered_provider.charges == 2


def test_a_tick_without_the_credential_is_a_failed_run_that_a_re_execution_makes_good(
    dagster: Dagster, metered_provider: MeteredProvider, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_API_KEY")
    dagster.tick("every_monday", MONDAY)
    failed = dagster.runs()
    assert {run.tags["dagster/partition"] for run in failed} == PARTITIONS
    for run in failed:
        assert "The environment variable TEST_API_KEY is unset or empty" in dagster.failures(run)[0]

    monkeypatch.setenv("TEST_API_KEY", secret)
    for run in failed:
        dagster.reexecute(run, "FROM_FAILURE")
    assert _ended(dagster) == dict.fromkeys(PARTITIONS, dg.DagsterRunStatus.SUCCESS)
    assert metered_provider.charges == 2


def test_a_code_location_reloaded_between_a_run_and_its_re_execution_goes_on_with_the_same_task(
    start_dagster: START, folder: Path, metered_provider: MeteredProvider
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    with start_dagster() as dagster:
        dagster.tick("every_monday", MONDAY)
    # Another version of the code: the op bodies and the cron have changed, names and request have not.
    edited = folder / "edited_location.py"
    text = (
        CODE.read_text().replace("hour_of_day=9", "hour_of_day=10").replace("return answer\n", "return dict(answer)\n")
    )
    edited.write_text(text)
    with start_dagster(code=edited) as dagster:
        (failed,) = [run for run in dagster.runs() if run.status is dg.DagsterRunStatus.FAILURE]
        again = dagster.reexecute(failed, "FROM_FAILURE")
        assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
        assert dagster.metadata(again)["transform"]["calls_replayed"] == 1
        # The tick of the edited schedule is another tick of the same week.
        dagster.tick("every_monday", MONDAY.replace(hour=10))
        assert len({run.tags["dagster-idempotent/task_id"] for run in dagster.runs()}) == 2
    assert metered_provider.charges == 2


def test_a_run_terminated_in_the_middle_of_its_call_pays_once_and_its_re_execution_finds_the_answer(
    dagster: Dagster, metered_provider: MeteredProvider, workers: list[subprocess.Popen[bytes]]
) -> None:
    metered_provider.fault("hold")
    run = dagster.launch("weekly_digest", partition="acme|2026-08-03", queue_only=True)
    workers.append(dagster.start_worker(run))
    metered_provider.wait_held(1, timeout=PATIENCE)
    # As "Terminate" in the UI does it, by the code server.
    dagster.instance.report_run_canceling(dagster.run(run.run_id))
    workers[0].send_signal(signal.SIGINT)
    workers[0].wait(PATIENCE)
    assert dagster.run(run.run_id).status is dg.DagsterRunStatus.CANCELED
    metered_provider.release()

    again = dagster.reexecute(run, "ALL_STEPS")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert metered_provider.charges == 1
