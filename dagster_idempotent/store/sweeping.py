"""Sweeping: which tasks of a pipeline somebody has to look at, and the decision about one (R30, R31)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import FencingToken, Lease, Owner, TaskStatus
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements

SQL = statements("sweeping")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A task to decide about; `leased` where its owner's lease still runs."""

    task_id: TaskId
    owner: Owner | None
    token: FencingToken
    leased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTask:
    """A task for which an automatic attempt may be started, and what its first launch said."""

    task_id: TaskId
    status: TaskStatus
    attempts: int
    token: FencingToken
    launch: Mapping[str, Any] | None
    error: str | None
    owner: Owner | None
    leased: bool
    subject: str
    scheduled_at: datetime | None
    version: str
    allocation_key: str | None


def spent_tasks(connection: Connection, pipeline: str, *, after: str, limit: int) -> Sequence[Candidate]:
    """List tasks that are out of attempts and have not ended."""
    return [_candidate(row) for row in connection.execute(SQL["spent_tasks"], _page(pipeline, after, limit))]


def resolvable_holds(connection: Connection, pipeline: str, *, after: str, limit: int) -> Sequence[Candidate]:
    """List held tasks that have nothing left to wait for."""
    return [_candidate(row) for row in connection.execute(SQL["resolvable_holds"], _page(pipeline, after, limit))]


def doubtful_tasks(connection: Connection, pipeline: str, *, after: str, limit: int) -> Sequence[TaskId]:
    """List tasks with a call whose sender is gone and whose outcome is not known."""
    return [row["task_id"] for row in connection.execute(SQL["doubtful_tasks"], _page(pipeline, after, limit))]


def due_tasks(connection: Connection, pipeline: str, *, after: str, limit: int) -> Sequence[DueTask]:
    """List tasks whose next automatic attempt is due; a `leased` one only if its owner's run is over."""
    rows = connection.execute(SQL["due_tasks"], _page(pipeline, after, limit))
    return [
        DueTask(
            task_id=row["task_id"],
            status=TaskStatus(row["status"]),
            attempts=row["attempts"],
            token=row["fencing_token"],
            launch=row["launch"],
            error=row["error"],
            owner=row["owner"],
            leased=bool(row["leased"]),
            subject=row["subject_id"],
            scheduled_at=row["scheduled_at"],
            version=row["version"],
            allocation_key=row["allocation_key"],
        )
        for row in rows
    ]


def sweep_task(connection: Connection, pipeline: str, task_id: TaskId, *, finished: Lease | None) -> str:
    """Decide one task without waiting for it; return dead, held, released, untouched or locked."""
    row = connection.execute(
        SQL["sweep_task"],
        {
            "pipeline": pipeline,
            "task_id": task_id,
            "finished_owner": None if finished is None else finished.owner,
            "finished_token": None if finished is None else finished.token,
        },
    ).fetchone()
    return "untouched" if row is None else row["verdict"]


def _page(pipeline: str, after: str, limit: int) -> dict[str, object]:
    return {"pipeline": pipeline, "after": after, "limit": limit}


def _candidate(row: Row) -> Candidate:
    return Candidate(task_id=row["task_id"], owner=row["owner"], token=row["fencing_token"], leased=bool(row["leased"]))
