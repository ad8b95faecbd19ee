"""A claimed task: who works on it, and how a step gets, keeps and gives up that right (R26-R30)."""

import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, assert_never

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import AnyPipeline
from dagster_idempotent.domain.task import ENDED, HeldFor, Lease, Owner, Task, TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.engine.heartbeat import Beat, Heartbeat
from dagster_idempotent.engine.large_artifacts import LargeArtifacts
from dagster_idempotent.engine.reconciliation import reconcile_task
from dagster_idempotent.engine.replays import count_replays
from dagster_idempotent.engine.retry_policy import Verdict, rule_of
from dagster_idempotent.errors import (
    ConfigurationError,
    LeaseBusy,
    LeaseLost,
    RemoteJobUnfinished,
    TaskClosed,
    TaskHeld,
)
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import leases
from dagster_idempotent.store.database import Database


@dataclass(slots=True, kw_only=True)
class Work:
    """The right to work on `task`, as it was at the claim; `results` lists its calls, without what they answered.

    `large` is where bodies go that are too large for a table; `log` tells a person about progress: in Dagster, the
    run's own log.
    """

    database: Database
    heartbeat: Heartbeat
    pipeline: AnyPipeline
    task: Task
    lease: Lease
    beat: Beat | None = field(default=None, repr=False)
    results: list[CallResult[Any]] = field(default_factory=list[CallResult[Any]], repr=False)
    large: LargeArtifacts | None = field(default=None, repr=False)
    log: Callable[[str], object] | None = field(default=None, repr=False)

    @property
    def attempt(self) -> int:
        """Which attempt this is."""
        return self.task.attempts

    def check_lease(self) -> None:
        """Raise LeaseLost where a renewal found the task under another owner or token."""
        if self.beat is not None and self.beat.lost:
            raise stopped(self.database, self.lease)

    def pause(self, seconds: float) -> None:
        """Wait, and not a moment longer once a renewal found the lease lost; raises LeaseLost then."""
        over = threading.Event() if self.beat is None else self.beat.over
        over.wait(seconds)
        self.check_lease()

    def let_go(self, error: RemoteJobUnfinished) -> bool:
        """Give the task back until a remote job has ended; return whether the lease still held."""
        delay = timedelta(seconds=error.retry_after or 0.0)
        return self.database.run(lambda c: leases.wait(c, self.lease, delay=delay, error=error.message))

    def fail(self, error: str, *, final: bool = False) -> bool:
        """Store why this attempt failed and when the next is due; return whether the lease still held."""
        delay = self.pipeline.backoff.delay(self.attempt, random.random())  # noqa: S311 - spreads load, hides nothing
        return self.database.run(lambda c: leases.fail(c, self.lease, error=error, delay=delay, final=final))

    def fail_with(self, error: BaseException) -> Verdict:
        """Store what `error` means for the task: see `retry_policy.RULES`; a lost lease writes nothing."""
        text = f"{type(error).__name__}: {error}"
        verdict = rule_of(error).verdict
        match verdict:
            case Verdict.AGAIN:
                self.fail(text)
            case Verdict.DEAD_LETTER:
                self.fail(text, final=True)
            case Verdict.HOLD:
                self.database.run(lambda c: leases.hold(c, self.lease, held_for=HeldFor.GATE, error=text))
            case Verdict.LEAVE:
                pass
            case _:
                assert_never(verdict)
        return verdict

    def hold(self, held_for: HeldFor, reason: str) -> None:
        """Put the task on hold; raises LeaseLost where it is not ours any more.

        Within a map of calls it is only noted: the others go on, and the map writes the hold at its end.
        """
        deferred = holds_deferred.get()
        if deferred is not None:
            deferred.append((held_for, reason))
            return
        if not self.database.run(lambda c: leases.hold(c, self.lease, held_for=held_for, error=reason)):
            task = get_task(self.database, self.lease.pipeline, self.lease.task_id)
            if task.status is not TaskStatus.HELD:
                raise lease_lost(task, self.lease)

    @contextmanager
    def renewed(self) -> Generator["Work"]:
        """Renew the lease while the block runs, and make this the current work of the thread's context.

        At its end the replays of the block are counted.
        """
        with self.heartbeat.renewing(self.lease, self.pipeline.lease, every=self.pipeline.renew_every) as beat:
            self.beat = beat
            token, before = _current.set(self), len(self.results)
            try:
                yield self
            finally:
                _current.reset(token)
                count_replays(self.database, self.lease.pipeline, self.lease.task_id, self.results[before:])


Deferred = list[tuple[HeldFor, str]]
holds_deferred: ContextVar[Deferred | None] = ContextVar("dagster_idempotent_holds_deferred", default=None)
_current: ContextVar[Work | None] = ContextVar("dagster_idempotent_work", default=None)


def current_work() -> Work:
    """Return the work of the running op; raises ConfigurationError outside of one."""
    work = _current.get()
    if work is None:
        raise ConfigurationError(
            "A paid call, or a transaction without a task, was asked for where no task is claimed. They belong in the "
            "functions of an idempotent job or asset, in the op's own thread; nothing was read, sent or changed.",
            field="context",
        )
    return work


