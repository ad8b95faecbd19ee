from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.period import (
    MAX_SEQUENCE,
    PeriodId,
    PeriodKind,
    parse_task_id,
    period_bounds,
    period_id_for,
    period_kind_of,
    straddles,
    task_id_for,
    zone,
)
from dagster_idempotent.errors import ConfigurationError, InvalidIdentity

UTC_ZONE = ZoneInfo("UTC")
# Half-hour shifts, changes at midnight and at 00:01, left-out days, quarter hours.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "America/Nuuk",
    "America/Toronto",
    "Africa/Cairo",
    "Asia/Beirut",
    "Antarctica/Casey",
    "Antarctica/Troll",
]
instants = st.datetimes(datetime(1900, 1, 1), datetime(2150, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
kinds = st.sampled_from(PeriodKind)
zones = st.sampled_from(ZONES).map(ZoneInfo)


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        (date(2025, 12, 28), "2025-W52"),
        (date(2025, 12, 29), "2026-W01"),
        (date(2026, 8, 5), "2026-W32"),
        (date(2026, 12, 31), "2026-W53"),
        (date(2027, 1, 3), "2026-W53"),
        (date(2027, 1, 4), "2027-W01"),
        (date(2021, 1, 3), "2020-W53"),
    ],
)
def test_weeks_belong_to_the_iso_year(day: date, expected: str) -> None:
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    assert period_id_for(noon, PeriodKind.ISO_WEEK, UTC_ZONE) == expected


@pytest.mark.parametrize(("kind", "expected"), [("day", "2026-08-05"), ("month", "2026-08")])
def test_days_and_months_are_written_in_iso_form(kind: str, expected: str) -> None:
    assert period_id_for(datetime(2026, 8, 5, tzinfo=UTC), PeriodKind(kind), UTC_ZONE) == expected


def test_the_calendar_of_the_zone_decides() -> None:
    sunday_evening = datetime(2026, 8, 2, 22, 30, tzinfo=UTC)
    assert period_id_for(sunday_evening, PeriodKind.ISO_WEEK, UTC_ZONE) == "2026-W31"
    assert period_id_for(sunday_evening, PeriodKind.ISO_WEEK, ZoneInfo("Europe/Berlin")) == "2026-W32"


@given(instant=instants, kind=kinds, tz=zones)
def test_the_bounds_of_its_period_enclose_every_instant(instant: datetime, kind: PeriodKind, tz: ZoneInfo) -> None:
    start, end = period_bounds(period_id_for(instant, kind, tz), kind, tz)
    assert start <= instant < end
    assert start.tzinfo is UTC
    assert end.tzinfo is UTC


@given(day=st.dates(date(1900, 1, 1), date(2150, 1, 1)), kind=kinds, tz=zones, seconds=st.integers(-7200, 7200))
def test_instants_near_midnight_lie_within_the_bounds_of_their_period(
    day: date, kind: PeriodKind, tz: ZoneInfo, seconds: int
) -> None:
    midnight = datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC)
    instant = midnight + timedelta(seconds=seconds)
    start, end = period_bounds(period_id_for(instant, kind, tz), kind, tz)
    assert start <= instant < end


@given(instant=instants, kind=kinds, tz=zones)
def test_periods_follow_each_other_without_a_gap(instant: datetime, kind: PeriodKind, tz: ZoneInfo) -> None:
    _, end = period_bounds(period_id_for(instant, kind, tz), kind, tz)
    following = period_id_for(end, kind, tz)
    assert period_bounds(following, kind, tz)[0] == end
    assert following > period_id_for(instant, kind, tz)


@given(instant=instants, kind=kinds, tz=zones, other=zones)
def test_the_zone_that_an_instant_is_written_in_does_not_matter(
    instant: datetime, kind: PeriodKind, tz: ZoneInfo, other: ZoneInfo
) -> None:
    assert period_id_for(instant.astimezone(other), kind, tz) == period_id_for(instant, kind, tz)


@pytest.mark.parametrize(
    ("name", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Asia/Kolkata", "2026-08-05", 24),
        ("Pacific/Apia", "2011-12-30", 0),
        ("America/Sao_Paulo", "2018-11-04", 23),  # no midnight
        ("America/Havana", "2026-11-01", 25),  # midnight twice
        ("America/Toronto", "1919-03-31", 23.5),  # 23:30 became 00:30
    ],
)
def test_days_are_as_long_as_the_clocks_of_their_zone_say(name: str, day: str, hours: float) -> None:
    start, end = period_bounds(PeriodId(day), PeriodKind.DAY, ZoneInfo(name))
    assert end - start == timedelta(hours=hours)


