"""Periods number tasks: which ISO week, day or month an instant belongs to, and the ids made of it (R1, R2).

The time line of a zone is cut into periods without gap or overlap: `period_bounds(period_id_for(t))`
always encloses `t`.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import NewType, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dagster_idempotent.errors import ConfigurationError, InvalidIdentity

PeriodId = NewType("PeriodId", str)
TaskId = NewType("TaskId", str)

# A sequence is stored in a PostgreSQL integer.
MAX_SEQUENCE = 2**31 - 1
# One year is left at both ends of the calendar, so that the bounds of every period can be told in every zone.
_FIRST_YEAR, _LAST_YEAR = 2, 9998
_LAST_ISO_WEEK_DAY = 28  # 28 December is in the last ISO week of its year, always.

_PERIOD = re.compile(r"(?P<year>[0-9]{4})-(?:W(?P<week>[0-9]{2})|(?P<month>[0-9]{2})(?:-(?P<day>[0-9]{2}))?)")
_TASK = re.compile(r"(?P<period>.+)-(?P<sequence>0|[1-9][0-9]{0,9})")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*")
# Their meaning depends on the machine, or they count leap seconds.
_UNPORTABLE_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")


class PeriodKind(StrEnum):
    """How a pipeline numbers its tasks; fixed once the pipeline has tasks."""

    ISO_WEEK = "iso_week"
    DAY = "day"
    MONTH = "month"


def in_utc(instant: object, *, field: str) -> datetime:
    """Return an aware datetime as a plain one in UTC; refuse anything else, naming `field`."""
    if not isinstance(instant, datetime):
        raise InvalidIdentity(
            f"{field} is {instant!r}, a {type(instant).__name__}. Expected a datetime with a timezone. "
            "Pass the scheduled time of the tick or the start of the partition.",
            field=field,
        )
    if instant.utcoffset() is None:
        raise InvalidIdentity(
            f"{field} is {instant.isoformat()}, without a timezone. Expected an aware datetime: a naive one "
            "names different instants on different machines. Give it one, such as tzinfo=datetime.UTC.",
            field=field,
        )
    try:
        moved = instant.astimezone(UTC)
    except OverflowError as error:
        raise _out_of_calendar(instant.isoformat(), field) from error
    # A subclass (pandas, pendulum) would print itself in its own way and so change the key.
    return datetime.combine(
        date(moved.year, moved.month, moved.day),
        time(moved.hour, moved.minute, moved.second, moved.microsecond),
        UTC,
    )


def period_id_for(instant: datetime, kind: PeriodKind, timezone: ZoneInfo) -> PeriodId:
    """Return the period of an aware datetime, as the calendar of `timezone` has it.

    Where clocks went back across midnight, a period that has begun stays: the hour that is lived twice
    does not reopen the one before it.
    """
    instant = in_utc(instant, field="instant")
    try:
        local = instant.astimezone(timezone)
    except OverflowError as error:
        raise _out_of_calendar(instant.isoformat(), "instant") from error
    period_id = _period_of(local.date(), kind)
    if local.fold:
        _, following = _days(period_id, kind)
        if _first_instant(following, timezone) <= instant:
            return _period_of(following, kind)
    return period_id


def period_bounds(period_id: PeriodId, kind: PeriodKind, timezone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first instant of a period and of the one after it, in UTC.

    Both are equal for a day that a zone left out (Samoa, 2011-12-30).
    """
    first, following = _days(period_id, kind)
    return _first_instant(first, timezone), _first_instant(following, timezone)


def straddles(start: datetime, end: datetime, kind: PeriodKind, timezone: ZoneInfo) -> bool:
    """Tell whether the half-open window [start, end) lies in more than one period."""
    first, end = in_utc(start, field="start"), in_utc(end, field="end")
    if end <= first:
        raise InvalidIdentity(
            f"The window ends at {end.isoformat()} and starts at {first.isoformat()}. Expected an end after "
            "the start. Pass the partition's time window as Dagster gives it.",
            field="end",
        )
    last = end - datetime.resolution
    return period_id_for(first, kind, timezone) != period_id_for(last, kind, timezone)


def period_kind_of(period_id: str) -> PeriodKind:
    """Return the kind that a period id is written in; refuse what is no existing week, day or month."""
    found = _PERIOD.fullmatch(period_id)
    if found is None:
        raise _not_a_period(period_id)
    kind = PeriodKind.ISO_WEEK if found["week"] else PeriodKind.DAY if found["day"] else PeriodKind.MONTH
    _days(PeriodId(period_id), kind)
    return kind


def task_id_for(period_id: PeriodId, sequence: int) -> TaskId:
    """Return the durable identifier of one task, such as `2026-W32-0`."""
    period_kind_of(period_id)
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise InvalidIdentity(
            f"sequence is {sequence}. Expected 0 to {MAX_SEQUENCE}: the first task of a period is 0.",
            field="sequence",
        )
    return TaskId(f"{period_id}-{int(sequence)}")


