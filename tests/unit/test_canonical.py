import json
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from dagster_idempotent.domain.canonical import MAX_DEPTH, canonical_json, number_text
from dagster_idempotent.errors import InvalidPayload

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Choice(Enum):
    PAIR = (1, "two")


class Request(BaseModel):
    text: str
    size: int = 1
    at: datetime | None = None


def _numbers_by_value(value: object) -> object:
    """Tell apart what JSON tells apart: Python takes True for 1."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case int() | float():
            return ("number", Decimal(repr(value)))
        case dict():
            return {key: _numbers_by_value(item) for key, item in value.items()}
        case _:
            return [_numbers_by_value(item) for item in value]


@given(first=documents, second=documents)
def test_two_documents_share_a_form_only_when_json_cannot_tell_them_apart(first: object, second: object) -> None:
    same = _numbers_by_value(first) == _numbers_by_value(second)
    assert (canonical_json(first) == canonical_json(second)) == same


@given(document=documents)
def test_a_document_that_went_through_json_has_the_same_form(document: object) -> None:
    assert canonical_json(json.loads(json.dumps(document))) == canonical_json(document)


@given(document=documents)
def test_the_form_is_json(document: object) -> None:
    json.loads(canonical_json(document))


@given(pairs=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), scalars), random=st.randoms())
def test_the_order_of_keys_does_not_matter(pairs: dict[str, object], random: object) -> None:
    shuffled = list(pairs.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert canonical_json(dict(shuffled)) == canonical_json(pairs)


@given(first=st.decimals(allow_nan=False, allow_infinity=False), second=st.decimals(allow_nan=False))
def test_decimals_share_a_text_exactly_when_they_are_equal(first: Decimal, second: Decimal) -> None:
    if second.is_finite():
        assert (number_text(first) == number_text(second)) == (first == second)
    assert Decimal(number_text(first)) == first


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 1.0),
        (0, -0.0),
        (Decimal("1.0"), 1),
        (Decimal("-0.00"), 0),
        (Decimal("1E+2"), 100),
        (0.1, Decimal("0.1")),
        (1e22, 10**22),
        (1e300, Decimal("1e300")),
        (10**30, Decimal(10**30)),
        ((1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Choice.PAIR, [1, "two"]),
        ({Colour.RED: 1}, {"red": 1}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (date(2026, 8, 5), "2026-08-05"),
        (UUID(int=5), str(UUID(int=5))),
        (datetime(2026, 8, 5, tzinfo=UTC), "2026-08-05T00:00:00Z"),
        (
            datetime(2026, 8, 5, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2026, 8, 5, tzinfo=UTC),
        ),
        (Request(text="a"), {"text": "a", "size": 1, "at": None}),
        (Request(text="a", at=datetime(2026, 8, 5, tzinfo=UTC)).at, "2026-08-05T00:00:00Z"),
        ([Request(text="a")], [{"at": None, "size": 1, "text": "a"}]),
        (b"x", bytearray(b"x")),
    ],
)
def test_what_is_the_same_on_the_wire_has_one_form(first: object, second: object) -> None:
    assert canonical_json(first) == canonical_json(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (True, 1),
        (False, 0),
        (None, "null"),
        (1, "1"),
        ("\u00e9", "e\u0301"),  # sent as different bytes
        ("a", "A"),
        (10**40, 10**40 + 1),
        (2**53, 2**53 + 1),
        (Decimal("0.1"), Decimal("0.10000000000000000000000000000000000001")),
        (b"x", "x"),
        (b"x", b"y"),
        ([], {}),
        ([[1], [2]], [[1, 2]]),
        ([1, 2], [2, 1]),
        ({"a": None}, {}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ([""], []),
    ],
)
def test_what_differs_on_the_wire_differs(first: object, second: object) -> None:
    assert canonical_json(first) != canonical_json(second)


def test_no_payload_can_pose_as_bytes() -> None:
    form = json.loads(canonical_json(b"x"))
    assert list(form) == ["$bytes"]
    assert canonical_json(form) != canonical_json(b"x")
    assert canonical_json({"$$bytes": form["$bytes"]}) != canonical_json(form)


def test_the_form_is_readable() -> None:
    payload = {"b": [1.50, -2, 1200, 10**21], "a": "é\n", "$ref": None}
    assert canonical_json(payload).decode() == '{"$$ref":null,"a":"é\\n","b":[1.5,-2,1200,1e21]}'


@pytest.mark.parametrize(
    ("payload", "pointer", "advice"),
    [
        (float("nan"), "", "null"),
        ({"a": [0, float("inf")]}, "/a/1", "null"),
        ({"a": Decimal("NaN")}, "/a", "null"),
        ({"a": Decimal("sNaN")}, "/a", "null"),
        ({"a": {1, 2}}, "/a", "sorted list"),
        ({"a": frozenset()}, "/a", "sorted list"),
        ({"a/b": {"~": datetime(2026, 8, 5)}}, "/a~1b/~0", "timezone"),  # noqa: DTZ001
        ({"a": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "/a", "text"),
        ({"a": object()}, "/a", "Convert"),
        ({"a": 1j}, "/a", "Convert"),
        ({"a": {1: 2}}, "/a", "keys str"),
        ({"a": {None: 2}}, "/a", "keys str"),
        ({"a": {b"k": 2}}, "/a", "keys str"),
        (["\ud800"], "/0", "Decode"),
        ({"\udfff": 1}, "/\\udfff", "Decode"),
        ({"a": 10**5000}, "/a", "text"),
        ({"a": (item for item in "ab")}, "/a", "Convert"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_place(payload: object, pointer: str, advice: str) -> None:
    with pytest.raises(InvalidPayload, match=advice) as refusal:
        canonical_json(payload)
    assert refusal.value.facts["field"] == pointer


def test_models_with_sets_or_without_json_are_refused() -> None:
    class WithSet(BaseModel):
        tags: dict[str, list[set[str]]]

    class WithAnything(BaseModel):
        thing: object

    with pytest.raises(InvalidPayload, match="list") as refusal:
        canonical_json({"m": WithSet(tags={"a": [{"x"}]})})
    assert refusal.value.facts["field"] == "/m"
    with pytest.raises(InvalidPayload, match="cannot dump"):
        canonical_json(WithAnything(thing=object()))


def _nested(levels: int, *, objects: bool) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [True, False])
def test_nesting_is_limited_and_the_limit_is_explained(*, objects: bool) -> None:
    canonical_json(_nested(MAX_DEPTH, objects=objects))
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(InvalidPayload, match="deeper than 200 levels") as refusal:
            canonical_json(_nested(levels, objects=objects))
        assert len(str(refusal.value)) < 500


def test_a_payload_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload, match="contains itself"):
        canonical_json(loop)


def test_a_deep_caller_still_gets_a_clear_refusal() -> None:
    def deeper(left: int) -> bytes:
        return deeper(left - 1) if left else canonical_json(_nested(MAX_DEPTH, objects=True))

    with pytest.raises(InvalidPayload, match="deeper"):
        deeper(800)


def test_a_deep_model_is_refused() -> None:
    class Link(BaseModel):
        inner: object = None

    link = Link()
    for _ in range(10_000):
        link = Link.model_construct(inner=link)
    with pytest.raises(InvalidPayload):
        canonical_json(link)