def test_the_bounds_of_a_week_start_on_monday_in_its_zone() -> None:
    assert period_bounds(PeriodId("2026-W32"), PeriodKind.ISO_WEEK, ZoneInfo("Asia/Kolkata")) == (
        datetime(2026, 8, 2, 18, 30, tzinfo=UTC),
        datetime(2026, 8, 9, 18, 30, tzinfo=UTC),
    )


def test_an_hour_lived_twice_across_midnight_does_not_reopen_the_day_before() -> None:
    # On 2010-11-07 clocks in St John's went back from 00:01 to 23:01 of the day before.
    tz = ZoneInfo("America/St_Johns")
    second_pass = datetime(2010, 11, 6, 23, 30, fold=1, tzinfo=tz)
    assert period_id_for(second_pass, PeriodKind.DAY, tz) == "2010-11-07"
    assert period_id_for(second_pass.replace(fold=0), PeriodKind.DAY, tz) == "2010-11-06"


@pytest.mark.parametrize("kind", PeriodKind)
def test_naive_datetimes_have_no_period(kind: PeriodKind) -> None:
    with pytest.raises(InvalidIdentity, match="without a timezone") as refusal:
        period_id_for(datetime(2026, 8, 5), kind, UTC_ZONE)  # noqa: DTZ001
    assert refusal.value.facts["field"] == "instant"


@pytest.mark.parametrize("instant", [datetime.min, datetime.max])  # noqa: DTZ901
@pytest.mark.parametrize("hours", [-14, 0, 14])
def test_the_ends_of_the_calendar_are_refused_clearly(instant: datetime, hours: int) -> None:
    there = instant.replace(tzinfo=timezone(timedelta(hours=hours)))
    for kind in PeriodKind:
        with pytest.raises(InvalidIdentity, match="in the years 0002 to 9998"):
            period_id_for(there, kind, ZoneInfo("Pacific/Apia"))


@pytest.mark.parametrize("period_id", ["0002-01-01", "0002-W01", "0002-01", "9998-12-31", "9998-W52", "9998-12"])
@pytest.mark.parametrize("name", ZONES)
def test_the_outermost_periods_have_bounds_in_every_zone(period_id: str, name: str) -> None:
    start, end = period_bounds(PeriodId(period_id), period_kind_of(period_id), ZoneInfo(name))
    assert start < end


@pytest.mark.parametrize(
    ("period_id", "kind"),
    [
        ("2026-W32", "day"),
        ("2026-W32", "month"),
        ("2026-08", "day"),
        ("2026-08-05", "month"),
        ("2026-08", "iso_week"),
    ],
)
def test_a_period_of_another_kind_has_no_bounds(period_id: str, kind: str) -> None:
    with pytest.raises(InvalidIdentity, match=f"kind {kind}"):
        period_bounds(PeriodId(period_id), PeriodKind(kind), UTC_ZONE)


@given(instant=instants, kind=kinds, tz=zones, sequence=st.integers(0, MAX_SEQUENCE))
def test_a_task_id_is_read_back_as_it_was_made(
    instant: datetime, kind: PeriodKind, tz: ZoneInfo, sequence: int
) -> None:
    period_id = period_id_for(instant, kind, tz)
    assert parse_task_id(task_id_for(period_id, sequence)) == (period_id, sequence)
    assert period_kind_of(period_id) is kind


@given(text=st.from_regex(r"\A[0-9]{4}-(W?[0-9]{2})(-[0-9]{2})?-[0-9]{1,3}\Z") | st.text())
def test_a_text_is_either_refused_or_exactly_what_it_is_written_as(text: str) -> None:
    try:
        period_id, sequence = parse_task_id(text)
    except InvalidIdentity:
        return
    assert task_id_for(period_id, sequence) == text


