"""One key, one task, one charge, whatever launched the run (R37)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

MONDAY = datetime(2026, 8, 10, 9, tzinfo=UTC)
PARTITION = "acme|2026-08-03"
KEY = "weekly_digest/2026-08-03T00:00:00Z/subject=acme"
TASK_ID = "dagster-idempotent/task_id"
ALLOCATION_KEY = "dagster-idempotent/allocation_key"
START = Callable[..., AbstractContextManager[Dagster]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way of launching the work of one partition; `runs` is how many Dagster runs of it that makes."""

    name: str
    act: Callable[[Dagster, Path], None]
    runs: int = 1


def _order_failure(folder: Path) -> None:
    (folder / "after_payment_weekly_digest").touch()


def _first_run(dagster: Dagster, folder: Path) -> dg.DagsterRun:
    """Launch a run that pays and then fails."""
    _order_failure(folder)
    return dagster.launch("weekly_digest", partition=PARTITION)


def _tick(dagster: Dagster, _: Path) -> None:
    dagster.tick("every_monday", MONDAY)


def _tick_evaluated_twice(dagster: Dagster, _: Path) -> None:
    dagster.tick("every_monday", MONDAY)
    dagster.evaluate(MONDAY)


def _tick_of_a_schedule_created_again(dagster: Dagster, _: Path) -> None:
    dagster.tick("every_monday", MONDAY)
    dagster.stop_schedule("every_monday")
    dagster.instance.wipe_all_schedules()
    for run in dagster.runs():
        dagster.instance.delete_run(run.run_id)
    dagster.tick("every_monday", MONDAY)


def _late_duplicate(dagster: Dagster, _: Path) -> None:
    dagster.tick("every_monday", MONDAY)
    dagster.evaluate(datetime(2026, 8, 17, 9, tzinfo=UTC))
    dagster.launch("weekly_digest", partition=PARTITION)


def _automatic_run_retry(dagster: Dagster, folder: Path) -> None:
    failed = _first_run(dagster, folder)
    assert dagster.run(failed.run_id).status is dg.DagsterRunStatus.FAILURE
    dagster.retry_failed_runs()


def _op_retry(dagster: Dagster, folder: Path) -> None:
    _order_failure(folder)
    dagster.launch("weekly_digest_with_op_retries", partition=PARTITION)


def _reexecute_all(dagster: Dagster, folder: Path) -> None:
    dagster.reexecute(_first_run(dagster, folder), "ALL_STEPS")


def _reexecute_from_failure(dagster: Dagster, folder: Path) -> None:
    dagster.reexecute(_first_run(dagster, folder), "FROM_FAILURE")


def _reexecute_selected(dagster: Dagster, folder: Path) -> None:
    dagster.reexecute_steps(_first_run(dagster, folder), ["transform", "persist", "deliver"])


def _reexecute_allocate_alone(dagster: Dagster, folder: Path) -> None:
    dagster.reexecute_steps(_first_run(dagster, folder), ["allocate"])
    dagster.reexecute_steps(dagster.runs()[0], ["collect", "transform", "persist", "deliver"])


def _launchpad(dagster: Dagster, _: Path) -> None:
    dagster.launch("weekly_digest", partition=PARTITION)


def _launchpad_twice(dagster: Dagster, _: Path) -> None:
    for _n in range(2):
        dagster.launch("weekly_digest", partition=PARTITION)


def _job_backfill(dagster: Dagster, _: Path) -> None:
    dagster.backfill_job("weekly_digest", [PARTITION])


def _job_backfill_from_failure(dagster: Dagster, folder: Path) -> None:
    _first_run(dagster, folder)
    dagster.backfill_job("weekly_digest", [PARTITION], fromFailure=True)


def _asset_from_the_ui(dagster: Dagster, _: Path) -> None:
    dagster.materialise("weekly_digest_asset", PARTITION)


def _asset_backfill(dagster: Dagster, _: Path) -> None:
    dagster.backfill_asset("weekly_digest_asset", [PARTITION])


def _job_and_asset(dagster: Dagster, _: Path) -> None:
    dagster.launch("weekly_digest", partition=PARTITION)
    dagster.materialise("weekly_digest_asset", PARTITION)


