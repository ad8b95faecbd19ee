"""Channels: where the messages of the outbox go.

A channel is any object with `deduplicates` and `deliver`, or with `deliver_in` where it writes to the ledger's own
database. `file`, `http` and `sql` are built in.
"""

from datetime import timedelta
from typing import Protocol, runtime_checkable

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.store.database import Connection

__all__ = ["Channel", "DirectChannel", "TransactionalChannel"]


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


Channel = DirectChannel | TransactionalChannel