def test_a_task_id_is_a_period_and_a_sequence() -> None:
    assert task_id_for(PeriodId("2026-W32"), 0) == "2026-W32-0"
    assert parse_task_id("2026-W53-12") == ("2026-W53", 12)
    assert parse_task_id("2028-02-29-0") == ("2028-02-29", 0)
    assert parse_task_id("2026-08-10") == ("2026-08", 10)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("2026-W32-01", "task_id"),
        ("2026-W32-00", "task_id"),
        ("2026-W32--1", "period_id"),
        ("2026-W32-+1", "task_id"),
        ("2026-W32-", "task_id"),
        ("2026-W32", "task_id"),
        ("2026-W54-0", "period_id"),
        ("2026-W00-0", "period_id"),
        ("2025-W53-0", "period_id"),
        ("2026-w32-0", "period_id"),
        ("2026-W1-0", "period_id"),
        ("2026-02-30-0", "period_id"),
        ("2026-02-29-0", "period_id"),
        ("2026-13-0", "period_id"),
        ("2026-8-0", "period_id"),
        ("0000-W01-0", "period_id"),
        ("9999-W01-0", "period_id"),
        (" 2026-W32-0", "period_id"),
        ("2026-W32-0 ", "task_id"),
        ("2026-W32-0\n", "task_id"),
        ("2026 -W32-0", "period_id"),
        ("٢٠٢٦-W32-0", "period_id"),
        ("2026-W32-٣", "task_id"),
        ("２０２６-W32-0", "period_id"),  # noqa: RUF001
        ("2026-W32-2147483648", "sequence"),
        ("2026-W32-99999999999999999999", "task_id"),
        ("", "task_id"),
    ],
)
def test_other_texts_are_no_task_ids(text: str, field: str) -> None:
    with pytest.raises(InvalidIdentity, match="Expected") as refusal:
        parse_task_id(text)
    assert refusal.value.facts["field"] == field


def test_a_missing_week_53_is_explained() -> None:
    with pytest.raises(InvalidIdentity, match="2025 has the weeks W01 to W52"):
        parse_task_id("2025-W53-0")


@pytest.mark.parametrize("sequence", [-1, MAX_SEQUENCE + 1])
def test_sequences_outside_an_integer_column_are_refused(sequence: int) -> None:
    with pytest.raises(InvalidIdentity) as refusal:
        task_id_for(PeriodId("2026-W32"), sequence)
    assert refusal.value.facts["field"] == "sequence"


@pytest.mark.parametrize("period_id", ["2026-W54", "2026-02-30", "", "nonsense", "2026-W32-0"])
def test_task_ids_are_made_of_existing_periods_only(period_id: str) -> None:
    with pytest.raises(InvalidIdentity) as refusal:
        task_id_for(PeriodId(period_id), 0)
    assert refusal.value.facts["field"] == "period_id"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (datetime(2026, 8, 3, tzinfo=UTC), datetime(2026, 8, 10, tzinfo=UTC), False),
        (datetime(2026, 8, 3, tzinfo=UTC), datetime(2026, 8, 10, microsecond=1, tzinfo=UTC), True),
        (datetime(2026, 8, 2, tzinfo=UTC), datetime(2026, 8, 9, tzinfo=UTC), True),
        (datetime(2026, 8, 2, 23, 59, 59, 999999, tzinfo=UTC), datetime(2026, 8, 3, tzinfo=UTC), False),
    ],
)
def test_a_window_straddles_when_it_holds_instants_of_two_periods(
    start: datetime, end: datetime, *, expected: bool
) -> None:
    assert straddles(start, end, PeriodKind.ISO_WEEK, UTC_ZONE) is expected


@given(instant=instants, kind=kinds, tz=zones)
def test_a_whole_period_does_not_straddle(instant: datetime, kind: PeriodKind, tz: ZoneInfo) -> None:
    start, end = period_bounds(period_id_for(instant, kind, tz), kind, tz)
    assert not straddles(start, end, kind, tz)
    assert straddles(start, end + timedelta(microseconds=1), kind, tz)
    assert straddles(start - timedelta(microseconds=1), end, kind, tz)


def test_an_empty_or_reversed_window_is_refused() -> None:
    start = datetime(2026, 8, 3, tzinfo=UTC)
    for end in (start, start - timedelta(seconds=1)):
        with pytest.raises(InvalidIdentity, match="Expected an end after"):
            straddles(start, end, PeriodKind.DAY, UTC_ZONE)


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Port-au-Prince", "Etc/GMT+5"])
def test_iana_names_are_zones(name: str) -> None:
    assert zone(name).key == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "Mars/Olympus",
        "Europe/Berlin ",
        "Europe/Berlin\n",
        "/usr/share/zoneinfo/UTC",
        "/etc/passwd",
        "../zoneinfo/UTC",
        "Europe/../UTC",
        "Europe",
        "America/",
        "zone.tab",
        "leapseconds",
        "localtime",
        "posixrules",
        "posix/UTC",
        "right/UTC",
        "UTC\x00",
        "Ｕtc",  # noqa: RUF001
        "\ud800",
        "A" * 10_000,
        "+02:00",
    ],
)
def test_other_texts_are_no_zones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected an IANA name") as refusal:
        zone(name)
    assert refusal.value.facts["field"] == "timezone"
