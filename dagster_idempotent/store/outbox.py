"""The outbox: one message per task and channel, taken, delivered, or left in doubt (R32)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from dagster_idempotent.domain.outbox import DeliveryPolicy, Message, MessageState
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row, message_of
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.texts import storable

SQL = statements("outbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message taken for delivery, and the lengths that its pipeline allows for that."""

    message: Message
    send_window: timedelta
    sender_lease: timedelta


def list_messages(connection: Connection, pipeline: str, task_id: TaskId) -> Sequence[Message]:
    """List the messages of a task in the order in which they go."""
    rows = connection.execute(SQL["list_messages"], {"pipeline": pipeline, "task_id": task_id})
    return [message_of(row) for row in rows]


def take(connection: Connection, message: Message, sender: UUID) -> Taken | None:
    """Take a ready message for delivery; None where somebody else has it, or an earlier one goes first."""
    return _taken(connection.execute(SQL["take_message"], _of(message) | {"sender": sender}).fetchone())


def take_due(connection: Connection, pipeline: str, channel: str, sender: UUID) -> Taken | None:
    """Take the message of a channel that has been due longest; None where none is."""
    parameters = {"pipeline": pipeline, "channel": channel, "sender": sender}
    return _taken(connection.execute(SQL["take_due_message"], parameters).fetchone())


def give_back(connection: Connection, sender: UUID) -> None:
    """Make ready again what this sender took and never began to deliver; only its own process may say so."""
    connection.execute(SQL["give_back"], {"sender": sender})


def renew_delivery(connection: Connection, sender: UUID) -> bool:
    """Renew the sender of a delivery; return whether it still has an outcome to write."""
    return connection.execute(SQL["renew_delivery"], {"sender": sender}).fetchone() is not None


def expire(connection: Connection, pipeline: str, task_id: TaskId | None, policy: DeliveryPolicy) -> Sequence[Row]:
    """Free the messages of relays that are gone, of one task or of a pipeline; return what became of them."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "max_attempts": policy.max_attempts,
        "base": policy.backoff.base,
        "factor": policy.backoff.factor,
        "cap": policy.backoff.cap,
        "jitter": policy.backoff.jitter,
    }
    return connection.execute(SQL["expire_messages"], parameters).fetchall()


def open_waiting(connection: Connection, pipeline: str, task_id: TaskId | None) -> int:
    """Make ready what waited for a publish gate that is open now; return how many messages."""
    rows = connection.execute(SQL["open_messages"], {"pipeline": pipeline, "task_id": task_id})
    return len(rows.fetchall())


def record_delivery(connection: Connection, message: Message, sender: UUID, *, receipt: str) -> bool:
    """Write delivered, after the channel's acknowledgement; return whether this sender delivered it."""
    parameters = _of(message) | {"sender": sender, "receipt": storable(receipt)}
    return connection.execute(SQL["record_delivery"], parameters).fetchone() is not None


def record_undelivered(
    connection: Connection,
    message: Message,
    sender: UUID,
    *,
    state: MessageState,
    error: str,
    delay: timedelta,
    counts: bool = True,
) -> bool:
    """Write ready (proved not delivered, or the channel deduplicates), dead or in_doubt; `counts`: as an attempt."""
    parameters = _of(message) | {
        "sender": sender,
        "state": state,
        "error": storable(error),
        "delay": delay,
        "counts": counts,
    }
    return connection.execute(SQL["record_undelivered"], parameters).fetchone() is not None


def _taken(row: Row | None) -> Taken | None:
    if row is None:
        return None
    return Taken(message=message_of(row), send_window=row["send_window"], sender_lease=row["sender_lease"])


def _of(message: Message) -> dict[str, object]:
    return {"pipeline": message.pipeline, "task_id": message.task_id, "channel": message.channel}
