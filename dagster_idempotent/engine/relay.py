"""The relay: delivers outbox messages, at most once where a channel cannot deduplicate (R32).

Any number of relays may run at once. A message is taken by one statement, under a random sender id that lives in one
process only and is renewed while the delivery runs; no lock spans a delivery. The messages of one task go in the order
in which its channels were declared: one waits while an earlier one is ready or on its way, and no longer once that one
is delivered, in doubt or dead. `sending` under an expired sender means that its relay is gone.
"""

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from uuid import UUID, uuid4

import psycopg

from dagster_idempotent.domain.outbox import Deliverer, DeliveryPolicy, Message, MessageState
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Lease
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.channels import Channel, GuardedChannel, TransactionalChannel
from dagster_idempotent.engine.channels.paid import DeliveryWork, owner_of
from dagster_idempotent.engine.heartbeat import Beat, Heartbeat
from dagster_idempotent.engine.reconciliation import OUTCOME_PATIENCE
from dagster_idempotent.errors import CallInDoubt, DeliveryNotSent, PipelineFrozen
from dagster_idempotent.providers.send_window import boot_time
from dagster_idempotent.store import outbox
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.outbox import Taken

__all__ = ["Channel", "Delivery", "deliver_due", "deliver_task"]

logger = logging.getLogger(__name__)
DEFAULT_POLICY = DeliveryPolicy()
Take = Callable[[Connection, UUID], Taken | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of one message; `delivered_now` is False where it had been delivered before, or was not."""

    message: Message
    delivered_now: bool


def deliver_task(
    database: Database,
    pipeline: str,
    task_id: TaskId,
    channels: Mapping[str, Channel],
    *,
    policy: DeliveryPolicy = DEFAULT_POLICY,
    heartbeat: Heartbeat | None = None,
) -> list[Delivery]:
    """Deliver what is ready of one task, whatever its backoff; return where every message of it stands.

    What a channel raises is stored and raised.
    """
    relay = _Relay(database=database, channels=channels, policy=policy, heartbeat=heartbeat or Heartbeat(database))
    messages = database.run(lambda c: outbox.list_messages(c, pipeline, task_id))
    if any(message.state in (MessageState.WAITING, MessageState.SENDING) for message in messages):
        relay.look_around(pipeline, task_id)
        messages = database.run(lambda c: outbox.list_messages(c, pipeline, task_id))
    delivered: set[str] = set()
    for message in messages:
        if message.state is MessageState.READY and message.channel in channels:
            delivery = relay.attempt(lambda c, sender, m=message: outbox.take(c, m, sender), keep_going=False)
            if delivery is not None and delivery.delivered_now:
                delivered.add(message.channel)
    return [
        Delivery(message=message, delivered_now=message.channel in delivered)
        for message in database.run(lambda c: outbox.list_messages(c, pipeline, task_id))
    ]


def deliver_due(
    database: Database,
    pipeline: str,
    channels: Mapping[str, Channel],
    *,
    limit: int = 100,
    policy: DeliveryPolicy = DEFAULT_POLICY,
    heartbeat: Heartbeat | None = None,
) -> list[Delivery]:
    """Deliver at most `limit` messages of a pipeline that are due; return what was tried and how it went.

    The channels take turns, so that a slow one delays the others by one message at a time. What a channel raises is
    stored and logged, and the next message goes on.
    """
    relay = _Relay(database=database, channels=channels, policy=policy, heartbeat=heartbeat or Heartbeat(database))
    relay.look_around(pipeline, None)
    tried: list[Delivery] = []
    while True:
        before = len(tried)
        for channel in channels:
            if len(tried) >= limit:
                return tried
            delivery = relay.attempt(
                lambda c, sender, name=channel: outbox.take_due(c, pipeline, name, sender), keep_going=True
            )
            if delivery is not None:
                tried.append(delivery)
        if len(tried) == before:
            return tried


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relay:
    database: Database
    channels: Mapping[str, Channel]
    policy: DeliveryPolicy
    heartbeat: Heartbeat

    def look_around(self, pipeline: str, task_id: TaskId | None) -> None:
        """Open what an approval opened, and free what a relay that is gone left behind."""
        self.database.run(lambda c: outbox.open_waiting(c, pipeline, task_id))
        for row in self.database.run(lambda c: outbox.expire(c, pipeline, task_id, self.policy)):
            logger.warning(
                "relay.left_behind", extra={"task": row["task_id"], "channel": row["channel"], "state": row["state"]}
            )

    def attempt(self, take: Take, *, keep_going: bool) -> Delivery | None:
        """Take one message and deliver it; None where there is none to take."""
        sender, issued = uuid4(), 0
        # Before the message is taken: no byte may leave later than the window after that (protocol.md, Sending).
        started = boot_time()

        def issue(connection: Connection) -> Taken | None:
            nonlocal issued
            issued += 1
            return take(connection, sender)

        taken = self.database.run(issue)
        try:
            return None if taken is None else self._deliver(taken, sender, started, keep_going=keep_going)
        finally:
            if issued > 1:  # an issue whose reply was lost may have taken a message that nobody here knows of
                self.database.run(lambda c: outbox.give_back(c, sender))

    def _deliver(self, taken: Taken, sender: UUID, started: float, *, keep_going: bool) -> Delivery:
        message, channel = taken.message, self.channels[taken.message.channel]
        window = taken.send_window - timedelta(seconds=boot_time() - started)
        if window <= timedelta(0):
            self.database.run(lambda c: outbox.give_back(c, sender))
            return Delivery(message=replace(message, state=MessageState.READY), delivered_now=False)
        attempt = _Attempt(self.database, message, sender, self.policy, swallow=keep_going)
        with self.heartbeat.renewing(Deliverer(sender=sender), taken.sender_lease) as beat:
            receipt: str | None = None
            if isinstance(channel, TransactionalChannel):
                with attempt:
                    receipt = self._deliver_in_transaction(channel, message, sender)
            else:
                with attempt:
                    if isinstance(channel, GuardedChannel):
                        receipt = channel.deliver_with(self._work(channel, message, sender, beat), message)
                    else:
                        receipt = str(channel.deliver(message, window=window) or "")
                if receipt is not None and not self._record_delivery(message, sender, receipt):
                    receipt = None
        if receipt is None:
            return Delivery(message=attempt.message, delivered_now=False)
        logger.info("relay.delivered", extra={"task": message.task_id, "channel": message.channel})
        delivered = replace(message, state=MessageState.DELIVERED, receipt=receipt, error=None)
        return Delivery(message=delivered, delivered_now=True)

    def _work(self, channel: GuardedChannel, message: Message, sender: UUID, beat: Beat) -> DeliveryWork:
        owner, token = owner_of(message, sender)
        return DeliveryWork(
            database=self.database,
            heartbeat=self.heartbeat,
            pipeline=channel.pipeline,
            task=get_task(self.database, message.pipeline, message.task_id),
            lease=Lease(pipeline=message.pipeline, task_id=message.task_id, owner=owner, token=token),
            beat=beat,
        )

    def _record_delivery(self, message: Message, sender: UUID, receipt: str) -> bool:
        # The acknowledgement is in memory only: worth waiting for a database that is away.
        return self.database.run(
            lambda c: outbox.record_delivery(c, message, sender, receipt=receipt), patience=OUTCOME_PATIENCE
        )

    def _deliver_in_transaction(self, channel: TransactionalChannel, message: Message, sender: UUID) -> str | None:
        """Write and mark in one transaction; the mark comes last, so that the heartbeat never waits long for it."""
        receipt, delivered = "", False
        with self.database.transaction() as connection:
            receipt = channel.deliver_in(connection, message)
            delivered = outbox.record_delivery(connection, message, sender, receipt=receipt)
            if not delivered:  # the sender expired and another relay has the message: undo
                raise psycopg.Rollback
        return receipt if delivered else None


class _Attempt:
    """Writes where a message stands when its channel raises; swallows the error where the relay is to go on."""

    def __init__(
        self, database: Database, message: Message, sender: UUID, policy: DeliveryPolicy, *, swallow: bool
    ) -> None:
        self.message = message
        self._database, self._sender, self._policy, self._swallow = database, sender, policy, swallow

    def __enter__(self) -> None:
        """Start the part in which any exception, also an interrupt, leaves something to write."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is None:
            return False
        message, reason = self.message, f"{kind.__name__}: {error}"
        state = self._state_after(error)
        delay = self._policy.backoff.delay(max(1, message.attempts), random.random())  # noqa: S311 - spreads load
        counts = not isinstance(error, PipelineFrozen)  # a decision that is still open
        written = self._database.run(
            lambda c: outbox.record_undelivered(
                c, message, self._sender, state=state, error=reason, delay=delay, counts=counts
            )
        )
        self.message = replace(message, state=state if written else message.state, error=reason)
        facts = {"task": message.task_id, "channel": message.channel, "state": str(state), "reason": reason}
        logger.warning("relay.undelivered", extra=facts)
        return self._swallow and isinstance(error, Exception)

    def _state_after(self, error: BaseException | None) -> MessageState:
        if isinstance(error, CallInDoubt) and error.retry_after is None:
            return MessageState.IN_DOUBT  # a paid call of the delivery waits for a person
        if not (self.message.deduplicates or isinstance(error, DeliveryNotSent)):
            return MessageState.IN_DOUBT
        if isinstance(error, PipelineFrozen):
            return MessageState.READY
        spent = self.message.attempts >= self._policy.max_attempts
        return MessageState.DEAD if spent else MessageState.READY
