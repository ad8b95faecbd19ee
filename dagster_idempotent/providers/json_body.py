"""A request written as JSON: the same bytes for the same request, or the place of what JSON cannot carry."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import cast

from dagster_idempotent.errors import InvalidPayload

MAX_REQUEST = 32 * 1024 * 1024
_ADVICE = "Use strings, numbers, booleans, lists and objects with names of text; nothing was sent."


def json_body(request: Mapping[str, object], *, max_size: int = MAX_REQUEST) -> bytes:
    """Return the body, whatever the order of its keys; raises InvalidPayload naming the place of what does not fit."""
    try:
        body = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        place, found = next(_misfits(request), ("", str(error)))
        raise InvalidPayload(
            f"The request cannot be written as JSON: {place or 'the request'} is {found}. {_ADVICE}", field=place
        ) from error
    if len(body) > max_size:
        place = max(request, key=lambda name: len(json.dumps(request[name])))
        raise InvalidPayload(
            f"The request has {len(body)} bytes, expected at most {max_size}; most of them are in {place!r}. Upload it "
            "first and send a reference. Nothing was sent.",
            field=f"/{place}",
        )
    return body


def _misfits(value: object, place: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """List the places that JSON cannot carry, as pointers, each with what is there."""
    match value:
        case str() | bool() | int() | None:
            return
        case float():
            if not math.isfinite(value):
                yield place, f"{value}, which is no number in JSON"
        case _ if depth > 100:  # noqa: PLR2004 - deeper than any request, shallower than the interpreter
            yield place, "nested more than 100 deep, or in itself"
        case dict():
            for name, each in cast("dict[object, object]", value).items():
                if isinstance(name, str):
                    escaped = name.replace("~", "~0").replace("/", "~1")
                    yield from _misfits(each, f"{place}/{escaped}", depth + 1)
                else:
                    yield place, f"an object with a name of type {type(name).__name__}"
        case list() | tuple():
            for position, each in enumerate(cast("list[object]", value)):
                yield from _misfits(each, f"{place}/{position}", depth + 1)
        case _:
            yield place, f"of type {type(value).__name__}"
