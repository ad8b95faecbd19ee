"""A live `dagster dev` with a schedule of every minute, while its processes are killed: charges are tasks (R37)."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from live import Live, live_dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

Rows = psycopg.Connection[dict[str, Any]]
SCHEDULED_AT = "dagster-idempotent/scheduled_at"
UNFINISHED = dg.RunsFilter(
    statuses=[
        dg.DagsterRunStatus.QUEUED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ]
)


def _minutes(live: Live) -> dict[datetime, list[dg.DagsterRun]]:
    found: dict[datetime, list[dg.DagsterRun]] = {}
    for run in live.runs():
        found.setdefault(_minute(run), []).append(run)
    return found


def _minute(run: dg.DagsterRun) -> datetime:
    return datetime.fromisoformat(run.tags[SCHEDULED_AT])


def _next_minute(live: Live) -> list[dg.DagsterRun]:
    """Wait for the tick of another minute; return its runs."""
    known = set(_minutes(live))
    later = live.wait("the next tick", lambda: {k: v for k, v in _minutes(live).items() if k not in known})
    return later[max(later)]


def _is_sending(live: Live, run: dg.DagsterRun) -> bool:
    """Whether a run is in its transform step and does not wait for another run."""
    found = [record.user_message for record in live.instance.all_logs(run.run_id)]
    return any('Started execution of step "transform"' in text for text in found) and not any(
        "Waiting" in text for text in found
    )


@pytest.mark.explore
def test_every_minute_is_one_task_and_one_charge_while_workers_and_daemons_die(
    folder: Path, ledger_url: str, metered_provider: MeteredProvider, sql: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PROCESSES", "1")
    with live_dagster(folder, ledger_url, "live_location.py", monkeypatch, run_retries=2) as live:
        # What its run leaves undone, the task sensor launches again once its lease is over.
        live.start_sensor("minutely_task_sensor")

        # A worker killed in the middle of its paid call.
        metered_provider.fault("hold")
        killed = _next_minute(live)[0]
        metered_provider.wait_held(1, timeout=120)
        live.kill_step(killed, "transform")
        metered_provider.release()
        live.wait_run(killed, dg.DagsterRunStatus.FAILURE)

        # Two daemons on one tick, and a run terminated in the middle of its call.
        live.start_second_daemon()
        metered_provider.fault("hold")
        terminated = _next_minute(live)[0]
        metered_provider.wait_held(1, timeout=120)
        (held,) = [run for run in _minutes(live)[_minute(terminated)] if _is_sending(live, run)]
        live.terminate(held.run_id)
        metered_provider.release()
        live.wait_run(held, dg.DagsterRunStatus.CANCELED)

        # Both daemons killed between two ticks, and started again as one; the cron has been edited meanwhile.
        live.wait("a pause between two ticks", lambda: not live.instance.get_runs(UNFINISHED))
        live.kill_daemons()
        live.code.write_text(live.code.read_text().replace("* * * * *", "*/1 * * * *"))
        live.start()
        _next_minute(live)
        live.reload()
        last = _minute(_next_minute(live)[0])
        live.wait("the end of every task", lambda: _all_are_completed(live, last, sql))
        _nothing_lost_and_nothing_paid_twice(live, last, metered_provider, sql)


def _all_are_completed(live: Live, last: datetime, sql: Rows) -> bool:
    found = sql.execute("SELECT DISTINCT status FROM dagster_idempotent.tasks WHERE scheduled_at <= %s", [last])
    return not live.instance.get_runs(UNFINISHED) and [row["status"] for row in found] == ["completed"]


def _nothing_lost_and_nothing_paid_twice(live: Live, last: datetime, provider: MeteredProvider, sql: Rows) -> None:
    minutes = _minutes(live)
    first = min(minutes)
    expected = {first + timedelta(minutes=n) for n in range((last - first) // timedelta(minutes=1) + 1)}
    assert expected <= set(minutes), "a tick was lost"
    tasks = sql.execute("SELECT task_id, scheduled_at FROM dagster_idempotent.tasks").fetchall()
    assert len({row["scheduled_at"] for row in tasks}) == len(tasks)
    for minute, runs in minutes.items():
        assert len({run.tags.get("dagster-idempotent/task_id") for run in runs} - {None}) <= 1, minute
    assert provider.charges == len(tasks)
