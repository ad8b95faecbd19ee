"""The identity of one scheduled invocation, and the two stable names made of it (R3, R4, R5).

An allocation key is a readable text of parts joined by `/`:

    weekly_digest/2026-08-03T00:00:00Z
    weekly_digest/2026-08-03T00:00:00Z/subject=acme/version=2
    weekly_digest/key:order-77/subject=acme

First the pipeline, then the scheduled time in UTC (microseconds only where there are some) or `key:` and
the explicit key, then subject and version where they are not empty. ASCII characters other than letters,
digits and `-._~:@+,=` are written `%XX`, so a key can be pasted into a shell unquoted; other letters stay.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType, Self

from dagster_idempotent.domain.period import in_utc
from dagster_idempotent.errors import InvalidIdentity

AllocationKey = NewType("AllocationKey", str)
RunId = NewType("RunId", str)

# With four bytes a character in every part, an allocation key still fits an entry of a PostgreSQL index
# (2704 bytes) beside its pipeline.
MAX_TEXT = 200
# Canonical composition joins at most four characters into one.
_MAX_RAW_TEXT = 4 * MAX_TEXT

_PIPELINE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# Cn: what a later Unicode version assigns, it may also normalise, and keys would differ between interpreters.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
# Shown as nothing at all, though Unicode counts them as letters or marks.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_TO_ESCAPE = re.compile(r"[^A-Za-z0-9\-._~:@+,=\u0080-\U0010ffff]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?Z")
_EXPLICIT = "key:"
_RUN_ID_DOMAIN = b"dagster-idempotent/run-id/1\n"


class TimeSource(StrEnum):
    """Where a scheduled time comes from; one version of a pipeline has one source, since their times differ.

    The tick of Monday in W33 is the time of an unpartitioned job, and the start of W32 that of a partitioned one: the
    same work under two keys would be paid twice.
    """

    PARTITION = "partition"
    TICK = "tick"


def validate_pipeline_name(name: object) -> str:
    """Return the name if a pipeline may be called so, else raise InvalidIdentity."""
    if not isinstance(name, str) or _PIPELINE_NAME.fullmatch(name) is None:
        raise InvalidIdentity(
            f"pipeline is {_shown(name)}. Expected a letter or underscore, then up to 99 letters, digits or "
            "underscores, ASCII only, such as weekly_digest. Rename the pipeline before its first task.",
            field="pipeline",
        )
    return str.__str__(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which invocation of a pipeline this is: the same for every retry, another for every other tick.

    Exactly one of `scheduled_at` and `explicit_key` is given. The time is kept in UTC, so one instant written
    in two zones is one identity. Texts are kept in Unicode form NFC; case counts.
    """

    pipeline: str
    subject: str = ""
    scheduled_at: datetime | None = None
    explicit_key: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        _set(self, "pipeline", validate_pipeline_name(self.pipeline))
        for field in ("subject", "explicit_key", "version"):
            _set(self, field, _checked_text(getattr(self, field), field))
        if self.scheduled_at is not None:
            _set(self, "scheduled_at", in_utc(self.scheduled_at, field="scheduled_at"))
        if (self.scheduled_at is None) == (not self.explicit_key):
            found = "neither" if self.scheduled_at is None else "both"
            raise InvalidIdentity(
                f"Of scheduled_at and explicit_key, {found} is given. Expected exactly one. "
                "Pass the scheduled time of the tick or the start of the partition; "
                "only work without either takes a key.",
                field="scheduled_at",
            )

    @property
    def allocation_key(self) -> AllocationKey:
        """The readable name; its form is described at the top of this module."""
        parts = [self.pipeline, self._occasion]
        if self.subject:
            parts.append(f"subject={_escape(self.subject)}")
        if self.version:
            parts.append(f"version={_escape(self.version)}")
        return AllocationKey("/".join(parts))

    @property
    def run_id(self) -> RunId:
        """SHA-256, in hexadecimal, over the parts, each behind its length in bytes."""
        digest = hashlib.sha256(_RUN_ID_DOMAIN)
        for part in (self.pipeline, self.subject, self._occasion, self.version):
            data = part.encode()
            digest.update(b"%d:%b," % (len(data), data))
        return RunId(digest.hexdigest())

    @classmethod
    def from_allocation_key(cls, key: str) -> Self:
        """Return the identity that writes this key; refuse every other text."""
        pipeline, *rest = key.split("/")
        if not rest:
            raise _not_a_key(key)
        occasion, *labelled = rest
        texts = {"subject": "", "version": ""}
        for part in labelled:
            label, _, value = part.partition("=")
            if label not in texts:
                raise _not_a_key(key)
            texts[label] = _unescape(value)
        if occasion.startswith(_EXPLICIT):
            explicit_key, scheduled_at = _unescape(occasion.removeprefix(_EXPLICIT)), None
        else:
            explicit_key, scheduled_at = "", _parse_time(occasion, key)
        identity = cls(pipeline=pipeline, scheduled_at=scheduled_at, explicit_key=explicit_key, **texts)
        # Another spelling of the same parts is not the key: it would be looked up and never be found.
        if identity.allocation_key != key:
            raise _not_a_key(key)
        return identity

    @property
    def _occasion(self) -> str:
        if self.scheduled_at is None:
            return _EXPLICIT + _escape(self.explicit_key)
        return self.scheduled_at.isoformat().replace("+00:00", "Z")


def _set(identity: Identity, field: str, value: object) -> None:
    object.__setattr__(identity, field, value)


def _checked_text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise _refused(field, value, "a text", f"Convert the {type(value).__name__} to str yourself")
    if len(value) > _MAX_RAW_TEXT:
        raise _refused(field, value, f"at most {MAX_TEXT} characters", "Use a shorter name or a hash of it")
    # str.__str__: a member of a string enum would print its own way.
    text = unicodedata.normalize("NFC", str.__str__(value))
    if len(text) > MAX_TEXT:
        raise _refused(field, value, f"at most {MAX_TEXT} characters", "Use a shorter name or a hash of it")
    if text.strip() != text:
        raise _refused(field, value, "no whitespace at its ends", "Strip it where it is read")
    for character in text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES or _INVISIBLE.match(character):
            found = f"U+{ord(character):04X}, which nobody can see or which has no fixed meaning"
            raise _refused(field, value, f"visible characters, but there is {found}", "Remove it")
        if character.isspace() and character != " ":
            found = f"U+{ord(character):04X}"
            raise _refused(field, value, f"no whitespace but plain spaces, but there is {found}", "Replace it")
    return text


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _parse_time(text: str, key: str) -> datetime:
    if _TIME.fullmatch(text) is None:
        raise _not_a_key(key)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _not_a_key(key) from error


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _refused(field: str, value: object, expected: str, advice: str) -> InvalidIdentity:
    return InvalidIdentity(f"{field} is {_shown(value)}. Expected {expected}. {advice}.", field=field)


def _not_a_key(key: str) -> InvalidIdentity:
    return InvalidIdentity(
        f"allocation_key is {_shown(key)}. Expected a key as this library writes it, such as "
        "weekly_digest/2026-08-03T00:00:00Z/subject=acme. Copy it from the run's tags.",
        field="allocation_key",
    )
