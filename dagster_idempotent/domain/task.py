"""A task: one durable logical run of a pipeline, and the lease under which it is worked on."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import NewType

from dagster_idempotent.domain.identity import AllocationKey, RunId
from dagster_idempotent.domain.period import PeriodId, TaskId

Owner = NewType("Owner", str)
FencingToken = NewType("FencingToken", int)


class TaskStatus(StrEnum):
    """Where a task stands; `MOVES` are the only ways on."""

    PENDING = "pending"
    RUNNING = "running"
    FAILED = "failed"
    HELD = "held"
    COMPLETED = "completed"
    DEAD = "dead"
    DISCARDED = "discarded"


MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = MappingProxyType(
    {
        TaskStatus.PENDING: frozenset({TaskStatus.RUNNING, TaskStatus.DEAD}),
        TaskStatus.RUNNING: frozenset(
            {TaskStatus.FAILED, TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.HELD, TaskStatus.DEAD}
        ),
        TaskStatus.FAILED: frozenset(
            {TaskStatus.RUNNING, TaskStatus.PENDING, TaskStatus.COMPLETED, TaskStatus.HELD, TaskStatus.DEAD}
        ),
        TaskStatus.HELD: frozenset({TaskStatus.PENDING, TaskStatus.DISCARDED}),
        TaskStatus.COMPLETED: frozenset(),
        TaskStatus.DEAD: frozenset({TaskStatus.PENDING, TaskStatus.DISCARDED}),
        TaskStatus.DISCARDED: frozenset(),
    }
)
OPEN = frozenset({TaskStatus.RUNNING, TaskStatus.FAILED})
ENDED = frozenset({TaskStatus.COMPLETED, TaskStatus.DEAD, TaskStatus.DISCARDED})


class HeldFor(StrEnum):
    """What a held task waits for."""

    IN_DOUBT = "in_doubt"
    GATE = "gate"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task as the ledger had it when it was read."""

    pipeline: str
    task_id: TaskId
    period_id: PeriodId
    sequence: int
    subject: str
    scheduled_at: datetime | None
    version: str
    allocation_key: AllocationKey | None
    run_id: RunId | None
    status: TaskStatus
    owner: Owner | None
    lease_expires_at: datetime | None
    fencing_token: FencingToken
    attempts: int
    held_for: HeldFor | None
    error: str | None
    output: str | None
    output_sha256: str | None
    completed_by: str | None
    completed_at: datetime | None

    def __str__(self) -> str:
        return self.task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of `owner` to work on a task, for as long as `token` is the task's fencing token."""

    pipeline: str
    task_id: TaskId
    owner: Owner
    token: FencingToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What collect stored: the first writer's bytes, whoever reads them; `uri` where they lie outside the ledger."""

    name: str
    sha256: str
    size: int
    media_type: str
    body: bytes
    uri: str | None = None

    def text(self) -> str:
        """Return the body decoded as UTF-8; raises UnicodeDecodeError."""
        return self.body.decode("utf-8")