def parse_task_id(text: str) -> tuple[PeriodId, int]:
    """Split a task id into period and sequence; refuse every text that `task_id_for` does not write."""
    found = _TASK.fullmatch(text)
    if found is None:
        raise InvalidIdentity(
            f"task_id is {text!r}. Expected a period, '-' and a sequence without leading zeros, such as "
            "2026-W32-0, 2026-08-05-0 or 2026-08-0. Copy it from the run's tags or from the list of tasks.",
            field="task_id",
        )
    sequence = int(found["sequence"])
    if sequence > MAX_SEQUENCE:
        raise InvalidIdentity(
            f"task_id is {text!r}, with sequence {sequence}. Expected a sequence from 0 to {MAX_SEQUENCE}.",
            field="sequence",
        )
    period_kind_of(found["period"])
    return PeriodId(found["period"]), sequence


def zone(name: str) -> ZoneInfo:
    """Return the zone of an IANA name such as `UTC` or `Europe/Berlin`."""
    if _ZONE.fullmatch(name) is None or name.startswith(_UNPORTABLE_ZONES):
        raise _unknown_zone(name)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: a folder, such as "America"
        raise _unknown_zone(name) from error


def _period_of(day: date, kind: PeriodKind) -> PeriodId:
    match kind:
        case PeriodKind.ISO_WEEK:
            year, week, _ = day.isocalendar()
            text = f"{year:04d}-W{week:02d}"
        case PeriodKind.DAY:
            year, text = day.year, day.isoformat()
        case PeriodKind.MONTH:
            year, text = day.year, f"{day.year:04d}-{day.month:02d}"
        case _:
            assert_never(kind)
    if not _FIRST_YEAR <= year <= _LAST_YEAR:
        raise _out_of_calendar(day.isoformat(), "instant")
    return PeriodId(text)


def _days(period_id: PeriodId, kind: PeriodKind) -> tuple[date, date]:
    """Return the first day of a period and of the one after it."""
    found = _PERIOD.fullmatch(period_id)
    if found is None or not _FIRST_YEAR <= int(found["year"]) <= _LAST_YEAR:
        raise _not_a_period(period_id)
    written = {
        PeriodKind.ISO_WEEK: found["week"],
        PeriodKind.DAY: found["day"],
        PeriodKind.MONTH: found["month"],
    }
    if written[kind] is None or (kind is PeriodKind.MONTH and found["day"]):
        raise InvalidIdentity(
            f"period_id is {period_id!r}. Expected one of kind {kind.value}, such as {_EXAMPLES[kind]}. "
            "Use the kind that the pipeline was declared with.",
            field="period_id",
        )
    year = int(found["year"])
    try:
        match kind:
            case PeriodKind.ISO_WEEK:
                first = date.fromisocalendar(year, int(found["week"]), 1)
                return first, first + timedelta(weeks=1)
            case PeriodKind.DAY:
                first = date(year, int(found["month"]), int(found["day"]))
                return first, first + timedelta(days=1)
            case PeriodKind.MONTH:
                first = date(year, int(found["month"]), 1)
                return first, (first + timedelta(days=31)).replace(day=1)
            case _:
                assert_never(kind)
    except ValueError as error:
        raise _not_a_period(period_id) from error


def _first_instant(day: date, timezone: ZoneInfo) -> datetime:
    """Return the first instant at which the clocks of a zone show `day` or later."""
    midnight = datetime.combine(day, time.min, timezone)
    before, after = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    if before <= after:
        return before
    # Clocks were set forward across midnight. The change lies between the two readings of a midnight that
    # nobody lived through; zones change on whole seconds.
    low, high = int(after.timestamp()), int(before.timestamp())
    while low < high:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, timezone).date() < day:
            low = middle + 1
        else:
            high = middle
    return datetime.fromtimestamp(low, UTC)


_EXAMPLES = {PeriodKind.ISO_WEEK: "2026-W32", PeriodKind.DAY: "2026-08-05", PeriodKind.MONTH: "2026-08"}


def _not_a_period(text: str) -> InvalidIdentity:
    year = text[:4]
    weeks = ""
    if re.fullmatch(r"[0-9]{4}-W[0-9]{2}", text) and _FIRST_YEAR <= int(year) <= _LAST_YEAR:
        last = date(int(year), 12, _LAST_ISO_WEEK_DAY).isocalendar().week
        weeks = f" The ISO year {year} has the weeks W01 to W{last}."
    return InvalidIdentity(
        f"period_id is {text!r}. Expected an ISO week such as 2026-W32, a day such as 2026-08-05 or a month "
        f"such as 2026-08 that exists, in the years {_FIRST_YEAR:04d} to {_LAST_YEAR}.{weeks}",
        field="period_id",
    )


def _out_of_calendar(text: str, field: str) -> InvalidIdentity:
    return InvalidIdentity(
        f"{field} is {text}. Expected a time in the years {_FIRST_YEAR:04d} to {_LAST_YEAR}.", field=field
    )


def _unknown_zone(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"timezone is {name!r}. Expected an IANA name that this machine knows, such as UTC or Europe/Berlin. "
        "Correct the name; if it is right, install the package tzdata.",
        field="timezone",
    )
