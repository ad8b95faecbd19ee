import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.identity import MAX_TEXT, Identity, validate_pipeline_name
from dagster_idempotent.errors import InvalidIdentity

MONDAY = datetime(2026, 8, 3, tzinfo=UTC)


def _allowed(text: str) -> bool:
    try:
        Identity(pipeline="p", explicit_key=text)
    except InvalidIdentity:
        return False
    return True


pipelines = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z")
# Short texts over the characters that join and label parts find collisions that random text does not.
tricky = st.text("%/|:=,key2FsubjctversionZT- 0", min_size=1, max_size=12)
texts = (tricky | st.text(min_size=1, max_size=20)).filter(_allowed)
times = st.datetimes(
    datetime(1, 1, 3),  # noqa: DTZ001
    datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.timezones() | st.just(UTC),
    allow_imaginary=False,
)


@st.composite
def identities(draw: st.DrawFn) -> Identity:
    occasion = {"scheduled_at": draw(times)} if draw(st.booleans()) else {"explicit_key": draw(texts)}
    return Identity(
        pipeline=draw(pipelines),
        subject=draw(st.just("") | texts),
        version=draw(st.just("") | texts),
        **occasion,
    )


@given(first=identities(), second=identities())
def test_distinct_identities_share_neither_name(first: Identity, second: Identity) -> None:
    assert (first.allocation_key == second.allocation_key) == (first == second)
    assert (first.run_id == second.run_id) == (first == second)


@given(parts=st.lists(st.text("%/|=:ab", max_size=3).filter(lambda text: text == text.strip()), min_size=6, max_size=6))
def test_texts_never_move_between_parts(parts: list[str]) -> None:
    first, second = (
        Identity(pipeline="p", subject=subject, explicit_key=f"k{key}", version=version)
        for subject, key, version in (parts[:3], parts[3:])
    )
    assert (first.allocation_key == second.allocation_key) == (first == second)
    assert (first.run_id == second.run_id) == (first == second)


@given(identity=identities())
def test_an_allocation_key_is_read_back_as_the_identity(identity: Identity) -> None:
    assert Identity.from_allocation_key(identity.allocation_key) == identity


@given(identity=identities())
def test_a_key_needs_no_quotes_in_a_shell(identity: Identity) -> None:
    assert not set(identity.allocation_key) & set(" \t\n|&;<>()$`\\\"'*?[]#!{}^")


@given(identity=identities(), junk=st.text("%/|=:ab2FZ", min_size=1, max_size=4), place=st.integers(0, 200))
def test_any_other_spelling_of_a_key_is_refused_or_another_identity(identity: Identity, junk: str, place: int) -> None:
    key = identity.allocation_key
    changed = key[:place] + junk + key[place:]
    try:
        other = Identity.from_allocation_key(changed)
    except InvalidIdentity:
        return
    assert other.allocation_key == changed
    assert other != identity


@given(instant=times, zone=st.timezones())
def test_one_instant_in_two_zones_is_one_identity(instant: datetime, zone: ZoneInfo) -> None:
    here, there = (Identity(pipeline="p", scheduled_at=moment) for moment in (instant, instant.astimezone(zone)))
    assert here == there
    assert here.run_id == there.run_id
    assert here.allocation_key == there.allocation_key


