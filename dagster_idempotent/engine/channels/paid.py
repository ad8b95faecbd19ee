"""The paid channel: a delivery that charges, such as a bill, through the guard (R12-R18, R32).

The outbox row stands in place of the lease: whoever is delivering the message may write an intent, nobody else. The
submission row guards the money as in any call, so a delivery that is repeated replays what was paid.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.domain.pipeline import AnyPipeline
from dagster_idempotent.domain.submission import CallKey, check_call_key
from dagster_idempotent.domain.task import FencingToken, HeldFor, Owner
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.replays import count_replays
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import LeaseLost
from dagster_idempotent.providers.protocol import Provider


class PaidChannel:
    """Calls `pay(calls, message)`, which makes paid calls by name; what it returns is kept as the receipt.

    Effects other than those calls must be harmless to repeat: `pay` runs again until it returns. A call in doubt that
    only a person can settle puts the message in doubt. Call names are this channel's own: they never meet transform's.
    """

    deduplicates = True

    def __init__(
        self, pipeline: AnyPipeline, provider: Provider[Any, Any], pay: Callable[[Calls[Any, Any], Message], object]
    ) -> None:
        self._pipeline, self._provider, self._pay = pipeline, provider, pay

    @property
    def pipeline(self) -> AnyPipeline:
        """The pipeline whose budget pays."""
        return self._pipeline

    def deliver_with(self, work: Work, message: Message) -> str:
        """Make the paid calls and return the receipt."""
        try:
            receipt = self._pay(_ChannelCalls(work, self._provider, message.channel), message)
        finally:
            count_replays(work.database, message.pipeline, message.task_id, work.results)
        return "paid" if receipt is None else str(receipt)


@dataclass(slots=True, kw_only=True)
class DeliveryWork(Work):
    """The right of a relay to pay for the message that it is delivering; there is no task to fail or to hold."""

    def check_lease(self) -> None:
        """Raise LeaseLost where another relay has the message."""
        if self.beat is not None and self.beat.lost:
            raise LeaseLost(
                f"Another relay delivers this message of task {self.lease.task_id} now. Nothing was sent.",
                task_id=self.lease.task_id,
            )

    def hold(self, held_for: HeldFor, reason: str) -> None:
        """Hold nothing: the task is completed; the error that follows says where the message stands."""


def owner_of(message: Message, sender: object) -> tuple[Owner, FencingToken]:
    """Name a delivery as the ledger's function `may_spend_v1` reads it."""
    return Owner(f"outbox:{message.channel}:{sender}"), FencingToken(message.attempts)


class _ChannelCalls(Calls[Any, Any]):
    def __init__(self, work: Work, provider: Provider[Any, Any], channel: str) -> None:
        super().__init__(work, provider)
        self._channel = channel

    def _call(self, key: CallKey, request: object) -> CallResult[Any]:
        name, number, further = key.partition("#")
        return super()._call(CallKey(check_call_key(f"deliver/{self._channel}/{name}") + number + further), request)
