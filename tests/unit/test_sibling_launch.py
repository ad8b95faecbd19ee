"""What may be said of the launch of a task that was never launched: what its siblings show, and no more."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.engine.sibling_launch import NotKnown, launch_like

MONDAY = datetime(2026, 8, 3, tzinfo=UTC)
VIENNA = ZoneInfo("Europe/Vienna")


def task(scheduled_at: datetime | None = MONDAY, subject: str = "", **changes: Any) -> dict[str, Any]:
    return {
        "origin": "imported",
        "scheduled_at": scheduled_at,
        "subject": subject,
        **changes,
    }


def sibling(
    scheduled_at: datetime, key: str | None, subject: str = "", timezone: str = "UTC", **launch: Any
) -> dict[str, Any]:
    launched = {"job": "weekly", "assets": [], "partition_key": key, "ops": {}, **launch}
    return {"scheduled_at": scheduled_at, "subject": subject, "launch": launched, "timezone": timezone}


def key_of(found: Any) -> str | None:
    assert not isinstance(found, NotKnown), found
    assert found["job"] == "weekly"
    return found["partition_key"]


@given(
    weeks=st.integers(-500, 500),
    shape=st.sampled_from(["%Y-%m-%d", "%Y-%m-%d-%H:%M"]),
    subject=st.sampled_from(["", "acme", "größe"]),
    time_first=st.booleans(),
    zone=st.sampled_from([UTC, VIENNA]),
)
def test_a_partition_is_named_as_those_of_its_siblings_are(
    weeks: int, shape: str, subject: str, *, time_first: bool, zone: Any
) -> None:
    def named(instant: datetime) -> str:
        parts = [instant.strftime(shape), subject] if time_first else [subject, instant.strftime(shape)]
        return "|".join(part for part in parts if part)

    first = datetime(2026, 1, 5, tzinfo=zone)
    asked = first + timedelta(weeks=weeks)
    siblings = [
        sibling(at.astimezone(UTC), named(at), subject, timezone=str(zone))
        for at in (first, first + timedelta(weeks=27))
    ]
    row = task(asked.astimezone(UTC), subject)
    assert key_of(launch_like(row, siblings)) == named(asked)


def test_months_are_named_by_the_day_or_as_a_month_as_the_siblings_say() -> None:
    july = sibling(datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01")
    assert key_of(launch_like(task(datetime(2026, 8, 1, tzinfo=UTC)), [july])) == "2026-08-01"
    short = sibling(datetime(2026, 7, 1, tzinfo=UTC), "2026-07")
    assert key_of(launch_like(task(datetime(2026, 8, 1, tzinfo=UTC)), [short])) == "2026-08"


def test_a_tick_needs_no_partition() -> None:
    assert key_of(launch_like(task(), [sibling(MONDAY, None)])) is None


@pytest.mark.parametrize(
    ("row", "siblings", "why"),
    [
        (task(), [], "no task like it was launched"),
        (task(origin="unrelated", scheduled_at=None), [sibling(MONDAY, "2026-08-03")], "without an identity"),
        (task(None), [sibling(MONDAY, "2026-08-03")], "no scheduled time"),
        # A window that starts at another time would be another task, and another charge.
        (task(MONDAY + timedelta(hours=9)), [sibling(MONDAY, "2026-08-03")], "which partition it is"),
        (task(), [sibling(MONDAY, "week 32")], "which partition it is"),
        (task(), [sibling(MONDAY, "2026-08-03"), sibling(MONDAY, "2026/08/10")], "which partition it is"),
        (
            task(),
            [sibling(MONDAY, None, ops={"allocate": {"config": {"explicit_key": "order-17"}}})],
            "no task like it was launched",
        ),
    ],
)
def test_what_the_siblings_do_not_show_is_left_to_a_person(row: Any, siblings: list[Any], why: str) -> None:
    found = launch_like(row, siblings)
    assert isinstance(found, NotKnown)
    assert why in found.why
