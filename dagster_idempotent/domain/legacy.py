"""Old per-week records: their documented JSON form, and the verdicts about them.

A record is a directory such as `2026-W31/` (a second one of that week: `2026-W31-b/`) with `state.json` in the form of
`LegacyState`, optionally `history.json` (a list of earlier states, kept as it is), and the media files that the state
lists. What the form has no place for goes into `extra`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from dagster_idempotent.domain import json_text

STATE = "state.json"
HISTORY = "history.json"


class Verdict(StrEnum):
    """What becomes of one record; all but the first two refuse it."""

    IMPORTED = "imported"
    ALREADY_IMPORTED = "already_imported"
    UNREADABLE = "unreadable"
    INVALID = "invalid"
    WRONG_WEEK = "wrong_week"
    NAIVE_DATETIME = "naive_datetime"
    INVALID_IDENTITY = "invalid_identity"
    NO_IDENTITY = "no_identity"
    SCHEDULED_ELSEWHERE = "scheduled_elsewhere"
    ONE_KEY = "one_key"
    SAME_CONTENT = "same_content"
    UNKNOWN_CURRENCY = "unknown_currency"
    INVALID_AMOUNT = "invalid_amount"
    COST_MISMATCH = "cost_mismatch"
    UNCLEAR_COST = "unclear_cost"
    UNSAFE_PATH = "unsafe_path"
    MISSING_FILE = "missing_file"
    HASH_MISMATCH = "hash_mismatch"
    KEY_TAKEN = "key_taken"
    OTHER_CONTENT = "other_content"


ACCEPTED = frozenset({Verdict.IMPORTED, Verdict.ALREADY_IMPORTED})
REASONS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.IMPORTED: "it is a task now",
        Verdict.ALREADY_IMPORTED: "an earlier import made it a task",
        Verdict.UNREADABLE: "its state or history cannot be read as JSON",
        Verdict.INVALID: "its state does not have the documented form",
        Verdict.WRONG_WEEK: "its week does not exist, is not of the pipeline's kind, or is not the directory's",
        Verdict.NAIVE_DATETIME: "a time in it has no timezone, so it names different instants on different machines",
        Verdict.INVALID_IDENTITY: "its scheduled time, key, subject or version cannot be an identity",
        Verdict.NO_IDENTITY: "it has neither a scheduled time nor a key, and is not marked unrelated",
        Verdict.SCHEDULED_ELSEWHERE: "its scheduled time lies in another period than its week",
        Verdict.ONE_KEY: "two records have one key",
        Verdict.SAME_CONTENT: "two records have the same content and no key that tells them apart",
        Verdict.UNKNOWN_CURRENCY: "a cost has no currency, or one that nobody declared",
        Verdict.INVALID_AMOUNT: "a cost is negative or cannot be kept exactly",
        Verdict.COST_MISMATCH: "its total cost is not the sum of its calls",
        Verdict.UNCLEAR_COST: "a call has a cost, but was refused or has no known outcome",
        Verdict.UNSAFE_PATH: "a file is named by a path that leaves the record's directory",
        Verdict.MISSING_FILE: "a file that it lists is not there",
        Verdict.HASH_MISMATCH: "a file is not the one that was hashed",
        Verdict.KEY_TAKEN: "its key belongs to a task that was not imported",
        Verdict.OTHER_CONTENT: "it was imported before with other content",
    }
)


class WithoutIdentity(StrEnum):
    """What to do with a record that has neither a key nor the mark `unrelated`."""

    REFUSE = "refuse"
    # Allocation in its period stops until somebody maps the task.
    IMPORT = "import"
    # Somebody says that no schedule will ever ask for it again.
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a record is not imported; `reason` names what was found."""

    source: str
    verdict: Verdict
    reason: str


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds the character NUL, which the ledger cannot keep")
    return text