def test_the_two_passes_of_an_hour_lived_twice_are_two_identities() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (
        Identity(pipeline="p", scheduled_at=datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=berlin)) for fold in (0, 1)
    )
    assert first.allocation_key == "p/2026-10-25T00:30:00Z"
    assert second.allocation_key == "p/2026-10-25T01:30:00Z"


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        (Identity(pipeline="weekly_digest", scheduled_at=MONDAY), "weekly_digest/2026-08-03T00:00:00Z"),
        (
            Identity(pipeline="weekly_digest", subject="acme", scheduled_at=MONDAY, version="2"),
            "weekly_digest/2026-08-03T00:00:00Z/subject=acme/version=2",
        ),
        (
            Identity(pipeline="p", scheduled_at=MONDAY + timedelta(microseconds=5)),
            "p/2026-08-03T00:00:00.000005Z",
        ),
        (Identity(pipeline="p", explicit_key="order-77"), "p/key:order-77"),
        (Identity(pipeline="p", explicit_key="2026-08-03T00:00:00Z"), "p/key:2026-08-03T00:00:00Z"),
        (Identity(pipeline="p", explicit_key="50%/a|b c"), "p/key:50%25%2Fa%7Cb%20c"),
        (Identity(pipeline="p", explicit_key="k", subject="Zoë"), "p/key:k/subject=Zoë"),
    ],
)
def test_keys_have_the_documented_form(identity: Identity, key: str) -> None:
    assert identity.allocation_key == key


def test_run_ids_never_change_between_releases() -> None:
    digest = Identity(pipeline="weekly_digest", subject="acme", scheduled_at=MONDAY, version="2")
    order = Identity(pipeline="orders", explicit_key="order-77")
    assert digest.run_id == "c32a9bd695251b5f3cf6f9745376115e12f9dfac6d314fd888f6b64d0a3928e2"
    assert order.run_id == "399c7b6795b9ae4709b9eae145d31b4a6cd18265d8e2b77d4b00b43efedc119e"


@given(text=st.text(min_size=1, max_size=30).filter(_allowed))
def test_composed_and_decomposed_texts_are_one_identity(text: str) -> None:
    composed, decomposed = (
        Identity(pipeline="p", explicit_key=unicodedata.normalize(form, text)) for form in ("NFC", "NFD")
    )
    assert composed == decomposed
    assert composed.run_id == decomposed.run_id
    assert composed.allocation_key == decomposed.allocation_key


def test_case_counts() -> None:
    upper, lower = (Identity(pipeline="p", subject=name, explicit_key="k") for name in ("Acme", "acme"))
    assert upper.run_id != lower.run_id


@pytest.mark.parametrize(
    "text",
    [
        " acme",
        "acme ",
        "\u00a0acme",
        "a\u00a0b",
        "a\u3000b",
        "a\tb",
        "a\nb",
        "a\x00b",
        "a\x7fb",
        "a\u200bb",  # zero width space
        "a\u200db",  # zero width joiner
        "a\u202eb",  # right-to-left override
        "a\u2028b",
        "a\u2029b",
        "\ufeffacme",
        "a\u00adb",  # soft hyphen
        "a\ud800b",
        "a\ue000b",  # private use
        "a\u0378b",  # unassigned
        "a\ufe0fb",  # variation selector
        "a\u3164b",  # Hangul filler
        "x" * (MAX_TEXT + 1),
        "e\u0301" * (MAX_TEXT + 1),
        "e" + "\u0301" * 10_000_000,
    ],
)
@pytest.mark.parametrize("field", ["subject", "explicit_key", "version"])
def test_texts_that_two_people_could_read_differently_are_refused(field: str, text: str) -> None:
    parts = {"explicit_key": "k"} | {field: text}
    with pytest.raises(InvalidIdentity, match="Expected") as refusal:
        Identity(pipeline="p", **parts)
    assert refusal.value.facts["field"] == field
    assert len(str(refusal.value)) < 1000
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("text", ["x" * MAX_TEXT, "e\u0301" * MAX_TEXT, "a b", "日本", "O'Neil & Söhne", "a\u0300"])
def test_ordinary_texts_are_accepted(text: str) -> None:
    assert Identity(pipeline="p", explicit_key=text).explicit_key == unicodedata.normalize("NFC", text)


def test_the_longest_key_fits_an_index_entry() -> None:
    wide = "\U00010400" * MAX_TEXT
    longest = Identity(pipeline="p" * 100, subject=wide, explicit_key=wide, version=wide)
    assert len(longest.allocation_key.encode()) + 100 + 50 < 2704


