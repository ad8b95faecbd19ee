"""Channels: where the messages of the outbox go.

A channel is any object with `deduplicates` and `deliver`, or with `deliver_in` where it writes to the ledger's own
database. Where the delivery itself costs money it has `deliver_with`, and its paid calls go through the guard.
`file`, `http`, `sql` and `paid` are built in.
"""

from datetime import timedelta
from typing import Protocol, runtime_checkable

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.domain.pipeline import AnyPipeline
from dagster_idempotent.engine.work import Work
from dagster_idempotent.store.database import Connection

__all__ = ["Channel", "DirectChannel", "GuardedChannel", "TransactionalChannel"]


class DirectChannel(Protocol):
    """Where messages of one name go, outside of the ledger's database."""

    @property
    def deduplicates(self) -> bool:
        """Whether delivering the same `message.key` twice has the effect of delivering it once."""
        ...

    def deliver(self, message: Message, *, window: timedelta) -> str:
        """Deliver and return the acknowledgement; put out no byte later than `window` after the call.

        Raises DeliveryNotSent where nothing was delivered, for certain; any other error leaves the message in doubt.
        """
        ...


@runtime_checkable
class TransactionalChannel(Protocol):
    """Writes to tables in the ledger's own database, in the transaction that also marks the message delivered."""

    @property
    def deduplicates(self) -> bool:
        """True: what was not committed did not happen."""
        ...

    def deliver_in(self, connection: Connection, message: Message) -> str:
        """Write and return the acknowledgement; commits and rolls back nothing itself."""
        ...


@runtime_checkable
class GuardedChannel(Protocol):
    """Delivers by paid calls: each is charged once, whatever is killed or retried."""

    @property
    def deduplicates(self) -> bool:
        """True: a call that was paid is replayed."""
        ...

    @property
    def pipeline(self) -> AnyPipeline:
        """The pipeline whose budget pays."""
        ...

    def deliver_with(self, work: Work, message: Message) -> str:
        """Deliver under the right to pay that `work` is, and return the acknowledgement."""
        ...


Channel = DirectChannel | TransactionalChannel | GuardedChannel
