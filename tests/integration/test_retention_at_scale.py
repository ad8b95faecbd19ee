import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.retention import Pruned, prune
from dagster_idempotent.store.database import Database

WHO = Who(actor="cron", reason="retention")
Sql = psycopg.Connection[dict[str, Any]]


class Output(BaseModel):
    text: str


PIPELINE: Pipeline[Any] = Pipeline("old", output=Output)


def _identity(number: int) -> Identity:
    return Identity(pipeline="old", scheduled_at=datetime(2020, 1, 6, tzinfo=UTC) + timedelta(minutes=number))


def fill(ledger: Database, sql: Sql, tasks: int) -> str:
    """Make `tasks` completed tasks as years of work leave them; return the id of the first."""
    first = Allocator(ledger).allocate(PIPELINE, _identity(0)).task_id
    # Written as they ended, past the triggers that would watch each of them get there.
    sql.execute("SET session_replication_role = replica")
    ended = "'completed', '{}', repeat('a', 64), clock_timestamp() - interval '3 years', 'r', 1"
    columns = "status, output, output_sha256, completed_at, completed_by, fencing_token"
    sql.execute(
        "INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id, "  # noqa: S608
        f"{columns}) SELECT 'old', '2020-W02-' || n, '2020-W02', n, 'old/key:' || n, "
        f"encode(sha256(n::text::bytea), 'hex'), {ended} FROM generate_series(1, %s) n",
        [tasks - 1],
    )
    sql.execute(
        f"UPDATE dagster_idempotent.tasks SET ({columns}) = ROW ({ended}) WHERE task_id = %s",  # noqa: S608
        [first],
    )
    sql.execute(
        "INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, body) "
        "SELECT pipeline, task_id, 'raw', repeat('a', 64), 1, 'text/plain', 'x' FROM dagster_idempotent.tasks"
    )
    sql.execute("SET session_replication_role = origin")
    sql.execute("ANALYZE dagster_idempotent.tasks, dagster_idempotent.artifacts")
    return first


def test_a_batch_goes_through_an_index_and_reads_no_whole_table(ledger: Database, sql: Sql) -> None:
    fill(ledger, sql, 20_000)
    plan = sql.execute(
        "EXPLAIN SELECT t.task_id FROM dagster_idempotent.tasks t WHERE t.pipeline = 'old' "
        "AND t.status IN ('completed', 'discarded') AND t.pruned_at IS NULL "
        "AND coalesce(t.completed_at, t.created_at) < now() "
        "AND (coalesce(t.completed_at, t.created_at), t.task_id) > (now() - interval '2 years', '') "
        "ORDER BY coalesce(t.completed_at, t.created_at), t.task_id LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED"
    ).fetchall()
    text = "\n".join(row["QUERY PLAN"] for row in plan)
    assert "tasks_prunable" in text
    assert "Seq Scan" not in text
    assert "Sort" not in text


@pytest.mark.explore
def test_a_million_tasks_are_pruned_in_batches_and_no_allocation_waits_for_one(
    ledger: Database, ledger_url: str, sql: Sql
) -> None:
    tasks, batch = 1_000_000, 1_000
    first = fill(ledger, sql, tasks)
    allocator, number = Allocator(ledger), 0
    batches: list[Pruned] = []
    ended: list[Pruned] = []

    def allocated() -> float:
        """Allocate a task that nobody has asked for yet; return how long that took."""
        nonlocal number
        number += 1
        started = time.perf_counter()
        allocator.allocate(PIPELINE, _identity(number))
        return time.perf_counter() - started

    def pruning() -> None:
        own = Database(ledger_url)
        ended.extend(
            prune(own, older_than=timedelta(days=365), batch=batch, who=WHO, progress=batches.append, pipeline="old")
        )
        own.close()

    undisturbed = sorted(allocated() for _ in range(1_000))
    pruner = threading.Thread(target=pruning)
    pruner.start()
    disturbed: list[float] = []
    while pruner.is_alive():
        disturbed.append(allocated())
    pruner.join()

    (done,) = ended
    assert (done.tasks, done.bodies, done.skipped) == (tasks, 2 * tasks, 0)
    assert len(batches) == tasks // batch
    disturbed.sort()
    told = {
        "undisturbed": (undisturbed[500], undisturbed[990], undisturbed[-1]),
        "disturbed": (disturbed[len(disturbed) // 2], disturbed[-len(disturbed) // 100], disturbed[-1]),
        "allocations": len(disturbed),
    }
    # One core less, and the same disk; never the locks of a batch.
    assert disturbed[len(disturbed) // 2] < 10 * undisturbed[500], told
    assert disturbed[-1] < 40 * undisturbed[-1], told
    # Asked for years later, its key still gives its task.
    assert allocator.allocate(PIPELINE, _identity(0)).task_id == first
    row = sql.execute("SELECT output, pruned_at FROM dagster_idempotent.tasks WHERE task_id = %s", [first]).fetchone()
    assert row is not None
    assert (row["output"], row["pruned_at"] is not None) == (None, True)
