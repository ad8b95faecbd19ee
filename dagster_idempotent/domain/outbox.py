"""An outbox message: one per task and channel, inserted with the result that it announces."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from dagster_idempotent.domain.period import TaskId


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
    """What a channel delivers; `key` stays the same however often it is tried."""

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

    @property
    def key(self) -> str:
        """The deduplication key of this delivery."""
        return f"{self.task_id}:{self.channel}"
