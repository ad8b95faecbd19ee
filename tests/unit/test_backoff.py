import math
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.backoff import MAX_DURATION, Backoff, duration
from dagster_idempotent.errors import ConfigurationError

spans = st.timedeltas(timedelta(microseconds=1), MAX_DURATION)
shares = st.floats(0, 1)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base, cap = sorted([draw(spans), draw(spans)])
    return Backoff(base=base, cap=cap, factor=draw(st.floats(1, 1e300)), jitter=draw(shares))


@given(backoff=backoffs(), attempt=st.integers(1, 10_000), random=shares)
def test_a_wait_lies_between_its_share_and_its_bound(backoff: Backoff, attempt: int, random: float) -> None:
    wait, bound = backoff.delay(attempt, random), backoff.longest(attempt)
    assert bound * (1 - backoff.jitter) - timedelta(microseconds=1) <= wait <= bound
    assert backoff.base <= bound <= backoff.cap


@given(backoff=backoffs(), attempt=st.integers(1, 10_000))
def test_the_bound_never_falls(backoff: Backoff, attempt: int) -> None:
    assert backoff.longest(attempt) <= backoff.longest(attempt + 1)


@given(backoff=backoffs())
def test_no_attempt_is_too_high(backoff: Backoff) -> None:
    expected = backoff.base if backoff.factor == 1 else backoff.cap
    assert backoff.longest(10**300) == expected


def test_waits_double_up_to_the_cap() -> None:
    backoff = Backoff(base=timedelta(seconds=10), cap=timedelta(seconds=60), jitter=0)
    assert [backoff.delay(attempt, 0.7).total_seconds() for attempt in range(1, 6)] == [10, 20, 40, 60, 60]


def test_full_jitter_reaches_down_to_nothing() -> None:
    backoff = Backoff(base=timedelta(seconds=10), cap=timedelta(seconds=60), jitter=1)
    assert [backoff.delay(2, random).total_seconds() for random in (0, 0.5, 1)] == [20, 10, 0]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base", timedelta(0)),
        ("base", timedelta(seconds=-1)),
        ("base", timedelta(hours=2)),
        ("cap", MAX_DURATION + timedelta(days=1)),
        ("factor", 0.5),
        ("factor", math.nan),
        ("factor", math.inf),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", math.nan),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: str, value: object) -> None:
    settings = {"base": timedelta(seconds=1), "cap": timedelta(hours=1)} | {setting: value}
    with pytest.raises(ConfigurationError, match="Expected"):
        Backoff(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("attempt", "random"), [(0, 0.5), (-1, 0.5), (1, -0.1), (1, 1.1), (1, math.nan)])
def test_waits_are_asked_for_with_sensible_numbers(attempt: int, random: float) -> None:
    with pytest.raises(ConfigurationError, match="Expected"):
        Backoff(base=timedelta(seconds=1), cap=timedelta(hours=1)).delay(attempt, random)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", timedelta(minutes=10)),
        ("30s", timedelta(seconds=30)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("2d", timedelta(days=2)),
        ("90m", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("36500d", MAX_DURATION),
    ],
)
def test_durations_are_whole_numbers_with_units(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@given(
    counts=st.lists(st.integers(0, 99), min_size=5, max_size=5),
    used=st.lists(st.booleans(), min_size=5, max_size=5).filter(any),
)
def test_a_duration_is_the_sum_of_its_parts(counts: list[int], used: list[bool]) -> None:
    units = ("d", "h", "m", "s", "ms")
    text = "".join(f"{count}{unit}" for count, unit, is_used in zip(counts, units, used, strict=True) if is_used)
    days, hours, minutes, seconds, milliseconds = (
        count if is_used else 0 for count, is_used in zip(counts, used, strict=True)
    )
    assert duration(text) == timedelta(days, seconds, 0, milliseconds, minutes, hours)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "m",
        "10 m",
        " 10m",
        "10m ",
        "10m\n",
        "1.5h",
        "-1h",
        "+1h",
        "30m1h",
        "1h1h",
        "10M",
        "10min",
        "1w",
        "1e3s",
        "\u0661\u0660m",
        "36501d",
        "999999999d999999999h",
        "9" * 10_000 + "s",
        10,
        None,
        timedelta(seconds=1),
    ],
)
def test_other_texts_are_no_durations(text: object) -> None:
    with pytest.raises(ConfigurationError, match="Expected") as refusal:
        duration(text, field="lease")
    assert refusal.value.facts["field"] == "lease"
    assert len(str(refusal.value)) < 500
