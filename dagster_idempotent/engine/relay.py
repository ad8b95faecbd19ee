"""The relay: delivers outbox messages, at most once where a channel cannot deduplicate (R32)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Protocol
from uuid import UUID, uuid4

from dagster_idempotent.domain.outbox import Message, MessageState
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import DeliveryNotSent
from dagster_idempotent.providers.send_window import boot_time
from dagster_idempotent.store import outbox
from dagster_idempotent.store.database import Database

logger = logging.getLogger(__name__)


class Channel(Protocol):
    """Where messages of one name go."""

    @property
    def deduplicates(self) -> bool:
        """Whether delivering the same `message.key` twice has the effect of delivering it once."""
        ...

    def deliver(self, message: Message, *, window: timedelta) -> str:
        """Deliver and return the acknowledgement; put out no byte later than `window` after the call.

        Raises DeliveryNotSent where nothing was delivered, for certain; any other error leaves the message in doubt.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of one message; `delivered_now` is False where it had been delivered before."""

    message: Message
    delivered_now: bool


def deliver_task(database: Database, pipeline: str, task_id: TaskId, channels: Mapping[str, Channel]) -> list[Delivery]:
    """Deliver what is ready of one task, channel by channel; return where every message of it stands."""
    for message in database.run(lambda c: outbox.list_messages(c, pipeline, task_id)):
        if message.state is MessageState.SENDING:
            database.run(lambda c, m=message: outbox.expire(c, m))
    delivered: set[str] = set()
    for message in database.run(lambda c: outbox.list_messages(c, pipeline, task_id)):
        channel = channels.get(message.channel)
        if channel is not None and message.state is MessageState.READY and _deliver(database, message, channel):
            delivered.add(message.channel)
    return [
        Delivery(message=message, delivered_now=message.channel in delivered)
        for message in database.run(lambda c: outbox.list_messages(c, pipeline, task_id))
    ]


def _deliver(database: Database, message: Message, channel: Channel) -> bool:
    sender = uuid4()
    started = boot_time()
    taken = database.run(lambda c: outbox.take(c, message, sender))
    if taken is None:
        return False
    message, window = taken
    with _Undelivered(database, message, sender):
        # Counted from before the message was taken: the lease of a relay that slept since then may be over.
        left = window - timedelta(seconds=boot_time() - started)
        if left <= timedelta(0):
            raise DeliveryNotSent(
                f"The send window of message {message.key} ended before it was given to its channel. Nothing was "
                "delivered; it is ready for the next relay.",
                task_id=message.task_id,
            )
        receipt = channel.deliver(message, window=left)
    logger.info("relay.delivered", extra={"task": message.task_id, "channel": message.channel})
    return database.run(lambda c: outbox.record_delivery(c, message, sender, receipt=receipt))


class _Undelivered:
    """Writes where a message stands when its channel raises; the error goes on to the caller."""

    def __init__(self, database: Database, message: Message, sender: UUID) -> None:
        self._database, self._message, self._sender = database, message, sender

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            return
        harmless = self._message.deduplicates or isinstance(error, DeliveryNotSent)
        state = MessageState.READY if harmless else MessageState.IN_DOUBT
        reason = f"{kind.__name__}: {error}"
        self._database.run(
            lambda c: outbox.record_undelivered(c, self._message, self._sender, state=state, error=reason)
        )
