"""An outbox message: one per task and channel, inserted with the result that it announces."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import ConfigurationError


class MessageState(StrEnum):
    """Where a message stands."""

    WAITING = "waiting"
    READY = "ready"
    SENDING = "sending"
    DELIVERED = "delivered"
    IN_DOUBT = "in_doubt"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a channel delivers; `key` stays the same however often it is tried.

    `partition_key` is the Dagster partition of the launch that planned the task, if it had one.
    """

    pipeline: str
    task_id: TaskId
    channel: str
    payload: str
    state: MessageState
    deduplicates: bool
    attempts: int
    sender_expires_in: timedelta | None
    receipt: str | None
    error: str | None
    created_at: datetime
    partition_key: str | None

    @property
    def key(self) -> str:
        """The deduplication key of this delivery.

        A task is named with its pipeline: two pipelines number the same weeks, and may share a receiver.
        """
        return f"{self.pipeline}:{self.task_id}:{self.channel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """How often a message is tried and how long a relay waits in between; then it is a dead letter."""

    max_attempts: int = 20
    backoff: Backoff = field(default=Backoff(base=timedelta(seconds=10), cap=timedelta(hours=1)))

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError(
                f"max_attempts of a delivery is {self.max_attempts}, expected at least 1.", field="max_attempts"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverer:
    """The random id of the one process that may deliver a message that it took."""

    sender: UUID
