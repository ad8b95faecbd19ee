"""Each kind of time partitions: the start of the window is the task's time, whatever launched the run (R4, R37)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
import pytest
from real_dagster import CODE, Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

START = Callable[..., AbstractContextManager[Dagster]]
PREFIX = "dagster-idempotent"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A tick of the job's schedule, and the partition, key and task that it has to be."""

    job: str
    tick: str
    partition: str
    key: str
    task: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.job} {self.what}".strip()


KINDS = [
    Kind(job="hourly", tick="2026-08-10T06:00Z", partition="2026-08-10-05:00", key="2026-08-10T05", task="2026-W33-0"),
    Kind(
        job="half_past", tick="2026-08-10T06:30Z", partition="2026-08-10-05:30", key="2026-08-10T05:30", task="2026-W33"
    ),
    Kind(
        job="new_york_hourly",
        what="the first of two hours",
        tick="2026-11-01T06:00Z",
        partition="2026-11-01-01:00",
        key="2026-11-01T05",
        task="2026-W44",
    ),
    Kind(
        job="new_york_hourly",
        what="the second of two hours",
        tick="2026-11-01T07:00Z",
        partition="2026-11-01-01:00-0500",
        key="2026-11-01T06",
        task="2026-W44",
    ),
    Kind(
        job="new_york_daily",
        what="a day of 23 hours",
        tick="2026-03-09T04:00Z",
        partition="2026-03-08",
        key="2026-03-08T05",
        task="2026-03-08",
    ),
    Kind(
        job="new_york_daily",
        what="a day of 25 hours",
        tick="2026-11-02T05:00Z",
        partition="2026-11-01",
        key="2026-11-01T04",
        task="2026-11-01",
    ),
    Kind(
        job="kolkata_daily",
        tick="2026-08-10T18:30Z",
        partition="2026-08-10",
        key="2026-08-09T18:30",
        task="2026-W33",
    ),
    Kind(job="from_five", tick="2026-08-11T05:00Z", partition="2026-08-10", key="2026-08-10T05", task="2026-08-10"),
    Kind(job="this_week", tick="2026-08-10T00:00Z", partition="2026-08-10", key="2026-08-10T00", task="2026-W33"),
    Kind(
        job="lord_howe_monthly",
        what="a month of a half-hour change",
        tick="2026-04-30T13:30Z",
        partition="2026-04-01",
        key="2026-03-31T13",
        task="2026-04",
    ),
    Kind(job="by_cron", tick="2026-08-10T06:20Z", partition="2026-08-10-06:00", key="2026-08-10T06", task="2026-W33"),
]


def _tick(dagster: Dagster, kind: Kind) -> None:
    dagster.tick(f"{kind.job}_schedule", datetime.fromisoformat(kind.tick))


def _launchpad(dagster: Dagster, kind: Kind) -> None:
    dagster.launch(kind.job, partition=kind.partition)


def _backfill(dagster: Dagster, kind: Kind) -> None:
    dagster.backfill_job(kind.job, [kind.partition])


def _reexecute(dagster: Dagster, _: Kind) -> None:
    dagster.reexecute(dagster.runs()[0], "ALL_STEPS")


# The first way makes the task in one half of the table, the other way in the other half.
WAYS = [(_tick, _launchpad), (_launchpad, _tick)]


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        *(pytest.param(kind, WAYS[n % 2], id=str(kind)) for n, kind in enumerate(KINDS[::2])),
        *(
            pytest.param(kind, (_backfill, _tick, _reexecute, _launchpad), id=f"{kind}, all", marks=pytest.mark.explore)
            for kind in KINDS
        ),
    ],
)
def test_every_kind_of_partitions_is_one_task_however_it_is_launched(
    kind: Kind,
    ways: list[Callable[[Dagster, Kind], None]],
    start_dagster: START,
    metered_provider: MeteredProvider,
) -> None:
    with start_dagster(code=CODE.with_name("partition_location.py")) as dagster:
        for way in ways:
            way(dagster, kind)
        runs = dagster.runs()
        assert [run.tags["dagster/partition"] for run in runs] == [kind.partition] * len(ways)
        assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}, dagster.failures(runs[0])
        expected = f"{kind.job}/{kind.key}{':00:00' if ':' not in kind.key else ':00'}Z"
        assert {run.tags[f"{PREFIX}/allocation_key"] for run in runs} == {expected}
        (task,) = {run.tags[f"{PREFIX}/task_id"] for run in runs}
        assert task.startswith(kind.task)
        assert metered_provider.charges == 1
