"""Whether two requests are the same, and if not, where they differ, without keeping either (R17).

`Fingerprint.fields` holds a short digest for every part of the payload, by JSON pointer (`""` is the whole),
and for `provider` and `operation`. It is bounded: the payload is opened level by level, and a part that
would bring the number of entries above `MAX_FIELDS`, or whose pointers are long, keeps one entry for all that
is in it; a difference inside is then named by that entry. Names of fields are kept as they are, values are
not; a short digest does not hide a value that is easy to guess.
"""

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dagster_idempotent.domain.canonical import Node, canonical_form, canonical_json, pointer_step
from dagster_idempotent.errors import InvalidPayload, UnknownFingerprint

__all__ = [
    "FINGERPRINT_VERSION",
    "MAX_FIELDS",
    "Fingerprint",
    "canonical_json",
    "differing_fields",
    "fingerprint",
]

FINGERPRINT_VERSION = 1
MAX_FIELDS = 256
_MAX_POINTER = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What is kept of a request to recognise it; equal requests have equal digests within one version."""

    version: int
    digest: str
    fields: dict[str, str] = field(hash=False)


def fingerprint(provider: str, operation: str, payload: object) -> Fingerprint:
    """Return the fingerprint of a request; raise InvalidPayload for what cannot be compared."""
    form, root = canonical_form(payload)
    digest = hashlib.sha256(b"dagster-idempotent/fingerprint/%d\n" % FINGERPRINT_VERSION)
    fields: dict[str, str] = {}
    for name, text in (("provider", provider), ("operation", operation)):
        data = _name(text, name)
        digest.update(b"%d:%b," % (len(data), data))
        fields[name] = hashlib.sha256(data).hexdigest()[: len(root.digest)]
    digest.update(form)
    return Fingerprint(
        version=FINGERPRINT_VERSION,
        digest=digest.hexdigest(),
        fields=_opened(root, fields | {"": root.digest}),
    )


def differing_fields(a: Fingerprint, b: Fingerprint) -> tuple[str, ...]:
    """Return the sorted pointers that were added, removed or changed; empty when the requests are the same.

    Raises UnknownFingerprint when either was written under rules that this version does not know.
    """
    for side in (a, b):
        if side.version != FINGERPRINT_VERSION:
            raise UnknownFingerprint(
                f"A fingerprint has version {side.version}. Expected {FINGERPRINT_VERSION}, the only one "
                "that this version of the library can compare. Run the version that wrote it.",
                version=side.version,
            )
    if a.digest == b.digest:
        return ()
    found = {name for name in ("provider", "operation") if a.fields.get(name) != b.fields.get(name)}
    if a.fields.get("") != b.fields.get(""):
        found |= _differing(_Tree(a.fields), _Tree(b.fields))
    # Short digests may agree by chance; the long one has the last word.
    return tuple(sorted(found or {""}))


class _Tree:
    """The listed parts of a fingerprint, found by the pointer of what they are in."""

    def __init__(self, fields: dict[str, str]) -> None:
        self.fields = fields
        self.children: dict[str, set[str]] = {}
        for pointer in fields:
            parent, slash, _ = pointer.rpartition("/")
            if slash:
                self.children.setdefault(parent, set()).add(pointer)


def _differing(a: _Tree, b: _Tree) -> set[str]:
    found: set[str] = set()
    waiting = [""]
    while waiting:
        pointer = waiting.pop()
        ours, theirs = a.children.get(pointer, set[str]()), b.children.get(pointer, set[str]())
        if not ours or not theirs:
            # One side is a value, empty, or was not opened: nothing below can be set against anything.
            found.add(pointer)
            continue
        changed = {child for child in ours & theirs if a.fields[child] != b.fields[child]}
        waiting += changed
        found |= ours ^ theirs
        if not changed and ours == theirs:
            found.add(pointer)  # a list became an object, or the other way round
    return found


def _opened(root: Node, listed: dict[str, str]) -> dict[str, str]:
    waiting = deque([("", root)])
    while waiting:
        pointer, node = waiting.popleft()
        parts = {f"{pointer}/{pointer_step(key)}": part for key, part in (node.children or {}).items()}
        if len(listed) + len(parts) <= MAX_FIELDS and _all_short(parts):
            listed |= {step: part.digest for step, part in parts.items()}
            waiting.extend(parts.items())
    return listed


def _all_short(pointers: Iterable[str]) -> bool:
    return all(len(pointer) <= _MAX_POINTER for pointer in pointers)


def _name(text: object, name: str) -> bytes:
    if isinstance(text, str) and text and text.isprintable():
        return text.encode()
    raise InvalidPayload(
        f"{name} is {ascii(text)[:200]}. Expected a printable text, such as 'openai'. Name the {name} by a constant.",
        field=name,
    )
