"""The one text that all equal payloads share, and a digest of each of its parts.

Equal means: would be the same JSON document on the wire. The order of keys does not matter, 1 and 1.0 are
one number, a tuple is a list, an enum is its value, a UUID and a date are their usual texts, a datetime is
its instant in UTC, a pydantic model is `model_dump(mode="json")` (pass the dict itself if you send aliases
or leave fields out). Texts are compared as they are sent: NFC and NFD spellings differ. Bytes, which JSON
cannot hold, stand as `{"$bytes": "sha256:…"}`; a key of the payload that starts with `$` gets one more.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import NoReturn, cast
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from dagster_idempotent.errors import InvalidPayload

MAX_DEPTH = 200
# Containers with more entries are named as a whole.
MAX_CHILDREN = 256
_SHORT = 16
_SHOWN = 200
# Above this, Python itself refuses to print an integer (4300 digits), so it could not be sent either.
_MAX_INTEGER_BITS = 14_000
_SURELY_SHORT = 10**15
_MAX_ZEROS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value of a payload: a short digest of its canonical form, and its parts where there are few."""

    digest: str
    children: Mapping[str, "Node"] | None = None


def canonical_json(payload: object) -> bytes:
    """Return the canonical JSON of a payload in UTF-8; raise InvalidPayload for what cannot be compared."""
    return canonical_form(payload)[0]


def canonical_form(payload: object) -> tuple[bytes, Node]:
    """Return the canonical JSON of a payload and the digests of its parts."""
    writer = _Writer()
    try:
        root = writer.write(payload)
    except RecursionError:
        writer.refuse_depth()
    return "".join(writer.parts).encode(), root


def json_pointer(keys: list[str]) -> str:
    """Return the RFC 6901 pointer of a path of keys."""
    return "".join(f"/{pointer_step(key)}" for key in keys)


def pointer_step(key: str) -> str:
    """Return a key as it stands in a pointer; what UTF-8 cannot hold is shown escaped."""
    shown = key.encode(errors="backslashreplace").decode()
    return shown.replace("~", "~0").replace("/", "~1")