def claim(
    database: Database,
    heartbeat: Heartbeat,
    pipeline: AnyPipeline,
    task_id: TaskId,
    owner: Owner,
    *,
    is_finished: Callable[[Owner], bool],
    providers: Sequence[AnyProvider] = (),
    backoff: bool = False,
) -> Work:
    """Claim a task for a Dagster run, or re-enter it.

    What is in doubt is looked up first, at `providers`. `is_finished` is asked about the owner that stands in the
    way. Raises TaskNotFound, TaskClosed, TaskHeld, or LeaseBusy with the seconds after which to ask again.
    """
    task = get_task(database, pipeline.name, task_id)
    if task.status not in ENDED:
        reconcile_task(database, pipeline.name, task_id, providers)
    if task.status is TaskStatus.HELD:
        database.run(lambda c: leases.release_held(c, pipeline.name, task_id))
    finished: Lease | None = None
    while True:
        found = database.run(
            lambda c, done=finished: leases.claim(c, pipeline.name, task_id, owner, finished=done, backoff=backoff)
        )
        if found.task is None:
            get_task(database, pipeline.name, task_id)  # raises: it was there a moment ago
            continue
        task = found.task
        match found.verdict:
            case "claimed" | "reentered":
                lease = Lease(pipeline=pipeline.name, task_id=task_id, owner=owner, token=task.fencing_token)
                return Work(database=database, heartbeat=heartbeat, pipeline=pipeline, task=task, lease=lease)
            case "busy" if finished is None and task.owner is not None and is_finished(task.owner):
                finished = Lease(pipeline=pipeline.name, task_id=task_id, owner=task.owner, token=task.fencing_token)
            case "spent_in_doubt":
                database.run(lambda c, done=finished: leases.sweep(c, pipeline.name, task_id, finished=done))
                raise held(get_task(database, pipeline.name, task_id), spent=True)
            case "held":
                raise held(task)
            case "completed" | "dead" | "discarded":
                raise closed(task)
            case verdict:
                raise _busy(task, verdict, found.retry_after)


def held(task: Task, *, spent: bool = False) -> TaskHeld:
    """Say why a task is held and what would set it free; `spent`: a call is in doubt and no attempt is left."""
    # A task that was released in doubt at its cap is pending: it stops here all the same.
    held_for = task.held_for or (HeldFor.IN_DOUBT if spent else None)
    reason = task.error or ("a paid call is in doubt and no attempt is left." if spent else "no reason kept")
    return TaskHeld(
        f"Task {task.task_id} of pipeline {task.pipeline!r} is held ({held_for}): {reason} "
        "No paid call starts until that is settled by the provider's own answer or by a named operator.",
        task_id=task.task_id,
        held_for=held_for,
    )


def closed(task: Task) -> TaskClosed:
    """Say how a task ended."""
    advice = {
        TaskStatus.COMPLETED: "Its result is stored; running it again returns that result.",
        TaskStatus.DEAD: f"Its last error: {task.error or 'none kept'} An operator redrives or discards it.",
        TaskStatus.DISCARDED: "An operator discarded it.",
    }
    return TaskClosed(
        f"Task {task.task_id} of pipeline {task.pipeline!r} is {task.status}. {advice.get(task.status, '')}".rstrip(),
        task_id=task.task_id,
        status=task.status,
    )


def stopped(database: Database, lease: Lease) -> LeaseLost | TaskHeld:
    """Say why a step must stop: a sibling put the task on hold, or somebody else owns it now."""
    task = get_task(database, lease.pipeline, lease.task_id)
    if task.status is TaskStatus.HELD and (task.owner, task.fencing_token) == (lease.owner, lease.token):
        return held(task)
    return lease_lost(task, lease)


def lease_lost(task: Task, lease: Lease) -> LeaseLost:
    """Say who owns the task now."""
    now = f"Dagster run {task.owner}" if task.owner else "nobody"
    return LeaseLost(
        f"Run {lease.owner} lost the lease on task {lease.task_id} (its fencing token {lease.token}); the task is "
        f"{task.status} now, under {now} (token {task.fencing_token}). Nothing was written. Paid answers are kept and "
        "will be replayed.",
        task_id=lease.task_id,
        owner=task.owner,
    )


def _busy(task: Task, verdict: str, retry_after: timedelta | None) -> LeaseBusy:
    seconds = None if retry_after is None else max(0.0, retry_after.total_seconds())
    until = "with no end in sight" if seconds is None else f"for at most {seconds:.0f} s more unless it is renewed"
    texts = {
        "busy": f"Dagster run {task.owner} holds task {task.task_id} {until}.",
        "sending": f"A paid call of task {task.task_id} is being sent by run {task.owner}, {until}.",
        "backoff": f"Task {task.task_id} failed ({task.error}); its next automatic attempt is due in {seconds:.0f} s."
        if seconds is not None
        else f"Task {task.task_id} waits for its next automatic attempt.",
    }
    return LeaseBusy(
        f"{texts.get(verdict, verdict)} Nothing was sent by this run.",
        task_id=task.task_id,
        owner=task.owner,
        retry_after=seconds,
    )