def _exact(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("write the amount as a text such as '1.20'; a float is not exact")  # noqa: TRY004 - pydantic's
    return value


def _written(value: object) -> object:
    if not isinstance(value, str | datetime):
        raise ValueError("write the time as a text such as '2026-08-03T09:00:00Z'")  # noqa: TRY004 - pydantic's
    return value


Text = Annotated[str, StringConstraints(min_length=1, max_length=4000), AfterValidator(_storable)]
Label = Annotated[str, StringConstraints(max_length=800), AfterValidator(_storable)]
CallName = Annotated[Text, StringConstraints(max_length=200)]
Instant = Annotated[AwareDatetime, BeforeValidator(_written)]
Amount = Annotated[Decimal, BeforeValidator(_exact)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LegacyCost(_Form):
    """An amount as it was booked; the currency is judged later, by name."""

    amount: Amount
    currency: str | None = None


class LegacyCall(_Form):
    """One paid request; `name` becomes its call key. `unknown`: sent, and nobody knows what became of it."""

    name: CallName
    provider: Text = "unknown"
    status: Literal["succeeded", "failed", "unknown"] = "succeeded"
    remote_reference: Text | None = None
    cost: LegacyCost | None = None
    sent_at: Instant | None = None
    finished_at: Instant | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class LegacyApproval(_Form):
    """Who approved, and when; `shown_sha256` is the hash of what was shown, where it was kept."""

    who: Text
    when: Instant
    gate: Literal["spend", "publish"] = "publish"
    reason: Text = "recorded in the old record"
    amount: LegacyCost | None = None
    shown_sha256: Sha256 | None = None


class LegacyFile(_Form):
    """A media file; `path` is relative to the record's directory."""

    path: Text
    sha256: Sha256
    size: int | None = Field(default=None, ge=0)
    media_type: Text = "application/octet-stream"


class LegacyState(_Form):
    """The form of `state.json`.

    At most one of `scheduled_at`, `key` and `unrelated` identifies the record. `failed` is an end without a result,
    `unfinished` one that somebody has to decide about. `output` is the accepted result; without it the whole state is.
    """

    week: Text
    subject: Label = ""
    version: Label = ""
    scheduled_at: Instant | None = None
    key: Text | None = None
    unrelated: bool = False
    status: Literal["completed", "failed", "unfinished"]
    completed_at: Instant | None = None
    calls: tuple[LegacyCall, ...] = ()
    cost: LegacyCost | None = None
    approvals: tuple[LegacyApproval, ...] = ()
    media: tuple[LegacyFile, ...] = ()
    output: Any = None
    extra: dict[str, Any] = Field(default_factory=dict)


class LegacyRecord(BaseModel):
    """One old record as an adapter read it; `from_state` builds one.

    `source` is its directory, relative to the folder of all records, and `name` tells several records of one directory
    apart. `documents` are kept byte for byte, `excerpts` are the texts of the calls, `output` that of the result.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")

    source: str
    name: str = ""
    state: LegacyState
    documents: dict[str, bytes]
    output: str
    excerpts: tuple[str, ...]

    @classmethod
    def from_json(cls, source: str, text: str, documents: Mapping[str, bytes], *, name: str = "") -> Self:
        """Read a record from the JSON text of its state; raises ValueError, of which pydantic's is one."""
        state = LegacyState.model_validate(json_text.parse(text))
        parts = json_text.members(text)
        return cls(
            source=source,
            name=name,
            state=state,
            documents=dict(documents),
            output=parts["output"] if state.output is not None else text,
            excerpts=json_text.elements(parts["calls"]) if "calls" in parts else (),
        )

    @classmethod
    def from_state(cls, source: str, state: LegacyState, documents: Mapping[str, bytes], *, name: str = "") -> Self:
        """Build a record of another shape: the state as the adapter understood it, and the documents it came from."""
        return cls.from_json(source, state.model_dump_json(exclude_none=True), documents, name=name)

    @property
    def label(self) -> str:
        """The record's name in reports."""
        return f"{self.source}#{self.name}" if self.name else self.source

    @property
    def sha256(self) -> str:
        """The hash of everything that the record holds: its documents, and its files by their hashes."""
        digest = sha256(b"dagster-idempotent/legacy-record/1\n")
        hashes = {f"document {name}": sha256(body).hexdigest() for name, body in self.documents.items()}
        hashes |= {f"file {file.path}": file.sha256 for file in self.state.media}
        for name, found in [("name", self.name), *sorted(hashes.items())]:
            for part in (name.encode(), found.encode()):
                digest.update(b"%d:%b," % (len(part), part))
        return digest.hexdigest()
