"""Jobs without partitions: the tick's time, or an explicit key, is the identity (R3, R4)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import CODE, Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

TASK_ID = "dagster-idempotent/task_id"
ALLOCATION_KEY = "dagster-idempotent/allocation_key"
START = Callable[..., AbstractContextManager[Dagster]]
NIGHT = datetime(2026, 8, 10, 6, tzinfo=UTC)


def _keys(dagster: Dagster) -> set[tuple[str, str]]:
    return {(run.tags[ALLOCATION_KEY], run.tags[TASK_ID]) for run in dagster.runs()}


def test_a_tick_its_retry_and_its_re_executions_are_one_task(
    start_dagster: START, folder: Path, metered_provider: MeteredProvider
) -> None:
    with start_dagster(run_retries=1) as dagster:
        (folder / "after_payment_nightly").touch()
        dagster.tick("every_night", NIGHT)
        failed = dagster.runs()[0]
        dagster.retry_failed_runs()
        dagster.reexecute(failed, "ALL_STEPS")
        dagster.reexecute(failed, "FROM_FAILURE")
        dagster.reexecute_steps(failed, ["allocate", "collect", "transform", "persist"])
        assert len(dagster.runs()) == 5
        assert _keys(dagster) == {("nightly/2026-08-10T06:00:00Z", "2026-W33-0")}
        assert [run.status for run in dagster.runs()[1:]] == [dg.DagsterRunStatus.SUCCESS] * 4
        assert metered_provider.charges == 1


def test_an_explicit_key_is_one_task_however_often_it_is_launched(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    config = {"ops": {"allocate": {"config": {"explicit_key": "order 77"}}}}
    first = dagster.launch("nightly", config=config)
    dagster.launch("nightly", config=config)
    dagster.reexecute(first, "ALL_STEPS")
    assert {key for key, _ in _keys(dagster)} == {"nightly/key:order%2077"}
    assert len(_keys(dagster)) == 1
    assert metered_provider.charges == 1


def test_a_cron_edited_within_the_hour_keeps_the_key_of_the_same_instant(
    start_dagster: START, folder: Path, metered_provider: MeteredProvider
) -> None:
    with start_dagster() as dagster:
        dagster.tick("every_night", NIGHT)
    with start_dagster(code=_with_cron(folder, "0 2,3 * * *")) as dagster:
        dagster.tick("every_night", NIGHT)
        assert _keys(dagster) == {("nightly/2026-08-10T06:00:00Z", "2026-W33-0")}
    assert metered_provider.charges == 1


@pytest.mark.parametrize(
    ("cron", "since", "instants"),
    [
        # 02:00 does not exist in New York on 8 March 2026: one tick, at 03:00.
        ("0 2 * * *", "2026-03-08T05:30:00Z", ["2026-03-08T07:00:00Z"]),
        # 01:00 comes twice on 1 November 2026: once for a daily schedule, and as two instants for an hourly one.
        ("0 1 * * *", "2026-11-01T04:30:00Z", ["2026-11-01T06:00:00Z"]),
        ("0 * * * *", "2026-11-01T04:30:00Z", ["2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"]),
    ],
    ids=["an hour that is left out", "an hour that comes twice", "every hour"],
)
def test_each_instant_of_a_day_with_a_clock_change_is_one_task(
    cron: str, since: str, instants: list[str], start_dagster: START, folder: Path
) -> None:
    started = datetime.fromisoformat(since)
    with start_dagster(code=_with_cron(folder, cron)) as dagster:
        dagster.start_schedule("every_night", started)
        for minutes in range(0, 120, 30):
            dagster.evaluate(started + timedelta(minutes=minutes))
        assert [run.tags[ALLOCATION_KEY] for run in dagster.runs()] == [f"nightly/{instant}" for instant in instants]
        assert len({run.tags[TASK_ID] for run in dagster.runs()}) == len(instants)


def test_making_an_unpartitioned_pipeline_partitioned_is_refused_within_one_name(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    dagster.tick("every_night", NIGHT)
    (ticked,) = dagster.runs()
    edited = dagster.launch("nightly_by_day", partition="2026-08-09")
    assert edited.status is dg.DagsterRunStatus.FAILURE
    (text,) = dagster.failures(edited)
    assert "has tasks whose time is the time of its schedule's tick, such as 2026-W33-0" in text
    assert "give the pipeline another name or another version" in text
    # What was known before stays known, and explicit keys say no time that could differ.
    assert dagster.reexecute(ticked, "ALL_STEPS").status is dg.DagsterRunStatus.SUCCESS
    config = {"ops": {"allocate": {"config": {"explicit_key": "order 77"}}}}
    assert dagster.launch("nightly_by_day", config=config).status is dg.DagsterRunStatus.SUCCESS
    assert metered_provider.charges == 2


def test_making_a_partitioned_pipeline_unpartitioned_is_refused_within_one_name(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    assert dagster.launch("nightly_by_day", partition="2026-08-09").status is dg.DagsterRunStatus.SUCCESS
    dagster.tick("every_night", NIGHT)
    (text,) = dagster.failures(dagster.runs()[-1])
    assert "has tasks whose time is the start of its partition, such as 2026-W32-0" in text
    assert metered_provider.charges == 1


def _with_cron(folder: Path, cron: str) -> Path:
    """Edit the schedule in a copy of the code location."""
    edited = folder / f"location_{cron.translate(str.maketrans(' *,', '___'))}.py"
    text = CODE.read_text()
    assert text.count('"0 2 * * *"') == 1
    edited.write_text(text.replace('"0 2 * * *"', repr(cron)))
    return edited