@pytest.mark.parametrize("value", [7, None, b"acme", ["acme"], 1.5])
def test_parts_are_texts_and_not_converted(value: object) -> None:
    with pytest.raises(InvalidIdentity) as refusal:
        Identity(pipeline="p", subject=value, explicit_key="k")  # type: ignore[arg-type]
    assert refusal.value.facts["field"] == "subject"


def test_members_of_string_enums_are_their_values() -> None:
    class Tenant(StrEnum):
        ACME = "acme"

    class Old(str, Enum):  # noqa: UP042
        ACME = "acme"

    plain = Identity(pipeline="p", subject="acme", scheduled_at=MONDAY)
    for member in (Tenant.ACME, Old.ACME):
        identity = Identity(pipeline="p", subject=member, scheduled_at=MONDAY)
        assert identity.allocation_key == plain.allocation_key
        assert type(identity.subject) is str


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "a.b", "é", "a\n", "a" * 101, "a/b", "\u0430bc", None, 5])
def test_pipeline_names_are_ascii_words(name: object) -> None:
    with pytest.raises(InvalidIdentity) as refusal:
        validate_pipeline_name(name)
    assert refusal.value.facts["field"] == "pipeline"
    with pytest.raises(InvalidIdentity):
        Identity(pipeline=name, scheduled_at=MONDAY)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "_", "Weekly_Digest2", "a" * 100])
def test_words_are_pipeline_names(name: str) -> None:
    assert validate_pipeline_name(name) == name


def test_naive_times_are_refused() -> None:
    with pytest.raises(InvalidIdentity, match="without a timezone") as refusal:
        Identity(pipeline="p", scheduled_at=datetime(2026, 8, 3))  # noqa: DTZ001
    assert refusal.value.facts["field"] == "scheduled_at"


def test_times_are_not_texts() -> None:
    with pytest.raises(InvalidIdentity, match="Expected a datetime"):
        Identity(pipeline="p", scheduled_at="2026-08-03T00:00:00Z")  # type: ignore[arg-type]


def test_times_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(InvalidIdentity):
        Identity(pipeline="p", scheduled_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))))


def test_a_time_of_a_subclass_prints_like_any_other() -> None:
    class Loud(datetime):
        def isoformat(self, *_: object) -> str:  # type: ignore[override]
            return "loud"

    identity = Identity(pipeline="p", scheduled_at=Loud(2026, 8, 3, tzinfo=UTC))
    assert identity.allocation_key == "p/2026-08-03T00:00:00Z"


@pytest.mark.parametrize("parts", [{}, {"scheduled_at": MONDAY, "explicit_key": "k"}])
def test_exactly_one_of_time_and_key_is_given(parts: dict[str, object]) -> None:
    with pytest.raises(InvalidIdentity, match="Expected exactly one"):
        Identity(pipeline="p", **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "p",
        "p/",
        "p/key:",
        "p/2026-08-03",
        "p/2026-08-03T00:00:00+00:00",
        "p/2026-08-03T02:00:00+02:00",
        "p/2026-08-03T00:00:00.000000Z",
        "p/2026-02-30T00:00:00Z",
        "p/2026-08-03T00:00:00Z/",
        "p/2026-08-03T00:00:00Z/subject=",
        "p/2026-08-03T00:00:00Z/version=2/subject=a",
        "p/2026-08-03T00:00:00Z/subject=a/subject=a",
        "p/2026-08-03T00:00:00Z/colour=red",
        "p/key:a%62",
        "p/key:a%2f",
        "p/key:a%",
        "p/key:a b",
        "p/key:e\u0301",
        "1p/key:a",
    ],
)
def test_texts_that_no_identity_writes_are_no_keys(key: str) -> None:
    with pytest.raises(InvalidIdentity):
        Identity.from_allocation_key(key)
