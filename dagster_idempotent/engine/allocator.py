"""Allocation: one logical run, one task, whoever asks and however often (R1-R9)."""

import threading
from collections.abc import Mapping, Sequence

import psycopg
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity, TimeSource
from dagster_idempotent.domain.period import PeriodId, TaskId, period_id_for
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Task
from dagster_idempotent.errors import IdentityConflict, PipelineConflict, TaskNotFound
from dagster_idempotent.store import allocation
from dagster_idempotent.store.database import Database

RESTRICT_VIOLATION = "23001"


class Allocator:
    """Plans tasks. It is the only part of the library that creates one (R10)."""

    def __init__(self, database: Database, *, actor: str = "dagster-idempotent") -> None:
        self._database = database
        self._actor = actor
        self._registered: set[object] = set()
        self._lock = threading.Lock()

    def register(self, pipeline: Pipeline[BaseModel]) -> None:
        """Write a pipeline's settings; raises PipelineConflict where a fixed one would change."""
        with self._lock:
            if pipeline in self._registered:
                return
        try:
            self._database.run(lambda c: allocation.register_pipeline(c, pipeline, actor=self._actor))
        except psycopg.Error as error:
            if error.sqlstate != RESTRICT_VIOLATION:
                raise
            known = self._database.run(lambda c: allocation.get_pipeline(c, pipeline.name)) or {}
            raise PipelineConflict(
                f"Pipeline {pipeline.name!r} has tasks numbered by {known.get('period_kind')} in "
                f"{known.get('timezone')}; it is now declared with {pipeline.period} in {pipeline.timezone_name}. "
                "Another period or zone would number the same weeks again. Restore the declaration, or give the "
                "pipeline a new name.",
                pipeline=pipeline.name,
            ) from error
        with self._lock:
            self._registered.add(pipeline)

    def allocate(
        self, pipeline: Pipeline[BaseModel], identity: Identity, *, launch: Mapping[str, object] | None = None
    ) -> Task:
        """Return the task of `identity`, creating it the first time.

        `launch` is kept from the first launch, to launch again; its `time_from`, a TimeSource, has to be that of the
        pipeline's other tasks. Raises IdentityConflict where what is stored does not agree with the identity; then
        nothing is written (R7).
        """
        if identity.pipeline != pipeline.name:
            raise IdentityConflict(
                f"The identity names pipeline {identity.pipeline!r}, allocation was asked for {pipeline.name!r}.",
                found=(),
            )
        self.register(pipeline)
        period = (
            None
            if identity.scheduled_at is None
            else period_id_for(identity.scheduled_at, pipeline.period, pipeline.timezone)
        )
        known = self._database.run(lambda c: allocation.find_tasks(c, identity))
        if known:
            return _the_one(known, identity, period)
        found = self._database.run(lambda c: allocation.allocate(c, identity, period, launch))
        if found.verdict == "unmapped":
            names = ", ".join(task.task_id for task in found.tasks)
            raise IdentityConflict(
                f"{names} of pipeline {pipeline.name!r} were imported without an identity and without being marked "
                "unrelated, so this launch could be one of them. Nothing was allocated. Map them first.",
                found=[task.task_id for task in found.tasks],
            )
        if found.verdict == "timed_otherwise":
            raise _timed_otherwise(found.tasks[0], identity, launch or {})
        return _the_one(found.tasks, identity, period)

    def find(self, identity: Identity) -> Task | None:
        """Return the task of an identity without creating one."""
        known = self._database.run(lambda c: allocation.find_tasks(c, identity))
        return _the_one(known, identity, None) if known else None


def get_task(database: Database, pipeline: str, task_id: TaskId) -> Task:
    """Read a task; raises TaskNotFound, before anything else of a command happens (R11)."""
    task = database.run(lambda c: allocation.get_task(c, pipeline, task_id))
    if task is None:
        raise TaskNotFound(
            f"There is no task {task_id!r} in pipeline {pipeline!r}. Nothing was read or sent. Tasks are created by "
            "the allocate op only: launch the whole job for this period, or check the id.",
            pipeline=pipeline,
            task_id=task_id,
        )
    return task


def _timed_otherwise(known: Task, identity: Identity, launch: Mapping[str, object]) -> IdentityConflict:
    words = {
        TimeSource.PARTITION: "the start of its partition",
        TimeSource.TICK: "the time of its schedule's tick",
    }
    now = TimeSource(str(launch["time_from"]))
    (before,) = (each for each in TimeSource if each is not now)
    return IdentityConflict(
        f"Pipeline {identity.pipeline!r} has tasks whose time is {words[before]}, such as {known.task_id} "
        f"({known.allocation_key}); this launch takes {words[now]} instead. The same work would get a second key, and "
        "would be paid again, so nothing was allocated. Keep the job as it was, or give the pipeline another name or "
        "another version, which makes new tasks on purpose.",
        found=[known.task_id],
        allocation_key=identity.allocation_key,
    )


def _the_one(found: Sequence[Task], identity: Identity, period: PeriodId | None) -> Task:
    if len(found) == 1 and _agrees(found[0], identity, period):
        return found[0]
    listed = "; ".join(f"{task.task_id} (key {task.allocation_key}, version {task.version!r})" for task in found)
    raise IdentityConflict(
        f"The key {identity.allocation_key} of period {period or 'any'} was expected to be one task of its own; "
        f"found {listed}. Nothing was written. Either the identity was changed by hand, or two imports claim it.",
        found=[task.task_id for task in found],
        allocation_key=identity.allocation_key,
    )


def _agrees(task: Task, identity: Identity, period: PeriodId | None) -> bool:
    return (
        task.allocation_key == identity.allocation_key
        and task.run_id == identity.run_id
        and task.subject == identity.subject
        and task.scheduled_at == identity.scheduled_at
        and task.version == identity.version
        and period in (None, task.period_id)
    )
