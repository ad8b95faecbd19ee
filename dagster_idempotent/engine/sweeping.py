"""Sweeping a pipeline: dead letters, holds that have nothing left to wait for, and tasks that are due (R30, R31).

Every pass is bounded and every task is decided by itself, without waiting for its row: a task that is stuck, locked or
poisonous costs the others nothing. Passes go on by task id and start again at the end, so that everything gets its turn
however much there is.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Lease, Owner
from dagster_idempotent.engine.reconciliation import reconcile_task
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import sweeping
from dagster_idempotent.store.database import Connection, Database, is_lost
from dagster_idempotent.store.sweeping import Candidate, DueTask

__all__ = ["DueBatch", "DueTask", "Swept", "due_tasks", "reconcile_doubtful", "sweep_pipeline"]

logger = logging.getLogger(__name__)
PAGE = 500
FROM_THE_START = ""
List = Callable[[Connection, str], Sequence[Candidate]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep decided; `locked` tasks are left for the next one."""

    dead: list[TaskId] = field(default_factory=list[TaskId])
    held: list[TaskId] = field(default_factory=list[TaskId])
    released: list[TaskId] = field(default_factory=list[TaskId])
    locked: list[TaskId] = field(default_factory=list[TaskId])


@dataclass(frozen=True, slots=True, kw_only=True)
class DueBatch:
    """Tasks that are due; pass `after` to the next call, which goes on there, and starts again at the end."""

    tasks: Sequence[DueTask]
    after: str


def sweep_pipeline(database: Database, pipeline: str, *, is_finished: Callable[[Owner], bool]) -> Swept:
    """Decide every task of a pipeline that is out of attempts, and set free every hold that is resolved.

    `is_finished` is asked about the owner of a failed task whose lease still runs; one that nobody knows counts as
    alive.
    """
    swept = Swept()
    verdicts = {"dead": swept.dead, "held": swept.held, "released": swept.released, "locked": swept.locked}
    kinds: tuple[List, ...] = (
        lambda c, after: sweeping.resolvable_holds(c, pipeline, after=after, limit=PAGE),
        lambda c, after: sweeping.spent_tasks(c, pipeline, after=after, limit=PAGE),
    )
    for kind in kinds:
        after = FROM_THE_START
        while page := database.run(lambda c, kind=kind, after=after: kind(c, after)):
            for candidate in page:
                verdict = _decide(database, pipeline, candidate, is_finished)
                if verdict in verdicts:
                    verdicts[verdict].append(candidate.task_id)
            after = page[-1].task_id
    for task_id in swept.dead:
        logger.error("sweep.dead_letter", extra={"pipeline": pipeline, "task": task_id})
    return swept


def due_tasks(
    database: Database,
    pipeline: str,
    *,
    is_finished: Callable[[Owner], bool],
    after: str = FROM_THE_START,
    limit: int = 100,
) -> DueBatch:
    """List tasks for which an automatic attempt may be started now; writes nothing.

    Failed after their backoff, under a lease that expired or whose owner's run is over; running under a lease that
    expired; set free or redriven; planned and never begun. Tasks that are out of attempts, held, or in a frozen
    pipeline are never due. A task stays due until it is claimed: (task_id, token) names one attempt.
    """
    found = database.run(lambda c: sweeping.due_tasks(c, pipeline, after=after, limit=limit))
    due = [task for task in found if not task.leased or task.owner is None or is_finished(task.owner)]
    return DueBatch(tasks=due, after=found[-1].task_id if len(found) == limit else FROM_THE_START)


def reconcile_doubtful(
    database: Database,
    pipeline: str,
    providers: Sequence[AnyProvider],
    *,
    after: str = FROM_THE_START,
    limit: int = 20,
) -> str:
    """Ask the providers about at most `limit` tasks with a call in doubt; return where the next call goes on."""
    found = database.run(lambda c: sweeping.doubtful_tasks(c, pipeline, after=after, limit=limit))
    for task_id in found:
        reconcile_task(database, pipeline, task_id, providers)
    return found[-1] if len(found) == limit else FROM_THE_START


def _decide(
    database: Database, pipeline: str, candidate: Candidate, is_finished: Callable[[Owner], bool]
) -> str | None:
    finished: Lease | None = None
    if candidate.leased and candidate.owner is not None:
        if not is_finished(candidate.owner):
            return None
        finished = Lease(pipeline=pipeline, task_id=candidate.task_id, owner=candidate.owner, token=candidate.token)
    try:
        return database.run(lambda c: sweeping.sweep_task(c, pipeline, candidate.task_id, finished=finished))
    except psycopg.Error as error:
        if is_lost(error):
            raise
        # One task that the schema refuses to move must not stop the sweep of the others.
        facts = {"pipeline": pipeline, "task": candidate.task_id, "reason": str(error).strip()}
        logger.exception("sweep.task_failed", extra=facts)
        return None
