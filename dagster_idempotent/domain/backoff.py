"""How long to wait between attempts, and durations as people write them (R30)."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from dagster_idempotent.errors import ConfigurationError

MAX_DURATION = timedelta(days=36_500)

_DURATION = re.compile(
    r"(?=[0-9])(?:(?P<days>[0-9]{1,9})d)?(?:(?P<hours>[0-9]{1,9})h)?(?:(?P<minutes>[0-9]{1,9})m)?"
    r"(?:(?P<seconds>[0-9]{1,9})s)?(?:(?P<milliseconds>[0-9]{1,12})ms)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waiting with jitter.

    After attempt n (the first is 1) the wait is at most `min(cap, base * factor ** (n - 1))`; `jitter` is the
    share of it that is left to chance: 0 waits exactly that long, 1 anything down to nothing.
    """

    base: timedelta
    factor: float = 2.0
    cap: timedelta
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not timedelta(0) < self.base <= self.cap <= MAX_DURATION:
            raise ConfigurationError(
                f"base is {self.base} and cap is {self.cap}. Expected 0 < base <= cap <= "
                f"{MAX_DURATION.days} days. Correct the backoff of the pipeline.",
                field="base",
            )
        if not 1 <= self.factor < math.inf:
            raise ConfigurationError(
                f"factor is {self.factor}. Expected a number from 1: waits never get shorter. Use 2 to double them.",
                field="factor",
            )
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                f"jitter is {self.jitter}. Expected a share from 0 to 1. Use 0.5 for waits of half to full length.",
                field="jitter",
            )

    def longest(self, attempt: int) -> timedelta:
        """Return the longest wait after this attempt; it never falls as attempts rise."""
        if attempt < 1:
            raise ConfigurationError(
                f"attempt is {attempt}. Expected 1 or more. Pass the number of attempts made so far.",
                field="attempt",
            )
        # Compared as logarithms: the power itself overflows a float.
        if (attempt - 1) * math.log(self.factor) >= math.log(self.cap / self.base):
            return self.cap
        return min(self.cap, self.base * self.factor ** (attempt - 1))

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return the wait after this attempt; `random` is a number from 0 to 1 that the caller drew."""
        if not 0 <= random <= 1:
            raise ConfigurationError(
                f"random is {random}. Expected a number from 0 to 1. Pass random.random().", field="random"
            )
        return self.longest(attempt) * (1 - self.jitter * random)


def duration(text: object, *, field: str = "duration") -> timedelta:
    """Return the duration written as whole numbers of d, h, m, s and ms, largest first: `1h30m`."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(
            f"{field} is {ascii(text)[:200]}. Expected whole numbers with d, h, m, s or ms, largest first, "
            "such as '10m', '1h30m' or '250ms'. Write 1.5h as '1h30m'.",
            field=field,
        )
    parts = {unit: int(count or 0) for unit, count in found.groupdict().items()}
    try:
        length = timedelta(**parts)
    except OverflowError:
        length = timedelta.max
    if length > MAX_DURATION:
        raise ConfigurationError(
            f"{field} is {text!a}. Expected at most {MAX_DURATION.days} days. Check the unit.",
            field=field,
        )
    return length
