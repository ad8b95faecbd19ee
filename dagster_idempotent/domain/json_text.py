"""JSON read strictly, and the exact text of its parts: what is kept to the letter is never written anew."""

import json
import re
from decimal import Decimal
from typing import NoReturn, cast

MAX_DEPTH = 200

_SPACE = re.compile(r"[ \t\n\r]*")


def parse(text: str) -> object:
    """Return the value of a JSON text, numbers with a point as Decimal.

    Raises ValueError for what is no JSON, and for what readers would take differently: a name given twice in one
    object, NaN, nesting deeper than `MAX_DEPTH`.
    """
    try:
        value = cast("object", _DECODER.decode(text))
    except RecursionError:
        _refuse_depth()
    _check_depth(value)
    return value


def members(text: str) -> dict[str, str]:
    """Return the exact text of every member of the object that `text` is; `parse` has accepted it."""
    found: dict[str, str] = {}
    position = _after_space(text, _after_space(text, 0) + 1)
    while text[position] != "}":
        name, position = _DECODER.raw_decode(text, position)
        start = _after_space(text, _after_space(text, position) + 1)
        _, position = _DECODER.raw_decode(text, start)
        found[cast("str", name)] = text[start:position]
        position = _after_separator(text, position)
    return found


def elements(text: str) -> tuple[str, ...]:
    """Return the exact text of every element of the array that `text` is; `parse` has accepted it."""
    found: list[str] = []
    start = _after_space(text, _after_space(text, 0) + 1)
    while text[start] != "]":
        _, position = _DECODER.raw_decode(text, start)
        found.append(text[start:position])
        start = _after_separator(text, position)
    return tuple(found)


def _after_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()


def _after_separator(text: str, position: int) -> int:
    position = _after_space(text, position)
    return _after_space(text, position + 1) if text[position] == "," else position


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse_depth() -> NoReturn:
    raise ValueError(f"its values are nested deeper than {MAX_DEPTH} levels") from None


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for item in level for part in _parts(item)]
        if not level:
            return
    _refuse_depth()


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast("dict[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=Decimal, parse_constant=_refuse_constant)
