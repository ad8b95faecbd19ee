import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.fingerprint import (
    FINGERPRINT_VERSION,
    MAX_FIELDS,
    Fingerprint,
    canonical_json,
    differing_fields,
    fingerprint,
)
from dagster_idempotent.errors import InvalidPayload, UnknownFingerprint

keys = st.text("ab/~$0", max_size=3)
leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)


def _of(payload: object) -> Fingerprint:
    return fingerprint("openai", "responses", payload)


@given(first=documents, second=documents)
def test_requests_differ_exactly_when_their_forms_differ(first: object, second: object) -> None:
    same = canonical_json(first) == canonical_json(second)
    assert (_of(first).digest == _of(second).digest) == same
    assert (differing_fields(_of(first), _of(second)) == ()) == same


@given(first=documents, second=documents)
def test_the_two_sides_name_the_same_fields(first: object, second: object) -> None:
    found = differing_fields(_of(first), _of(second))
    assert found == differing_fields(_of(second), _of(first))
    assert list(found) == sorted(set(found))


@given(base=st.dictionaries(keys, documents, min_size=1, max_size=4), data=st.data())
def test_one_changed_field_is_named(base: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(base)))
    changed = base | {key: "something else"}
    pointer = "/" + key.replace("~", "~0").replace("/", "~1")
    assert differing_fields(_of(base), _of(changed)) == (pointer,)


@given(base=st.dictionaries(keys, documents, min_size=2, max_size=4), data=st.data())
def test_one_added_field_is_named(base: dict[str, object], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(base)))
    fewer = {name: value for name, value in base.items() if name != key}
    pointer = "/" + key.replace("~", "~0").replace("/", "~1")
    assert differing_fields(_of(fewer), _of(base)) == (pointer,)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": 1}, {"a": 2}, ("/a",)),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ("/a/b/1",)),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, ("/a/b/1",)),
        ({"a": {"b": 1}}, {"a": 5}, ("/a",)),
        ({"a": {"b": 1}}, {}, ("",)),
        ({"a": {"b": 1}, "c": 1}, {"c": 2}, ("/a", "/c")),
        ({"a": ["x"]}, {"a": {"0": "x"}}, ("/a",)),
        ({"a": []}, {"a": {}}, ("/a",)),
        ({"a": []}, {"a": [1]}, ("/a",)),
        (1, 2, ("",)),
    ],
)
def test_the_deepest_common_place_of_a_difference_is_named(
    first: object, second: object, expected: tuple[str, ...]
) -> None:
    assert differing_fields(_of(first), _of(second)) == expected


def test_provider_and_operation_are_part_of_a_request() -> None:
    base = fingerprint("openai", "responses", {"a": 1})
    assert differing_fields(base, fingerprint("anthropic", "responses", {"a": 1})) == ("provider",)
    assert differing_fields(base, fingerprint("openai", "images", {"a": 1})) == ("operation",)
    assert fingerprint("a", "bc", 1).digest != fingerprint("ab", "c", 1).digest


@pytest.mark.parametrize("name", ["", "\ud800", "a\n", None])
def test_provider_and_operation_are_printable_texts(name: str) -> None:
    with pytest.raises(InvalidPayload) as refusal:
        fingerprint(name, "o", 1)
    assert refusal.value.facts["field"] == "provider"
    with pytest.raises(InvalidPayload) as refusal:
        fingerprint("p", name, 1)
    assert refusal.value.facts["field"] == "operation"


def test_fingerprints_never_change_within_a_version() -> None:
    payload = {"model": "m", "input": ["a", 1.5, None, True], "blob": b"x"}
    assert FINGERPRINT_VERSION == 1
    assert _of(payload).digest == "789e9269d54a6509018cc715f39f9d4ddbd3badfd067ec88aeb755f363b78ee7"


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_never_compared(version: int) -> None:
    known = _of(1)
    unknown = replace(known, version=version)
    for pair in ((known, unknown), (unknown, known)):
        with pytest.raises(UnknownFingerprint) as refusal:
            differing_fields(*pair)
        assert refusal.value.facts["version"] == version


@given(width=st.integers(0, 400), depth=st.integers(0, 3), other=st.integers(0, 400))
def test_a_fingerprint_is_bounded(width: int, depth: int, other: int) -> None:
    payload: object = list(range(width))
    for level in range(depth):
        payload = {"inner": payload, "others": list(range(other)), "level": level}
    fields = _of(payload).fields
    assert len(fields) <= MAX_FIELDS
    assert all(len(digest) == 16 for digest in fields.values())


def test_a_large_part_is_named_as_a_whole_beside_its_small_neighbours() -> None:
    base = {"model": "m", "messages": list(range(10_000)), "options": {"t": 1}}
    changed = base | {"messages": [*range(9_999), "x"], "options": {"t": 2}}
    assert differing_fields(_of(base), _of(changed)) == ("/messages", "/options/t")


def test_a_part_that_only_one_side_opens_is_not_named_when_it_is_equal() -> None:
    small = {"a": list(range(200)), "b": list(range(40))}
    large = {"a": list(range(230)), "b": list(range(40))}  # leaves no room to open /b
    assert "/b" in _of(large).fields
    assert "/b/0" not in _of(large).fields
    assert differing_fields(_of(small), _of(large)) == tuple(sorted(f"/a/{index}" for index in range(200, 230)))


def test_long_names_are_not_kept() -> None:
    secretive = {"k" * 1_000_000: {"b": 1}}
    fields = _of(secretive).fields
    assert sum(map(len, fields)) < 100
    assert differing_fields(_of(secretive), _of({"k" * 1_000_000: {"b": 2}})) == ("",)


def test_no_value_of_the_payload_is_kept() -> None:
    kept = repr(_of({"prompt": "a very private text", "list": ["another private text"]}))
    assert "private" not in kept


def test_fingerprints_can_be_put_in_sets() -> None:
    assert len({_of({"a": 1}), _of({"a": 1.0}), _of({"a": 2})}) == 2


def test_a_large_text_is_read_once_from_end_to_end() -> None:
    text = "x" * 50_000_000
    form = canonical_json({"a": text})
    assert hashlib.sha256(form).digest() == hashlib.sha256(b'{"a":"' + text.encode() + b'"}').digest()
    assert differing_fields(_of({"a": text}), _of({"a": text + "y"})) == ("/a",)