class _Writer:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.path: list[str] = []

    def write(self, value: object) -> Node:
        if len(self.path) > MAX_DEPTH:
            self.refuse_depth()
        while isinstance(value, Enum):
            value = cast("object", value.value)
        if isinstance(value, BaseModel):
            value = self._dumped(value)
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[object, object]", value))
        if isinstance(value, list | tuple):
            return self._sequence(cast("list[object] | tuple[object, ...]", value))
        text = self._leaf(value)
        self.parts.append(text)
        return Node(digest=_short(text))

    def refuse(self, found: str, advice: str) -> NoReturn:
        pointer = json_pointer(self.path)
        place = pointer if len(pointer) <= _SHOWN else f"{pointer[:_SHOWN]}…"
        raise InvalidPayload(
            f"The payload holds {found} at {place or 'its top'}. Expected plain data that always reads "
            f"the same. {advice}.",
            field=pointer,
        )

    def refuse_depth(self) -> NoReturn:
        self.refuse(
            f"values nested deeper than {MAX_DEPTH} levels",
            "Flatten it, or break the cycle if it contains itself",
        )

    def _mapping(self, value: Mapping[object, object]) -> Node:
        named: dict[str, object] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.refuse(f"the key {key!r:.80}, a {type(key).__name__}, in the object", "Make its keys str")
            named[str.__str__(key)] = item
        children: dict[str, Node] = {}
        digest = hashlib.sha256(b"{")
        separator = "{"
        for key in sorted(named):
            self.path.append(key)
            text = self._text(f"${key}" if key.startswith("$") else key)
            self.parts += (separator, text, ":")
            node = self.write(named[key])
            self.path.pop()
            digest.update(f"{text}:{node.digest},".encode())
            if len(named) <= MAX_CHILDREN:
                children[key] = node
            separator = ","
        self.parts.append("}" if named else "{}")
        return Node(digest=digest.hexdigest()[:_SHORT], children=children or None)

    def _sequence(self, value: list[object] | tuple[object, ...]) -> Node:
        children: dict[str, Node] = {}
        digest = hashlib.sha256(b"[")
        separator = "["
        for index, item in enumerate(value):
            self.path.append(str(index))
            self.parts.append(separator)
            node = self.write(item)
            self.path.pop()
            digest.update(f"{node.digest},".encode())
            if len(value) <= MAX_CHILDREN:
                children[str(index)] = node
            separator = ","
        self.parts.append("]" if value else "[]")
        return Node(digest=digest.hexdigest()[:_SHORT], children=children or None)

    def _leaf(self, value: object) -> str:
        match value:
            case None | bool():
                text = json.dumps(value)
            case str():
                text = self._text(value)
            case int() | float() | Decimal():
                text = self._number(value)
            case datetime():
                text = self._text(self._instant(value))
            case date() | UUID():
                text = self._text(str(value))
            case bytes() | bytearray():
                text = f'{{"$bytes":"sha256:{hashlib.sha256(value).hexdigest()}"}}'
            case set() | frozenset():
                self.refuse("a set, whose order changes from process to process", "Use a sorted list")
            case _:
                self.refuse(f"a value of type {type(value).__name__}", "Convert it to JSON types yourself")
        return text

    def _text(self, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.refuse("a text with half a surrogate pair", "Decode it properly where it is read")
        return json.dumps(str.__str__(value), ensure_ascii=False)

    def _number(self, value: float | Decimal) -> str:
        if isinstance(value, int):
            if abs(value) < _SURELY_SHORT:
                return int.__repr__(value)
            if value.bit_length() > _MAX_INTEGER_BITS:
                self.refuse("an integer of more than 4200 digits", "Send it as a text")
            return number_text(Decimal(value))
        # The shortest text that reads back as the float is what JSON encoders send.
        number = Decimal(float.__repr__(value)) if isinstance(value, float) else value
        if not number.is_finite():
            self.refuse(f"the number {number}, which JSON does not have", "Use null or a text")
        return number_text(number)

    def _instant(self, value: datetime) -> str:
        if value.utcoffset() is None:
            self.refuse("a datetime without a timezone", "Give it one, such as tzinfo=datetime.UTC")
        try:
            return datetime.isoformat(value.astimezone(UTC)).replace("+00:00", "Z")
        except OverflowError:
            self.refuse("a datetime outside the calendar of UTC", "Send it as a text")

    def _dumped(self, model: BaseModel) -> object:
        try:
            dumped = cast("object", model.model_dump(mode="json", warnings="none"))
            plain = cast("object", model.model_dump(mode="python", warnings="none"))
        except (PydanticSerializationError, ValueError, RecursionError):
            self.refuse(f"a {type(model).__name__} that pydantic cannot dump as JSON", "Dump it yourself")
        if _holds_set(plain):
            found = f"a {type(model).__name__} with a set in it, whose order changes from process to process"
            self.refuse(found, "Declare the field as a list")
        return dumped


def number_text(number: Decimal) -> str:
    """Return the one JSON text of a finite decimal number, exactly: 1.0 is 1, 1.50 is 1.5, -0 is 0."""
    sign, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits))
    text = written.rstrip("0")
    if not text:
        return "0"
    zeros = int(exponent) + len(written) - len(text)
    if 0 <= zeros <= _MAX_ZEROS:
        text += "0" * zeros
    elif -_MAX_ZEROS <= zeros < 0:
        text = text.zfill(1 - zeros)
        text = f"{text[:zeros]}.{text[zeros:]}"
    else:
        text += f"e{zeros}"
    return f"-{text}" if sign else text


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_SHORT]


def _holds_set(value: object) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, set | frozenset):
            return True
        if isinstance(item, dict):
            waiting += cast("dict[object, object]", item).values()
        elif isinstance(item, list | tuple):
            waiting += cast("list[object] | tuple[object, ...]", item)
    return False
