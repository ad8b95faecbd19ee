"""The answer of one paid call, as its caller gets it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import CallKey, SettledBy
from dagster_idempotent.providers.outcome import Answer

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Generic[Value]):
    """The answer of a call; `replayed` tells whether it was paid for earlier, `settled_by` on whose word it rests."""

    call_key: CallKey
    value: Value
    answer: Answer
    replayed: bool
    cost: Money | None
    remote_ref: str | None
    submission: int
    settled_by: SettledBy
