"""The SQL channel: the user's own tables, written in the transaction that marks the message delivered (R32)."""

from collections.abc import Callable

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.store.database import Connection


class SqlChannel:
    """Calls `write(connection, message)` inside that transaction: exactly once, whatever is killed.

    The tables must lie in the ledger's own database. `write` only issues statements on the connection it is given: an
    effect outside of it would not be undone when the transaction is. What it returns is kept as the receipt.
    """

    deduplicates = True

    def __init__(self, write: Callable[[Connection, Message], object]) -> None:
        self._write = write

    def deliver_in(self, connection: Connection, message: Message) -> str:
        """Write the message's rows; return the receipt."""
        receipt = self._write(connection, message)
        return "committed" if receipt is None else str(receipt)