KINDS = [
    Kind(name="tick", act=_tick),
    Kind(name="tick evaluated twice", act=_tick_evaluated_twice),
    Kind(name="schedule deleted and created again", act=_tick_of_a_schedule_created_again),
    Kind(name="late duplicate of an old tick", act=_late_duplicate, runs=2),
    Kind(name="automatic run retry", act=_automatic_run_retry, runs=2),
    Kind(name="op retry", act=_op_retry),
    Kind(name="re-execute all steps", act=_reexecute_all, runs=2),
    Kind(name="re-execute from failure", act=_reexecute_from_failure, runs=2),
    Kind(name="re-execute selected steps", act=_reexecute_selected, runs=2),
    Kind(name="re-execute allocate alone, then the rest", act=_reexecute_allocate_alone, runs=3),
    Kind(name="Launchpad", act=_launchpad),
    Kind(name="Launchpad twice", act=_launchpad_twice, runs=2),
    Kind(name="job backfill", act=_job_backfill),
    Kind(name="job backfill from failure", act=_job_backfill_from_failure, runs=2),
    Kind(name="asset from the UI", act=_asset_from_the_ui),
    Kind(name="asset backfill, a run per partition", act=_asset_backfill),
    Kind(name="job and asset of one pipeline", act=_job_and_asset, runs=2),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_launch_of_a_partition_has_one_key_one_task_and_one_charge(
    kind: Kind, start_dagster: START, folder: Path, metered_provider: MeteredProvider
) -> None:
    with start_dagster(run_retries=3) as dagster:
        kind.act(dagster, folder)
        runs = _runs_of(dagster)
        assert len(runs) >= kind.runs
        _is_one_task(dagster, metered_provider)

        # Whatever came first, another way finds the same task, and now it succeeds.
        dagster.materialise("weekly_digest_asset", PARTITION)
        last = _is_one_task(dagster, metered_provider)
        assert last.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(last)


def _runs_of(dagster: Dagster) -> list[dg.DagsterRun]:
    return [run for run in dagster.runs() if run.tags["dagster/partition"] == PARTITION]


def _is_one_task(dagster: Dagster, provider: MeteredProvider) -> dg.DagsterRun:
    runs = _runs_of(dagster)
    assert {run.tags[ALLOCATION_KEY] for run in runs} == {KEY}
    # Ticks and late duplicates bring other tasks, each with a charge of its own.
    tasks = {run.tags.get(TASK_ID) for run in runs}
    assert len(tasks) == 1, tasks
    assert None not in tasks
    everything = {run.tags[TASK_ID] for run in dagster.runs()}
    assert provider.charges == len(everything)
    return runs[-1]


@pytest.mark.parametrize(
    "window",
    ["RUN_CREATED", *(pytest.param(each, marks=pytest.mark.explore) for each in ("TICK_CREATED", "RUN_LAUNCHED"))],
)
def test_a_tick_resumed_after_a_kill_of_the_daemon_is_the_same_task(
    window: str, dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    dagster.start_schedule("every_monday", MONDAY)
    dagster.evaluate_and_die("every_monday", MONDAY, window)
    dagster.evaluate(MONDAY)
    _is_one_task(dagster, metered_provider)
    assert {run.status for run in dagster.runs()} == {dg.DagsterRunStatus.SUCCESS}
    assert metered_provider.charges == 2


def test_two_daemons_on_one_tick_make_one_task(dagster: Dagster, metered_provider: MeteredProvider) -> None:
    dagster.start_schedule("every_monday", MONDAY)
    dagster.evaluate_together(MONDAY, daemons=2)
    _is_one_task(dagster, metered_provider)
    assert metered_provider.charges == 2


def test_two_code_locations_with_one_pipeline_make_one_task(
    start_dagster: START, metered_provider: MeteredProvider
) -> None:
    with start_dagster(locations=["first", "second"]) as dagster:
        dagster.start_schedule("every_monday", MONDAY)
        dagster.start_schedule("every_monday", MONDAY, location="second")
        dagster.evaluate(MONDAY)
        origins = [run.remote_job_origin for run in _runs_of(dagster)]
        assert {origin.location_name for origin in origins if origin is not None} == {"first", "second"}
        _is_one_task(dagster, metered_provider)
        assert metered_provider.charges == 2


def test_a_range_of_one_partition_is_that_partition(dagster: Dagster, metered_provider: MeteredProvider) -> None:
    dagster.backfill_asset("ranged", ["2026-08-03"])
    dagster.materialise("ranged", "2026-08-03")
    assert {run.tags[ALLOCATION_KEY] for run in dagster.runs()} == {"ranged/2026-08-03T00:00:00Z"}
    assert {run.status for run in dagster.runs()} == {dg.DagsterRunStatus.SUCCESS}
    assert metered_provider.charges == 1
