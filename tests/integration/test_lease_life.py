"""A lease through its life: wrong clocks, stuck neighbours, loss in the middle of an op, the end of the process."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg.sql
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]
MINUTES = 600
OVER = "SELECT FROM dagster_idempotent.tasks WHERE task_id = %s AND lease_expires_at < clock_timestamp()"


class Digest(BaseModel):
    title: str


SHORT = Pipeline("weekly_digest", output=Digest, lease="1s", sender_lease="1s", send_window="900ms")


def begin(
    database: Database,
    heartbeat: Heartbeat,
    subject: str = "",
    *,
    owner: str = "run",
    pipeline: Pipeline[Digest] = SHORT,
) -> Work:
    identity = Identity(pipeline="weekly_digest", subject=subject, scheduled_at=datetime(2026, 8, 3, tzinfo=UTC))
    task = Allocator(database).allocate(pipeline, identity)
    return claim(database, heartbeat, pipeline, task.task_id, Owner(owner), is_finished=lambda owner: owner == "run")


def test_clocks_of_workers_ten_minutes_off_both_ways_decide_nothing(
    crew: "Crew", sql: Sql, metered_provider: MeteredProvider, until: Until, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "pipeline": {"lease": "2s", "sender_lease": "1s", "send_window": "900ms"},
        "provider": {"base_url": metered_provider.base_url, "api_key_variable": "K", "look_up_path": "/lookup"},
        "environment": {"K": "k"},
        "folder": str(tmp_path),
    }
    begun = sql.execute("SELECT clock_timestamp() AS t").fetchone()
    assert begun is not None
    fast, slow = crew.connected(2, url=sql.info.dsn, **settings)
    assert fast.ask("set_clock", seconds=MINUTES) == pytest.approx(MINUTES, abs=5)
    assert slow.ask("set_clock", seconds=-MINUTES) == pytest.approx(-MINUTES, abs=5)
    for holder, other in ((fast, slow), (slow, fast)):
        name = "fast" if holder is fast else "slow"
        task_id = holder.ask("allocate", subject=name)
        holder.ask("claim", task_id=task_id, owner=name)
        # Not over for one whose clock is ahead, and not taken early.
        refused = other.refused("claim", task_id=task_id, owner="other")
        assert refused["error"] == "LeaseBusy"
        assert 0 < refused["facts"]["retry_after"] <= 2
        assert holder.ask("renew")
        # Not for ever for one whose clock is behind: over when the database says so.
        until(lambda task_id=task_id: sql.execute(OVER, [task_id]).rowcount)
        assert other.ask("claim", task_id=task_id, owner="other") == {"token": 2, "attempt": 2}
        assert holder.refused("persist", title="late")["error"] == "LeaseLost"
        assert other.ask("whole_task", subject=name, owner="other")["messages"] == ["delivered"]
    assert metered_provider.charges == 2
    found = times(sql)
    assert {("tasks", "completed_at"), ("submissions", "intended_at"), ("outbox", "delivered_at")} <= found.keys()
    now = sql.execute("SELECT clock_timestamp() AS t").fetchone()
    assert now is not None
    for name, (first, last) in found.items():
        assert begun["t"] - timedelta(seconds=1) <= first, name
        assert last <= now["t"] + timedelta(seconds=2), name


def times(sql: Sql) -> dict[tuple[str, str], tuple[datetime, datetime]]:
    """Find the first and the last time in each column of the ledger that holds one which workers had a part in."""
    columns = sql.execute(
        "SELECT table_name AS t, column_name AS c FROM information_schema.columns WHERE table_schema = "
        "'dagster_idempotent' AND data_type = 'timestamp with time zone' "
        "AND column_name <> 'scheduled_at' AND table_name <> 'ledger'"
    )
    found = {}
    for column in columns.fetchall():
        query = psycopg.sql.SQL("SELECT min({c}) AS first, max({c}) AS last FROM dagster_idempotent.{t}")
        names = {name: psycopg.sql.Identifier(value) for name, value in column.items()}
        row = sql.execute(query.format(**names)).fetchone()
        assert row is not None
        if row["first"] is not None:
            found[column["t"], column["c"]] = (row["first"], row["last"])
    return found


def test_a_task_whose_row_somebody_keeps_locked_costs_no_other_its_lease(
    ledger: Database, sql: Sql, until: Until
) -> None:
    heartbeat = Heartbeat(ledger)
    slow = Pipeline("weekly_digest", output=Digest, lease="2500ms")
    works = [begin(ledger, heartbeat, f"tenant-{number}", pipeline=slow) for number in range(3)]
    stuck = works[0].task.task_id
    live = "SELECT FROM dagster_idempotent.tasks WHERE task_id <> %s AND lease_expires_at > clock_timestamp()"
    with works[0].renewed(), works[1].renewed(), works[2].renewed(), psycopg.connect(ledger.url) as locker:
        locker.execute("SELECT FROM dagster_idempotent.tasks WHERE task_id = %s FOR UPDATE", [stuck])
        begun = sql.execute("SELECT clock_timestamp() AS t").fetchone()
        assert begun is not None

        def goes_on() -> bool:
            assert sql.execute(live, [stuck]).rowcount == 2
            now = sql.execute("SELECT clock_timestamp() AS t").fetchone()
            assert now is not None
            return now["t"] - begun["t"] > 2 * slow.lease

        until(goes_on)
        locker.rollback()
        until(lambda: sql.execute("SELECT FROM dagster_idempotent.tasks WHERE lease_expires_at > now()").rowcount == 3)
        for work in works:
            work.check_lease()


def test_the_configured_interval_is_the_one_that_renews(ledger: Database, sql: Sql, until: Until) -> None:
    often = Pipeline("weekly_digest", output=Digest, lease="1h", renew_every="100ms")
    work = begin(ledger, Heartbeat(ledger), pipeline=often)
    expiry = "SELECT lease_expires_at AS at FROM dagster_idempotent.tasks"
    with work.renewed():
        for _ in range(3):
            before = sql.execute(expiry).fetchone()
            until(lambda before=before: sql.execute(expiry).fetchone() != before)


PROCESS = """
import sys, threading
from tests.integration.test_lease_life import begin, Heartbeat, Database
database = Database(sys.argv[1])
work = begin(database, Heartbeat(database))
with work.renewed():
    print("renewing", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "raises":
        raise SystemExit(7)
print([thread.name for thread in threading.enumerate()], flush=True)
"""


@pytest.mark.parametrize(("database", "how", "code"), [("answers", "returns", 0), ("stalls", "raises", 7)])
def test_a_process_that_renewed_a_lease_ends_by_itself(ledger_url: str, how: str, code: int, database: str) -> None:
    parts = conninfo_to_dict(ledger_url)
    with FaultProxy(f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}", protocol="postgres") as proxy:
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, proxy.url_for(ledger_url), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "renewing\n"
        if database == "stalls":
            seen = proxy.counts.to_upstream
            assert proxy.wait_for(seen + 1, direction="to_upstream")
            proxy.stall()
        left, _ = process.communicate("\n", timeout=30)
        assert process.returncode == code
        if how == "returns":
            assert left == "['MainThread']\n"
