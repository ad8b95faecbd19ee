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
    """Make `tasks` completed tasks as a year of work leaves them; return the id of the first."""
    first = Allocator(ledger).allocate(PIPELINE, _identity(0)).task_id
    sql.execute(
        "INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id) "
        "SELECT 'old', '2020-W02-' || n, '2020-W02', n, 'old/key:' || n, encode(sha256(n::text::bytea), 'hex') "
        "FROM generate_series(1, %s) n",
        [tasks - 1],
    )
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'running', owner = 'r', fencing_token = 1")
    sql.execute(
        "UPDATE dagster_idempotent.tasks SET status = 'completed', output = '{}', output_sha256 = repeat('a', 64), "
        "completed_at = clock_timestamp() - interval '1 year', completed_by = 'r'"
    )
    sql.execute(
        "INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, body) "
        "SELECT pipeline, task_id, 'raw', repeat('a', 64), 1, 'text/plain', 'x' FROM dagster_idempotent.tasks"
    )
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
def test_a_million_tasks_are_pruned_in_batches_while_others_allocate(ledger: Database, sql: Sql) -> None:
    tasks = 1_000_000
    first = fill(ledger, sql, tasks)
    allocator, allocated = Allocator(ledger), 0

    def progress(so_far: Pruned) -> None:
        nonlocal allocated
        if so_far.tasks % 50_000 == 0:
            allocated += 1
            allocator.allocate(PIPELINE, _identity(allocated))

    (done,) = prune(ledger, older_than=timedelta(days=30), batch=1000, who=WHO, progress=progress)
    assert (done.tasks, done.bodies, done.skipped) == (tasks, 2 * tasks, 0)
    assert allocated == tasks // 50_000
    assert allocator.allocate(PIPELINE, _identity(0)).task_id == first
