"""A pipeline: the declared paid workflow that numbers, leases and budgets its tasks."""

from datetime import timedelta
from enum import StrEnum
from typing import Generic, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from dagster_idempotent.domain.backoff import Backoff, duration
from dagster_idempotent.domain.identity import validate_pipeline_name
from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.period import PeriodKind, zone
from dagster_idempotent.errors import ConfigurationError

Output = TypeVar("Output", bound=BaseModel, covariant=True)  # noqa: PLC0105 - read by users as Pipeline[Output]


class Gate(StrEnum):
    """What waits for a named person's approval."""

    NONE = "none"
    SPEND = "spend"
    PUBLISH = "publish"


class Pipeline(Generic[Output]):
    """The settings of one paid workflow; `period` and `timezone` are fixed once it has tasks.

    Durations are timedeltas or texts such as "90s", "10m", "1h30m". `lease` is how long a silent worker keeps a task,
    `renew_every` how often it speaks (a third of the lease; half at most), `sender_lease` how long a silent sender
    keeps a call, `send_window` how long after its intent a request may still put out bytes (shorter than
    `sender_lease`). `version` is part of every identity: changing it makes new tasks, changing code alone never does.
    Raises ConfigurationError naming the setting.
    """

    def __init__(
        self,
        name: str,
        *,
        output: type[Output],
        period: PeriodKind | Literal["iso_week", "day", "month"] = PeriodKind.ISO_WEEK,
        timezone: str = "UTC",
        lease: str | timedelta = "10m",
        max_attempts: int = 5,
        backoff: Backoff | None = None,
        budget: Budget | None = None,
        approval: Literal["spend", "publish"] | None = None,
        version: str = "",
        sender_lease: str | timedelta = "30s",
        send_window: str | timedelta = "10s",
        renew_every: str | timedelta | None = None,
    ) -> None:
        self.name = validate_pipeline_name(name)
        self.output: type[Output] = _output_model(output)
        self.period = _one_of("period", PeriodKind, period)
        self.timezone: ZoneInfo = zone(timezone)
        self.timezone_name = timezone
        self.lease = _positive("lease", lease)
        self.renew_every = self.lease / 3 if renew_every is None else _positive("renew_every", renew_every)
        self.sender_lease = _positive("sender_lease", sender_lease)
        self.send_window = _positive("send_window", send_window)
        self.max_attempts = _at_least_one("max_attempts", max_attempts)
        self.backoff = backoff or Backoff(base=timedelta(seconds=30), cap=timedelta(hours=1))
        self.version = version
        self.budget = budget
        self.currency = _one_currency(budget)
        self.gate = Gate.NONE if approval is None else _one_of("approval", Gate, approval)
        if self.renew_every > self.lease / 2:
            raise ConfigurationError(
                f"renew_every ({self.renew_every}) must be at most half of the lease ({self.lease}): else one renewal "
                "that fails loses the lease. Renew more often, or lengthen the lease.",
                field="renew_every",
            )
        if self.send_window >= self.sender_lease:
            raise ConfigurationError(
                f"send_window ({self.send_window}) must be shorter than sender_lease ({self.sender_lease}): "
                "a byte that leaves later could leave after somebody called the request not sent. "
                "Shorten send_window or lengthen sender_lease.",
                field="send_window",
            )

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"


def _output_model(output: type[Output]) -> type[Output]:
    if _is_model(output):  # a caller without a type checker may give anything
        return output
    raise ConfigurationError(
        f"output is {output!r}, expected a pydantic model class: persist validates the candidate with it. "
        "Declare one, for example `class Digest(BaseModel): title: str`.",
        field="output",
    )


AnyPipeline = Pipeline[BaseModel]


def _is_model(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, BaseModel)


def _one_of(field: str, kind: type["Choice"], value: object) -> "Choice":
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(str(member)) for member in kind)
        raise ConfigurationError(f"{field} is {value!r}, expected one of {choices}.", field=field) from None


Choice = TypeVar("Choice", bound=StrEnum)


def _one_currency(budget: Budget | None) -> str | None:
    limits = [] if budget is None else [*(limit for _, limit in budget.limits()), *filter(None, [budget.call])]
    currencies = sorted({limit.currency for limit in limits})
    if len(currencies) > 1:
        raise ConfigurationError(
            f"The budget mixes {' and '.join(currencies)}; amounts of different currencies are never compared. "
            "Give every limit in the currency in which the provider charges.",
            field="budget",
        )
    return currencies[0] if currencies else None


def _positive(field: str, value: object) -> timedelta:
    length = value if isinstance(value, timedelta) else duration(value) if isinstance(value, str) else None
    if length is None or length <= timedelta(0):
        raise ConfigurationError(
            f'{field} is {value!r}, expected a positive duration such as "10m" or a timedelta.', field=field
        )
    return length


def _at_least_one(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{field} is {value!r}, expected a whole number of at least 1.", field=field)
    return value
