"""Says which scheduled invocation an imported task was, or that it was none (R7, R8)."""

from collections.abc import Sequence

import psycopg

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import TaskId, parse_task_id, period_id_for
from dagster_idempotent.domain.task import Task
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.legacy_import.choices import rules_of
from dagster_idempotent.errors import IdentityConflict
from dagster_idempotent.store import legacy
from dagster_idempotent.store.database import Database


def map_task(
    database: Database,
    task_id: TaskId,
    identity: Identity | None,
    *,
    pipeline: str,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> Task:
    """Give an imported task its identity, or (None) mark it unrelated; allocation in its period goes on.

    Mapping again to the same is no error. Raises TaskNotFound, or IdentityConflict: the task has another identity, the
    key belongs to another task, or its scheduled time lies in another period.
    """
    task = get_task(database, pipeline, task_id)
    if identity is not None and identity.scheduled_at is not None:
        rules = rules_of(database, pipeline, register=False, actor=actor)
        period, _ = parse_task_id(task_id)
        scheduled = period_id_for(identity.scheduled_at, rules.kind, rules.timezone)
        if scheduled != period:
            raise _conflict(
                f"{identity.scheduled_at.isoformat()} lies in {scheduled} of {rules.timezone}, task {task_id} in "
                f"{period}. A task keeps its period. Give the scheduled time of that period, or a key.",
                [task_id],
            )
    with database.transaction() as connection:
        seen = legacy.map_task(connection, pipeline, task_id, identity, actor=actor, reason=reason)
        if dry_run:
            raise psycopg.Rollback
    key = None if identity is None else identity.allocation_key
    match seen.verdict:
        case "mapped":
            return task if dry_run else get_task(database, pipeline, task_id)
        case "taken":
            names = ", ".join(seen.task_ids)
            raise _conflict(
                f"The key {key} belongs to {names} already. Nothing was written. Two tasks cannot be one invocation: "
                "mark this one unrelated, or give it the time or key that it really had.",
                seen.task_ids,
            )
        case _:
            raise _conflict(
                f"Task {task_id} was not imported without an identity: its key is {task.allocation_key}. Nothing was "
                "written. An identity is fixed once it is there.",
                seen.task_ids,
            )


def _conflict(text: str, found: Sequence[TaskId]) -> IdentityConflict:
    return IdentityConflict(text, found=list(found))
