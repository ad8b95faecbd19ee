"""Arms are measured in turns, round by round, so that a slow minute of the machine slows each of them."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

FLOOR = "floor: one INSERT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One thing to measure: `prepare(n)` is not timed, `operate(n)` is; n never repeats within a run."""

    name: str
    operate: Callable[[int], object]
    prepare: Callable[[int], object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The median microseconds of an arm, and of its ratios to the floor of the same round."""

    name: str
    microseconds: float
    times_floor: float
    lowest: float
    highest: float


def measure(
    arms: Iterable[Arm], *, rounds: int, operations: int, on_round: Callable[[int], None] = lambda _: None
) -> list[Measured]:
    """Time every arm in every round; the first arm is the floor."""
    arms = list(arms)
    medians: dict[str, list[float]] = {arm.name: [] for arm in arms}
    numbers = iter(range(1, 10**9))
    for arm in arms:  # connections, prepared statements and imports are not what is measured
        _time(arm, [next(numbers) for _ in range(10)])
    for this_round in range(rounds):
        on_round(this_round)
        for arm in arms:
            medians[arm.name].append(_time(arm, [next(numbers) for _ in range(operations)]))
    return [_summary(arm.name, medians, floor=arms[0].name) for arm in arms]


def _time(arm: Arm, numbers: list[int]) -> float:
    if arm.prepare is not None:
        for n in numbers:
            arm.prepare(n)
    taken: list[float] = []
    for n in numbers:
        begun = time.perf_counter_ns()
        arm.operate(n)
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(taken)


def _summary(name: str, medians: Mapping[str, list[float]], *, floor: str) -> Measured:
    ratios = sorted(mine / least for mine, least in zip(medians[name], medians[floor], strict=True))
    return Measured(
        name=name,
        microseconds=statistics.median(medians[name]),
        times_floor=statistics.median(ratios),
        lowest=ratios[0],
        highest=ratios[-1],
    )
