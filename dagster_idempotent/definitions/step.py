"""An op's work on a task: claim first, fail properly, and say in one sentence why it stops."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent.definitions import metadata, tags
from dagster_idempotent.definitions.operator_links import decisions_for
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import HeldFor, Lease, Owner, Task, TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.retry_policy import Verdict, rule_of
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import (
    CallInDoubt,
    CallInProgress,
    CallsUnfinished,
    DatabaseUnavailable,
    IdempotentError,
    LeaseBusy,
    LeaseLost,
    RemoteJobUnfinished,
    StoreError,
    TaskClosed,
)
from dagster_idempotent.providers.protocol import AnyProvider

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
        tag_run(context, claimed if isinstance(claimed, Task) else claimed.task)
        if isinstance(claimed, Task):
            yield claimed
            return
        claimed.large, claimed.log = ledger.large_artifacts(), context.log.info
        with _Failure(claimed), claimed.renewed():
            yield claimed
    except IdempotentError as error:
        stop(context, error, claimed, about=About(ledger=ledger, pipeline=pipeline.name, task_id=task_id))


@contextmanager
def replaying(
    context: dg.OpExecutionContext, pipeline: Pipeline[BaseModel], task: Task, ledger: LedgerResource
) -> Generator[Work]:
    """Let the block ask for the calls of a completed task again; an answer that is not stored is refused."""
    # No claim stands behind this lease: the ledger answers reads, and refuses every intent.
    lease = Lease(pipeline=pipeline.name, task_id=task.task_id, owner=Owner(context.run_id), token=task.fencing_token)
    work = Work(database=ledger.database(), heartbeat=ledger.heartbeat(), pipeline=pipeline, task=task, lease=lease)
    try:
        with work.renewed():
            yield work
    except LeaseLost as error:
        closed = TaskClosed(
            f"Task {task.task_id} of pipeline {pipeline.name!r} is completed, and {context.op_handle} asked for a call "
            "that it never made. Nothing was sent. More work on it needs another task: another partition, key or "
            "version.",
            task_id=task.task_id,
            status=task.status,
        )
        closed.__cause__ = error
        stop(context, closed)
    except IdempotentError as error:
        stop(context, error, about=About(ledger=ledger, pipeline=pipeline.name, task_id=task.task_id))


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
            backoff=_is_automatic(context),
        )
    except TaskClosed:
        task = get_task(database, pipeline.name, task_id)
        if task.status is TaskStatus.COMPLETED:
            return task
        raise


def _is_automatic(context: dg.OpExecutionContext) -> bool:
    """Whether a daemon launched this run; a person's re-execution of such a run inherits its tags."""
    if tags.AUTOMATIC in context.run.tags and context.run.parent_run_id is None:
        return True
    if tags.RETRY_NUMBER not in context.run.tags or context.run.parent_run_id is None:
        return False
    parent = context.instance.get_run_by_id(context.run.parent_run_id)
    return parent is None or parent.tags.get(tags.AUTO_RETRY_RUN_ID, context.run_id) == context.run_id


