"""Runs and steps as real processes: overlapping, killed, orphaned (R26-R29)."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

START = Callable[..., AbstractContextManager[Dagster]]
# Each step is a process that loads Dagster: seconds each on a busy machine.
PATIENCE = 180.0
PARTITION = "acme|2026-08-03"


def test_two_runs_of_one_partition_at_once_are_one_charge_and_the_second_replays(
    dagster: Dagster,
    metered_provider: MeteredProvider,
    workers: list[subprocess.Popen[bytes]],
    until: Callable[..., object],
) -> None:
    metered_provider.fault("hold")
    first = dagster.launch("weekly_digest", partition=PARTITION, queue_only=True)
    second = dagster.launch("weekly_digest", partition=PARTITION, queue_only=True)
    workers.append(dagster.start_worker(first))
    metered_provider.wait_held(1, timeout=PATIENCE)
    workers.append(dagster.start_worker(second))
    until(lambda: any("Waiting" in text for text in dagster.messages(second)), patience=PATIENCE)
    (waits,) = [text for text in dagster.messages(second) if "Waiting" in text][:1]
    assert first.run_id in waits
    assert "Nothing was sent by this run" in waits

    metered_provider.release()
    for worker in workers:
        assert worker.wait(PATIENCE) == 0
    assert [dagster.run(run.run_id).status for run in (first, second)] == [dg.DagsterRunStatus.SUCCESS] * 2
    assert dagster.metadata(dagster.run(second.run_id))["transform"]["calls_paid_now"] == 0
    assert metered_provider.charges == 1


def test_a_step_killed_in_the_middle_of_its_call_is_settled_by_look_up_in_the_re_execution(
    dagster: Dagster, metered_provider: MeteredProvider, workers: list[subprocess.Popen[bytes]]
) -> None:
    metered_provider.fault("hold")
    run = dagster.launch("weekly_digest", partition=PARTITION, queue_only=True)
    workers.append(dagster.start_worker(run))
    metered_provider.wait_held(1, timeout=PATIENCE)
    os.kill(dagster.pid_of_step(run, "transform"), signal.SIGKILL)
    assert workers[0].wait(PATIENCE) == 0
    assert dagster.run(run.run_id).status is dg.DagsterRunStatus.FAILURE
    metered_provider.release()

    again = dagster.reexecute(run, "FROM_FAILURE")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    (call,) = dagster.metadata(again)["transform"]["calls"].records
    assert (call.data["settled_by"], call.data["paid_or_replayed"]) == ("look_up", "replayed")
    assert metered_provider.charges == 1


@pytest.mark.explore
def test_a_step_that_outlives_its_killed_run_worker_and_the_automatic_retry_are_one_charge(
    start_dagster: START,
    metered_provider: MeteredProvider,
    workers: list[subprocess.Popen[bytes]],
    until: Callable[..., object],
) -> None:
    with start_dagster(run_retries=1) as dagster:
        metered_provider.fault("hold")
        run = dagster.launch("weekly_digest", partition=PARTITION, queue_only=True)
        workers.append(dagster.start_worker(run))
        metered_provider.wait_held(1, timeout=PATIENCE)
        orphan = dagster.pid_of_step(run, "transform")
        workers[0].kill()
        workers[0].wait()
        dagster.report_lost(run)
        assert Path(f"/proc/{orphan}").exists()

        retry = dagster.reexecute(run, "FROM_FAILURE", queue_only=True)
        workers.append(dagster.start_worker(retry))
        until(lambda: any("Waiting" in text for text in dagster.messages(retry)), patience=PATIENCE)
        assert len(metered_provider.requests()) == 1
        metered_provider.release()
        assert workers[1].wait(PATIENCE) == 0
        assert dagster.run(retry.run_id).status is dg.DagsterRunStatus.SUCCESS
        assert metered_provider.charges == 1
