"""A submission: one send of a call, and what may follow it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum, auto
from hashlib import sha256
from types import MappingProxyType
from typing import NewType
from uuid import UUID

from dagster_idempotent.domain.fingerprint import FINGERPRINT_VERSION, Fingerprint, differing_fields
from dagster_idempotent.errors import ConfigurationError, PayloadMismatch, UnknownFingerprint

CallKey = NewType("CallKey", str)
IdempotencyKey = NewType("IdempotencyKey", str)

MAX_CALL_KEY = 200


class SubmissionState(StrEnum):
    """What is known about one send; `MOVES` are the only ways on."""

    INTENDED = "intended"
    IN_DOUBT = "in_doubt"
    ACCEPTED = "accepted"
    SUCCEEDED = "succeeded"
    NOT_SENT = "not_sent"
    REJECTED = "rejected"
    FAILED = "failed"
    ABANDONED = "abandoned"


S = SubmissionState
LIVE = frozenset({S.INTENDED, S.IN_DOUBT, S.ACCEPTED, S.SUCCEEDED})
VOID = frozenset(S) - LIVE
MOVES: Mapping[S, frozenset[S]] = MappingProxyType(
    {
        S.INTENDED: frozenset({S.NOT_SENT, S.REJECTED, S.ACCEPTED, S.SUCCEEDED, S.IN_DOUBT}),
        S.IN_DOUBT: frozenset({S.ACCEPTED, S.SUCCEEDED, S.NOT_SENT, S.REJECTED, S.ABANDONED}),
        S.ACCEPTED: frozenset({S.SUCCEEDED, S.FAILED}),
        S.SUCCEEDED: frozenset(),
        S.FAILED: frozenset(),
        # A paid answer is never dropped, however late it comes.
        S.NOT_SENT: frozenset({S.ACCEPTED, S.SUCCEEDED}),
        S.REJECTED: frozenset({S.ACCEPTED, S.SUCCEEDED}),
        S.ABANDONED: frozenset({S.ACCEPTED, S.SUCCEEDED}),
    }
)


class SettledBy(StrEnum):
    """Whose word ended a submission."""

    SENDER = "sender"
    LOOK_UP = "look_up"
    OPERATOR = "operator"
    POLL = "poll"


class LookUp(StrEnum):
    """What a provider can say about a request whose answer was lost."""

    EXACT = "exact"
    FUZZY = "fuzzy"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One row of the ledger; what it says of time is the database clock's word at the read."""

    submission: int
    state: SubmissionState
    sender: UUID
    sender_expires_in: timedelta
    settles_in: timedelta
    sends: int
    owner: str
    provider: str
    fingerprint: Fingerprint
    idempotency_key: IdempotencyKey
    key_no: int
    remote_ref: str | None
    response: Mapping[str, object] | None
    response_body: bytes | None
    response_sha256: str | None
    cost: Decimal | None
    currency: str | None
    late: bool
    settled_by: SettledBy | None
    error: str | None
    intended_at: datetime
    settled_at: datetime | None
    # An operator's "send again, it may charge twice": another submission may follow this abandoned one.
    resend_allowed: bool = False
    # Where an answer lies that is too large for its row.
    response_uri: str | None = None
    response_size: int | None = None
    # Succeeded after a resend, and nobody has looked yet whether the provider took it for two requests.
    unconfirmed: bool = False

    @property
    def expired(self) -> bool:
        """Whether the sender's lease was over when the row was read."""
        return self.sender_expires_in <= timedelta(0)

    @property
    def settle_delay_over(self) -> bool:
        """Whether a look-up begun after the read may say "not found": no request can land any more."""
        return self.settles_in <= timedelta(0)


def keys_of(submissions: Sequence[Submission]) -> Sequence[IdempotencyKey]:
    """Return every key under which a call may have been sent and has not ended, the newest first.

    A job that failed is known by its reference, and its key is never used again: found under it, that job would stand
    for a later one that has not been listed yet.
    """
    ended = {row.idempotency_key for row in submissions if row.state is S.FAILED}
    return [key for key in dict.fromkeys(row.idempotency_key for row in reversed(submissions)) if key not in ended]


class Step(StrEnum):
    """What the current submission of a call asks of whoever finds it."""

    SEND = auto()
    ADOPT_LATE_ANSWER = auto()
    REPLAY = auto()
    RESUME = auto()
    WAIT_FOR_SENDER = auto()
    MARK_IN_DOUBT = auto()
    RECONCILE = auto()
    STOP_ABANDONED = auto()


