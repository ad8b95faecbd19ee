"""Pipelines and tasks: registration, discovery, allocation (R1-R9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from psycopg.types.json import Jsonb
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import PeriodId, TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Task
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row, task_of
from dagster_idempotent.store.statements import statements

SQL = statements("allocation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What allocation came upon; `verdict` is found, created, unmapped or timed_otherwise."""

    verdict: str
    tasks: Sequence[Task]


def register_pipeline(connection: Connection, pipeline: Pipeline[BaseModel], *, actor: str) -> None:
    """Write the settings of a pipeline, audited where they change; the fixed ones meet a trigger."""
    connection.execute(SQL["register_pipeline"], {"settings": Jsonb(_settings(pipeline)), "actor": actor})


def get_pipeline(connection: Connection, pipeline: str) -> Row | None:
    """Read the settings row of a pipeline."""
    return connection.execute(SQL["get_pipeline"], {"pipeline": pipeline}).fetchone()


def find_tasks(connection: Connection, identity: Identity) -> Sequence[Task]:
    """Find every task that any form of the identity points at; more than one is a conflict (R7)."""
    return [task_of(row) for row in connection.execute(SQL["find_tasks"], _identity(identity))]


def allocate(
    connection: Connection,
    identity: Identity,
    period_id: PeriodId | None,
    launch: Mapping[str, object] | None,
) -> Found:
    """Find or create the task of an identity under the pipeline's lock.

    Without a period the database's clock decides it, once, after the look-up.
    """
    parameters = _identity(identity) | {
        "period_id": period_id,
        "launch": None if launch is None else Jsonb(launch),
    }
    rows = connection.execute(SQL["allocate"], parameters).fetchall()
    return Found(verdict=rows[0]["verdict"], tasks=[task_of(row) for row in rows])


def get_task(connection: Connection, pipeline: str, task_id: TaskId) -> Task | None:
    """Read one task."""
    row = connection.execute(SQL["get_task"], {"pipeline": pipeline, "task_id": task_id}).fetchone()
    return None if row is None else task_of(row)


def _identity(identity: Identity) -> dict[str, object]:
    return {
        "pipeline": identity.pipeline,
        "allocation_key": identity.allocation_key,
        "run_id": identity.run_id,
        "subject": identity.subject,
        "scheduled_at": identity.scheduled_at,
        "version": identity.version,
    }


def _settings(pipeline: Pipeline[BaseModel]) -> dict[str, object]:
    limits = dict(pipeline.budget.limits()) if pipeline.budget else {}
    amounts = {f"{scope}_limit": str(limit.amount) for scope, limit in limits.items()}
    return {
        "pipeline": pipeline.name,
        "period_kind": str(pipeline.period),
        "timezone": pipeline.timezone_name,
        "lease": _interval(pipeline.lease),
        "sender_lease": _interval(pipeline.sender_lease),
        "send_window": _interval(pipeline.send_window),
        "max_attempts": pipeline.max_attempts,
        "backoff_base": _interval(pipeline.backoff.base),
        "backoff_cap": _interval(pipeline.backoff.cap),
        "gate": str(pipeline.gate),
        "currency": pipeline.currency,
        **amounts,
    }


def _interval(length: timedelta) -> str:
    return f"{length // timedelta(microseconds=1)} microseconds"