def tag_run(context: dg.OpExecutionContext, task: Task) -> None:
    """Make a run findable by its task, also one that starts in the middle and inherited no tags."""
    found = {tags.PIPELINE: task.pipeline, tags.TASK_ID: task.task_id, tags.PERIOD: task.period_id}
    if task.allocation_key is not None:
        found[tags.ALLOCATION_KEY] = task.allocation_key
    if any(context.run.tags.get(name) != value for name, value in found.items()):
        context.instance.add_run_tags(context.run_id, found)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The task that an error is about, and the ledger that knows what may be decided about it."""

    ledger: LedgerResource
    pipeline: str
    task_id: str


def stop(
    context: dg.OpExecutionContext,
    error: IdempotentError,
    work: Work | Task | None = None,
    *,
    about: About | None = None,
) -> NoReturn:
    """Raise what makes Dagster do the right thing about an error: wait, fail for now, or fail for good.

    A failure that waits for a person carries a link for each decision about the task.
    """
    match error:
        case LeaseBusy() | CallInProgress() | CallInDoubt() | CallsUnfinished() if error.retry_after is not None:
            if context.retry_number < MAX_WAITS:
                seconds = min(max(error.retry_after, 0.0) + 0.2, LONGEST_WAIT)
                waits = f"wait {context.retry_number + 1} of {MAX_WAITS}"
                context.log.info("%s Waiting %.1f s (%s).", error.message, seconds, waits)
                raise dg.RetryRequested(max_retries=MAX_WAITS, seconds_to_wait=seconds) from error
            leading = error.leading if isinstance(error, CallsUnfinished) else error
            if isinstance(leading, RemoteJobUnfinished) and isinstance(work, Work):
                work.let_go(leading)
            if isinstance(error, CallInDoubt) or (isinstance(error, CallsUnfinished) and error.in_doubt):
                if isinstance(work, Work):
                    work.hold(HeldFor.IN_DOUBT, error.message)
                stop_retries(context)
            raise _failure(error, decisions=_decisions(context, about)) from error
        case LeaseBusy() | CallInProgress() | LeaseLost():
            # Another run is at work; this run's automatic retry comes later and may find it done.
            raise _failure(error) from error
        case _ if isinstance(error, DatabaseUnavailable) or rule_of(error).verdict is Verdict.AGAIN:
            raise _failure(error, allow_retries=True) from error
        case _:
            # A decision, a setting or other code is needed: a retry would only use up attempts.
            stop_retries(context)
            raise _failure(error, decisions=_decisions(context, about)) from error


def _decisions(context: dg.OpExecutionContext, about: About | None) -> metadata.Metadata:
    if about is None:
        return {}
    # Who can read no ledger is told so already, by the error that is being reported.
    with suppress(StoreError):
        database, webserver = about.ledger.database(), about.ledger.webserver_url
        return {**decisions_for(database, about.pipeline, about.task_id, context.run, webserver)}
    return {}


def _failure(
    error: IdempotentError, *, allow_retries: bool = False, decisions: metadata.Metadata | None = None
) -> dg.Failure:
    facts = {**(decisions or {}), "error": type(error).__name__, **metadata.of_error(error)}
    return dg.Failure(error.message, metadata=facts, allow_retries=allow_retries)


def stop_retries(context: dg.OpExecutionContext) -> None:
    """Keep automatic run retries from spinning on a task that waits for a decision.

    The run's own setting is kept in a tag of ours, with the run's id: a re-execution inherits both, and its first op
    puts the setting back.
    """
    run_tags = _current_tags(context)
    _, _, kept = run_tags.get(tags.KEPT_MAX_RETRIES, "").partition(":")
    own = run_tags.get(tags.MAX_RETRIES, str(context.instance.run_retries_max_retries))
    context.instance.add_run_tags(
        context.run_id, {tags.MAX_RETRIES: "0", tags.KEPT_MAX_RETRIES: f"{context.run_id}:{kept or own}"}
    )


def restore_retries(context: dg.OpExecutionContext) -> None:
    """Put back the retry setting that an earlier run of this task took away from itself."""
    if tags.KEPT_MAX_RETRIES not in context.run.tags:
        return
    run_id, _, value = _current_tags(context).get(tags.KEPT_MAX_RETRIES, "").partition(":")
    if value and run_id != context.run_id:
        context.instance.add_run_tags(
            context.run_id, {tags.MAX_RETRIES: value, tags.KEPT_MAX_RETRIES: f"{context.run_id}:"}
        )


def _current_tags(context: dg.OpExecutionContext) -> Mapping[str, str]:
    """Return the run's tags as stored: a context keeps those with which its process started."""
    run = context.instance.get_run_by_id(context.run_id)
    return context.run.tags if run is None else run.tags