def current_of(submissions: Sequence[Submission]) -> Submission | None:
    """Return the live submission, else the last one, else None."""
    for row in submissions:
        if row.state in LIVE:
            return row
    return submissions[-1] if submissions else None


def next_step(submissions: Sequence[Submission], fingerprint: Fingerprint, *, call: str) -> Step:
    """Decide what a caller of `call` does, its submissions ordered by number.

    Raises PayloadMismatch or UnknownFingerprint before any answer about progress (R17).
    """
    current = current_of(submissions)
    if current is None:
        return Step.SEND
    if current.state in VOID and any(row.late for row in submissions):
        return Step.ADOPT_LATE_ANSWER  # a paid answer first; its payload is compared when it is the current one
    check_same_payload(current, fingerprint, call=call)
    match current.state:
        case S.SUCCEEDED:
            return Step.REPLAY
        case S.ACCEPTED:
            return Step.RESUME
        case S.INTENDED:
            return Step.MARK_IN_DOUBT if current.expired else Step.WAIT_FOR_SENDER
        case S.IN_DOUBT:
            return Step.RECONCILE
        case S.ABANDONED:
            return Step.SEND if current.resend_allowed else Step.STOP_ABANDONED
        case S.NOT_SENT | S.REJECTED | S.FAILED:
            return Step.SEND


def allows_changed_payload(row: Submission) -> bool:
    """Whether the next submission may carry another payload: the provider's final no, or the sender's own proof."""
    return row.state in (S.REJECTED, S.FAILED) or (row.state is S.NOT_SENT and row.settled_by is SettledBy.SENDER)


def check_same_payload(row: Submission, fingerprint: Fingerprint, *, call: str) -> None:
    """Raise PayloadMismatch naming the fields that differ, UnknownFingerprint for a version we cannot compare."""
    facts = {"call_key": call, "submission": row.submission}
    if row.fingerprint.version != FINGERPRINT_VERSION:
        raise UnknownFingerprint(
            f"Call {call!r} was fingerprinted by version {row.fingerprint.version}; this library knows "
            f"version {FINGERPRINT_VERSION} and cannot tell whether the request is the same. "
            "Run the version that wrote it, or a newer one.",
            **facts,
        )
    if row.fingerprint.digest == fingerprint.digest or allows_changed_payload(row):
        return
    fields = differing_fields(row.fingerprint, fingerprint)
    raise PayloadMismatch(
        f"Call {call!r} already names another request (submission {row.submission}, {row.state}); "
        f"these fields differ: {', '.join(fields) or 'the endpoint or the provider'}. "
        "One call key stands for one request: give the new request a call key of its own.",
        fields=fields,
        **facts,
    )


def next_key_no(submissions: Sequence[Submission], fingerprint: Fingerprint) -> int:
    """Return the number of the idempotency key of the next submission.

    A new key only after the provider's final no, or for a changed payload after the sender's own proof; after any
    other void submission the same key goes again, so that a provider that honours keys sees one request.
    """
    if not submissions:
        return 0
    last = submissions[-1]
    if last.state in (S.REJECTED, S.FAILED) or last.fingerprint.digest != fingerprint.digest:
        return last.key_no + 1
    return last.key_no


def idempotency_key(ledger_id: UUID, pipeline: str, run_id: str, call: str, key_no: int) -> IdempotencyKey:
    """Derive the key that the provider sees; 48 characters, the same for every process of this ledger."""
    parts = (str(ledger_id), pipeline, run_id, call, str(key_no))
    text = b"".join(len(part).to_bytes(4, "big") + part for part in (part.encode() for part in parts))
    return IdempotencyKey(f"di-{sha256(text).hexdigest()[:45]}")


def check_call_key(key: object) -> CallKey:
    """Return `key` as a call key; raises ConfigurationError where it is empty, long, or spelt like a further try."""
    if not isinstance(key, str) or not key.strip() or len(key) > MAX_CALL_KEY or not key.isprintable():
        raise ConfigurationError(
            f"The call key is {key!r}, expected 1 to {MAX_CALL_KEY} printable characters that name the request "
            'within its task, such as "summary" or "shot-03".',
            field="call",
        )
    if "#" in key:
        raise ConfigurationError(
            f'The call key {key!r} contains "#", which numbers further tries ("summary#2"). Choose another character.',
            field="call",
        )
    return CallKey(key)
