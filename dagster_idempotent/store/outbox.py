"""The outbox: one message per task and channel, taken, delivered, or left in doubt (R32)."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from dagster_idempotent.domain.outbox import Message, MessageState
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import message_of
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.texts import storable

SQL = statements("outbox")


def list_messages(connection: Connection, pipeline: str, task_id: TaskId) -> Sequence[Message]:
    """List the messages of a task by channel."""
    rows = connection.execute(SQL["list_messages"], {"pipeline": pipeline, "task_id": task_id})
    return [message_of(row) for row in rows]


def take(connection: Connection, message: Message, sender: UUID) -> tuple[Message, timedelta] | None:
    """Take a ready message for delivery; return it and its send window, or None where somebody else has it."""
    row = connection.execute(SQL["take_message"], _of(message) | {"sender": sender}).fetchone()
    return None if row is None else (message_of(row), row["send_window"])


def expire(connection: Connection, message: Message) -> None:
    """Free a message whose relay is gone, where its channel deduplicates; else it is in doubt."""
    connection.execute(SQL["expire_message"], _of(message))


def record_delivery(connection: Connection, message: Message, sender: UUID, *, receipt: str) -> bool:
    """Write delivered, after the channel's acknowledgement."""
    parameters = _of(message) | {"sender": sender, "receipt": storable(receipt)}
    return connection.execute(SQL["record_delivery"], parameters).fetchone() is not None


def record_undelivered(
    connection: Connection, message: Message, sender: UUID, *, state: MessageState, error: str
) -> bool:
    """Write ready (proved not delivered, or the channel deduplicates) or in_doubt."""
    parameters = _of(message) | {"sender": sender, "state": state, "error": storable(error)}
    return connection.execute(SQL["record_undelivered"], parameters).fetchone() is not None


def _of(message: Message) -> dict[str, object]:
    return {"pipeline": message.pipeline, "task_id": message.task_id, "channel": message.channel}
