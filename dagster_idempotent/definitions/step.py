"""An op's work on a task: claim first, fail properly, and say in one sentence why it stops."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent.definitions import metadata, tags
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import HeldFor, Owner, Task, TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.reconciliation import AnyProvider
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import (
    CallInDoubt,
    CallInProgress,
    DatabaseUnavailable,
    IdempotentError,
    LeaseBusy,
    TaskClosed,
    TaskHeld,
)

# How often an op waits for a busy task before it stops and says who holds it.
MAX_WAITS = 20
LONGEST_WAIT = 120.0


@contextmanager
def working_on(
    context: dg.OpExecutionContext,
    pipeline: Pipeline[BaseModel],
    task_id: str,
    ledger: LedgerResource,
    providers: Sequence[AnyProvider],
) -> Generator[Work | Task]:
    """Claim a task for this run and renew its lease while the block runs; a completed task is given as it is.

    Whatever leaves the block is stored as the attempt's failure and raised as Dagster should treat it.
    """
    restore_retries(context)
    claimed: Work | Task | None = None
    try:
        claimed = _claim(context, pipeline, TaskId(task_id), ledger, providers)
        if isinstance(claimed, Task):
            yield claimed
            return
        with _Failure(claimed), claimed.renewed():
            yield claimed
    except IdempotentError as error:
        stop(context, error, claimed)


def _claim(
    context: dg.OpExecutionContext,
    pipeline: Pipeline[BaseModel],
    task_id: TaskId,
    ledger: LedgerResource,
    providers: Sequence[AnyProvider],
) -> Work | Task:
    database = ledger.database()
    try:
        return claim(
            database,
            ledger.heartbeat(),
            pipeline,
            task_id,
            Owner(context.run_id),
            is_finished=lambda owner: is_finished(context, owner),
            providers=providers,
            backoff=tags.RETRY_NUMBER in context.run.tags,
        )
    except TaskClosed:
        task = get_task(database, pipeline.name, task_id)
        if task.status is TaskStatus.COMPLETED:
            return task
        raise


def is_finished(context: dg.OpExecutionContext, owner: str) -> bool:
    """Whether Dagster knows that a run is over; a run that it does not know counts as alive."""
    run = context.instance.get_run_by_id(owner)
    return run is not None and run.is_finished


class _Failure:
    """Stores why an attempt failed, whatever was raised; a hold and a lost lease have been written already."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._work.fail_with(error)


def stop(context: dg.OpExecutionContext, error: IdempotentError, work: Work | Task | None = None) -> NoReturn:
    """Raise what makes Dagster do the right thing about an error: wait, fail for good, or fail for now."""
    match error:
        case LeaseBusy() | CallInProgress() | CallInDoubt() if error.retry_after is not None:
            if context.retry_number < MAX_WAITS:
                seconds = min(max(error.retry_after, 0.0) + 0.2, LONGEST_WAIT)
                waits = f"wait {context.retry_number + 1} of {MAX_WAITS}"
                context.log.info("%s Waiting %.1f s (%s).", error.message, seconds, waits)
                raise dg.RetryRequested(max_retries=MAX_WAITS, seconds_to_wait=seconds) from error
            if isinstance(error, CallInDoubt) and isinstance(work, Work):
                work.hold(HeldFor.IN_DOUBT, error.message)
                stop_retries(context)
            raise _failure(error) from error
        case TaskHeld() | CallInDoubt() | TaskClosed():
            stop_retries(context)
            raise _failure(error) from error
        case DatabaseUnavailable():
            raise dg.Failure(error.message, metadata=metadata.of_error(error), allow_retries=True) from error
        case _:
            raise _failure(error) from error


def _failure(error: IdempotentError) -> dg.Failure:
    facts = {"error": type(error).__name__, **metadata.of_error(error)}
    return dg.Failure(error.message, metadata=facts, allow_retries=False)


def stop_retries(context: dg.OpExecutionContext) -> None:
    """Keep automatic run retries from spinning on a task that waits for a decision.

    The run's own setting is kept in a tag of ours, with the run's id: a re-execution inherits both, and its first op
    puts the setting back.
    """
    kept = context.run.tags.get(tags.MAX_RETRIES)
    value = str(context.instance.run_retries_max_retries) if kept is None else kept
    context.instance.add_run_tags(
        context.run_id, {tags.MAX_RETRIES: "0", tags.KEPT_MAX_RETRIES: f"{context.run_id}:{value}"}
    )


def restore_retries(context: dg.OpExecutionContext) -> None:
    """Put back the retry setting that an earlier run of this task took away from itself."""
    run_id, _, value = context.run.tags.get(tags.KEPT_MAX_RETRIES, "").partition(":")
    if value and run_id != context.run_id and context.run.tags.get(tags.MAX_RETRIES) == "0":
        context.instance.add_run_tags(
            context.run_id, {tags.MAX_RETRIES: value, tags.KEPT_MAX_RETRIES: f"{context.run_id}:"}
        )
