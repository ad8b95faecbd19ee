"""Amounts that are exact and know their currency, and the limits of a pipeline (R18)."""

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from typing import Self

from dagster_idempotent.errors import ConfigurationError

MAX_INTEGER_DIGITS = 18
MAX_FRACTION_DIGITS = 12

_CURRENCY = re.compile(r"[A-Z]{3,8}|[a-z][a-z0-9_]{0,31}")
_TEXT = re.compile(r"(?P<amount>-?(?:0|[1-9][0-9]{0,39})(?:\.[0-9]{1,40})?) (?P<currency>[A-Za-z0-9_]{1,40})")
# Decimal's own default context rounds to 28 digits without a word.
_EXACT = Context(prec=2 * (MAX_INTEGER_DIGITS + MAX_FRACTION_DIGITS), traps=[Inexact, InvalidOperation, Overflow])
_LIMIT = Decimal(10) ** MAX_INTEGER_DIGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """An exact amount of one currency (`USD`) or unit (`credits`); may be negative, as a refund is."""

    amount: Decimal
    currency: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", _exact(self.amount))
        object.__setattr__(self, "currency", _currency(self.currency))

    @classmethod
    def parse(cls, text: object, *, field: str = "amount") -> Self:
        """Return the money written as `2.00 USD`: plain digits, one space, a currency; `field` names it in an error."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            named = "Money" if field == "amount" else field
            raise ConfigurationError(
                f"{named} is {ascii(text)[:200]}. Expected a text such as '2.00 USD' or '150 credits': plain "
                "digits, one space, a currency. Write it so; a float is not exact.",
                field=field,
            )
        return cls(amount=Decimal(found["amount"]), currency=found["currency"])

    @classmethod
    def zero(cls, currency: str) -> Self:
        """Return no money of this currency."""
        return cls(amount=Decimal(0), currency=currency)

    def non_negative(self, *, field: str) -> Self:
        """Return this money; raise ConfigurationError naming `field` if it is below zero."""
        if self.amount < 0:
            raise ConfigurationError(
                f"{field} is {self}. Expected zero or more. Only an adjustment may be negative.", field=field
            )
        return self

    def __add__(self, other: "Money") -> "Money":
        return Money(amount=_EXACT.add(self.amount, self._same(other)), currency=self.currency)

    def __sub__(self, other: "Money") -> "Money":
        return Money(amount=_EXACT.subtract(self.amount, self._same(other)), currency=self.currency)

    def __neg__(self) -> "Money":
        return Money(amount=_EXACT.minus(self.amount), currency=self.currency)

    def __lt__(self, other: "Money") -> bool:
        return self.amount < self._same(other)

    def __le__(self, other: "Money") -> bool:
        return self.amount <= self._same(other)

    def __gt__(self, other: "Money") -> bool:
        return self.amount > self._same(other)

    def __ge__(self, other: "Money") -> bool:
        return self.amount >= self._same(other)

    def __str__(self) -> str:
        return f"{self.amount:f} {self.currency}"

    def _same(self, other: "Money") -> Decimal:
        if other.currency != self.currency:
            raise ConfigurationError(
                f"{self} and {other} are of two currencies. Expected one. Keep a total for each currency; "
                "nothing is converted here.",
                field="currency",
            )
        return other.amount


class BudgetScope(StrEnum):
    """What a limit is for, in the order in which the ledger locks its counters."""

    PIPELINE = "pipeline"
    PERIOD = "period"
    TASK = "task"


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """What a pipeline may spend; None is no limit.

    A text stands for the money it reads as. `per_call` bounds what one call may cost at most; the others are kept by
    counters that every call reserves from.
    """

    call: Money | None
    task: Money | None
    period: Money | None
    pipeline: Money | None

    def __init__(
        self,
        *,
        per_call: Money | str | None = None,
        per_task: Money | str | None = None,
        per_period: Money | str | None = None,
        per_pipeline: Money | str | None = None,
    ) -> None:
        object.__setattr__(self, "call", _limit(per_call, "per_call"))
        object.__setattr__(self, "task", _limit(per_task, "per_task"))
        object.__setattr__(self, "period", _limit(per_period, "per_period"))
        object.__setattr__(self, "pipeline", _limit(per_pipeline, "per_pipeline"))

    @classmethod
    def per_call(cls, limit: Money | str) -> Self:
        """Return the budget that limits each call by itself."""
        return cls(per_call=limit)

    @classmethod
    def per_task(cls, limit: Money | str) -> Self:
        """Return the budget that limits each task by itself."""
        return cls(per_task=limit)

    @classmethod
    def per_period(cls, limit: Money | str) -> Self:
        """Return the budget that limits all tasks of a period together."""
        return cls(per_period=limit)

    @classmethod
    def per_pipeline(cls, limit: Money | str) -> Self:
        """Return the budget that limits all tasks there will ever be."""
        return cls(per_pipeline=limit)

    def limits(self) -> tuple[tuple[BudgetScope, Money], ...]:
        """Return the limits that have counters, in the order of locking."""
        by_scope = {
            BudgetScope.PIPELINE: self.pipeline,
            BudgetScope.PERIOD: self.period,
            BudgetScope.TASK: self.task,
        }
        return tuple((scope, limit) for scope, limit in by_scope.items() if limit is not None)


def _limit(limit: Money | str | None, field: str) -> Money | None:
    if limit is None:
        return None
    money = limit if isinstance(limit, Money) else Money.parse(limit)
    return money.non_negative(field=field)


def _exact(amount: object) -> Decimal:
    if not isinstance(amount, Decimal):
        raise ConfigurationError(
            f"amount is {ascii(amount)[:200]}, a {type(amount).__name__}. Expected a Decimal: other numbers "
            "are not exact or not money. Use Money.parse('2.00 USD') or Decimal('2.00').",
            field="amount",
        )
    if not amount.is_finite():
        raise ConfigurationError(f"amount is {amount}. Expected a number. Settle with what is known.", field="amount")
    try:
        # Digits as they were written, 2.00 stays 2.00, as far as a column can hold them.
        places = min(max(-int(amount.as_tuple().exponent), 0), MAX_FRACTION_DIGITS)
        exact = _EXACT.quantize(amount, Decimal(1).scaleb(-places))
    except (Inexact, InvalidOperation):
        exact = _LIMIT
    if exact.copy_abs() >= _LIMIT:
        raise ConfigurationError(
            f"amount is {ascii(amount)[:200]}. Expected at most {MAX_INTEGER_DIGITS} digits before the point "
            f"and {MAX_FRACTION_DIGITS} after it. Round it where it is computed.",
            field="amount",
        )
    return exact or exact.copy_abs()  # there is no minus nothing


def _currency(currency: object) -> str:
    if not isinstance(currency, str) or _CURRENCY.fullmatch(currency) is None:
        raise ConfigurationError(
            f"currency is {ascii(currency)[:200]}. Expected a code of 3 to 8 capitals such as USD, or a unit "
            "in small letters such as credits. Correct it.",
            field="currency",
        )
    return str.__str__(currency)
