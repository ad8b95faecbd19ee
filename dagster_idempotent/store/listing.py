"""What operators read: lists and single rows, as dictionaries; a filter that is None is no filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import psycopg

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.texts import storable

SQL = statements("listing")
LIMIT = 200
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRef:
    """Names one task."""

    pipeline: str
    task_id: TaskId

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.task_id}"


def clock(connection: Connection) -> datetime:
    """Read the database's clock."""
    row = connection.execute(SQL["clock"]).fetchone()
    if row is None:  # a SELECT without FROM has one row
        raise psycopg.InternalError("the clock returned no row")
    return row["now"]


def pipelines(connection: Connection) -> Rows:
    """List the pipelines with the numbers of their tasks."""
    return connection.execute(SQL["list_pipelines"]).fetchall()


def tasks(
    connection: Connection,
    *,
    pipeline: str | None = None,
    period: str | None = None,
    subject: str | None = None,
    status: str | None = None,
    limit: int = LIMIT,
) -> Rows:
    """List tasks, the newest periods first."""
    return connection.execute(
        SQL["list_tasks"],
        {"pipeline": pipeline, "period": period, "subject": subject, "status": status, "limit": limit},
    ).fetchall()


def locate(connection: Connection, text: str, pipeline: str | None) -> Sequence[TaskRef]:
    """Find tasks by id, `pipeline/id`, allocation key or run id."""
    return _refs(connection.execute(SQL["locate"], {"text": storable(text), "pipeline": pipeline}).fetchall())


def locate_anywhere(connection: Connection, text: str, pipeline: str | None) -> Sequence[TaskRef]:
    """Find tasks by Dagster run, idempotency key or remote reference; this reads whole tables."""
    return _refs(connection.execute(SQL["locate_anywhere"], {"text": storable(text), "pipeline": pipeline}).fetchall())


def latest_tasks(connection: Connection, pipeline: str | None) -> Sequence[TaskRef]:
    """Name the newest tasks."""
    return _refs(connection.execute(SQL["latest_tasks"], {"pipeline": pipeline}).fetchall())


def task(connection: Connection, ref: TaskRef) -> Row | None:
    """Read one task with what its pipeline says about it."""
    return connection.execute(SQL["show_task"], {"pipeline": ref.pipeline, "task_id": ref.task_id}).fetchone()


def launched_like(connection: Connection, ref: TaskRef) -> Rows:
    """List how tasks like one were launched: those of its subject first, the newest first."""
    return connection.execute(SQL["launched_like"], {"pipeline": ref.pipeline, "task_id": ref.task_id}).fetchall()


def artifacts(connection: Connection, ref: TaskRef) -> Rows:
    """List the artifacts of a task, without their bodies."""
    return connection.execute(SQL["list_artifacts"], {"pipeline": ref.pipeline, "task_id": ref.task_id}).fetchall()


def calls(
    connection: Connection,
    *,
    pipeline: str | None = None,
    task_id: str | None = None,
    period: str | None = None,
    call_key: str | None = None,
    state: str | None = None,
    min_cost: Decimal | None = None,
    unsettled: bool = False,
    limit: int = LIMIT,
) -> Rows:
    """List submissions, without payloads."""
    return connection.execute(
        SQL["list_calls"],
        {
            "pipeline": pipeline,
            "task_id": task_id,
            "period": period,
            "call_key": call_key,
            "state": state,
            "min_cost": min_cost,
            "unsettled": unsettled,
            "limit": limit,
        },
    ).fetchall()


def overdue_jobs(connection: Connection, *, limit: int = LIMIT) -> Rows:
    """List the jobs that were accepted longer ago than their provider said that they take, the longest first."""
    return connection.execute(SQL["overdue_jobs"], {"limit": limit}).fetchall()


def approvals(connection: Connection, *, pipeline: str | None = None, limit: int = LIMIT) -> Rows:
    """List what was approved and what waits for it."""
    return connection.execute(SQL["list_approvals"], {"pipeline": pipeline, "limit": limit}).fetchall()


def messages(
    connection: Connection,
    *,
    pipeline: str | None = None,
    task_id: str | None = None,
    state: str | None = None,
    delivered: bool = False,
    limit: int = LIMIT,
) -> Rows:
    """List outbox messages; the delivered ones only where asked for."""
    return connection.execute(
        SQL["list_messages"],
        {
            "pipeline": pipeline,
            "task_id": task_id,
            "state": state,
            "all": delivered or state is not None,
            "limit": limit,
        },
    ).fetchall()


def costs(connection: Connection, *, by: str, pipeline: str | None = None, period: str | None = None) -> Rows:
    """Total the booked amounts by task, period, pipeline or provider."""
    return connection.execute(SQL["costs"], {"by": by, "pipeline": pipeline, "period": period}).fetchall()


def unpriced(connection: Connection, *, pipeline: str | None = None, period: str | None = None) -> int:
    """Count the answers whose cost nobody knows."""
    row = connection.execute(SQL["unpriced"], {"pipeline": pipeline, "period": period}).fetchone()
    return 0 if row is None else row["calls"]


def budgets(
    connection: Connection,
    *,
    pipeline: str | None = None,
    scope: str | None = None,
    everything: bool = False,
    limit: int = LIMIT,
) -> Rows:
    """List budget counters; those without a limit only where asked for."""
    return connection.execute(
        SQL["list_budgets"],
        {"pipeline": pipeline, "scope": scope, "all": everything or scope is not None, "limit": limit},
    ).fetchall()


def audit(
    connection: Connection,
    *,
    pipeline: str | None = None,
    task_id: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    limit: int = LIMIT,
) -> Rows:
    """List decisions, the latest first."""
    return connection.execute(
        SQL["list_audit"],
        {"pipeline": pipeline, "task_id": task_id, "actor": actor, "action": action, "limit": limit},
    ).fetchall()


def _refs(rows: Rows) -> Sequence[TaskRef]:
    return [TaskRef(pipeline=row["pipeline"], task_id=row["task_id"]) for row in rows]
