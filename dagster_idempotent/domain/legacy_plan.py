"""What an old record becomes in the ledger, decided from the record alone; no guess is ever made."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import assert_never
from zoneinfo import ZoneInfo

from dagster_idempotent.domain.currencies import ISO_4217
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.legacy import (
    LegacyApproval,
    LegacyCall,
    LegacyCost,
    LegacyRecord,
    LegacyState,
    Refusal,
    Verdict,
    WithoutIdentity,
)
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.period import PeriodId, PeriodKind, in_utc, period_id_for, period_kind_of
from dagster_idempotent.domain.submission import SubmissionState
from dagster_idempotent.domain.task import HeldFor, TaskStatus
from dagster_idempotent.errors import ConfigurationError, InvalidIdentity

# The call that carries the cost of a record whose calls name none.
TOTAL = "legacy-total"
# A path has no step that is one of these: absolute, doubled, or up.
_STEPS = frozenset({"", ".", ".."})
_DRIVE = re.compile(r"[A-Za-z]:")
_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides about a record beside the record: the pipeline's numbering, and what the operator chose."""

    pipeline: str
    kind: PeriodKind
    timezone: ZoneInfo
    currencies: frozenset[str] = ISO_4217
    without_identity: WithoutIdentity = WithoutIdentity.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A submission as it will stand in the ledger."""

    call_key: str
    submission: int
    state: SubmissionState
    provider: str
    remote_ref: str | None
    cost: Money | None
    sent_at: datetime | None
    finished_at: datetime | None
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A task as it will stand in the ledger, but for its sequence."""

    record: LegacyRecord
    record_sha256: str
    period_id: PeriodId
    identity: Identity | None
    unrelated: bool
    status: TaskStatus
    held_for: HeldFor | None
    completed_at: datetime | None
    calls: Sequence[PlannedCall]

    @property
    def order(self) -> tuple[str, datetime, str, str]:
        """Where the record stands among the others: by period, then completion, then name."""
        return (self.period_id, self.completed_at or _LATEST, self.record.source, self.record.name)

    @property
    def costs(self) -> dict[str, Decimal]:
        """The totals by currency."""
        totals: dict[str, Money] = {}
        for money in (call.cost for call in self.calls if call.cost is not None):
            totals[money.currency] = totals.get(money.currency, Money.zero(money.currency)) + money
        return {currency: total.amount for currency, total in sorted(totals.items())}

    @property
    def references(self) -> list[str]:
        """The remote references, in the order of the calls' names."""
        return [call.remote_ref for call in self.calls if call.remote_ref is not None]


class _RefusedError(Exception):
    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


def examine(record: LegacyRecord, rules: Rules) -> Plan | Refusal:
    """Decide what a record becomes, or why it is refused; its files and the ledger are not asked."""
    try:
        return _plan(record, rules)
    except _RefusedError as refused:
        return Refusal(source=record.label, verdict=refused.verdict, reason=refused.reason)


def _plan(record: LegacyRecord, rules: Rules) -> Plan:
    state = record.state
    period_id = _period(state.week, rules)
    identity = _identity(state, rules)
    if identity is not None and identity.scheduled_at is not None:
        _check_period(identity.scheduled_at, period_id, rules)
    _check_approvals(state.approvals, rules)
    for file in state.media:
        _check_path(file.path)
    if len({file.path for file in state.media}) < len(state.media):
        raise _RefusedError(Verdict.INVALID, "one file is listed twice in media")
    calls = _calls(record, rules)
    status, held_for = _status(state, calls)
    return Plan(
        record=record,
        record_sha256=record.sha256,
        period_id=period_id,
        identity=identity,
        unrelated=identity is None and (state.unrelated or rules.without_identity is WithoutIdentity.UNRELATED),
        status=status,
        held_for=held_for,
        completed_at=None if state.completed_at is None else _utc(state.completed_at, "completed_at"),
        calls=calls,
    )


def _period(week: str, rules: Rules) -> PeriodId:
    try:
        kind = period_kind_of(week)
    except InvalidIdentity as error:
        raise _RefusedError(Verdict.WRONG_WEEK, error.message) from error
    if kind is not rules.kind:
        found = f"week is {week!r}, a period of kind {kind}; pipeline {rules.pipeline} numbers by {rules.kind}"
        raise _RefusedError(Verdict.WRONG_WEEK, found)
    return PeriodId(week)


def _identity(state: LegacyState, rules: Rules) -> Identity | None:
    given = [name for name in ("scheduled_at", "key", "unrelated") if getattr(state, name)]
    if len(given) > 1:
        raise _RefusedError(Verdict.INVALID_IDENTITY, f"it gives {' and '.join(given)}, expected at most one")
    if given in ([], ["unrelated"]):
        if not given and rules.without_identity is WithoutIdentity.REFUSE:
            raise _RefusedError(Verdict.NO_IDENTITY, f"week {state.week}, subject {state.subject!r}")
        return None
    try:
        return Identity(
            pipeline=rules.pipeline,
            subject=state.subject,
            scheduled_at=state.scheduled_at,
            explicit_key=state.key or "",
            version=state.version,
        )
    except InvalidIdentity as error:
        raise _RefusedError(Verdict.INVALID_IDENTITY, error.message) from error


def _check_period(scheduled_at: datetime, period_id: PeriodId, rules: Rules) -> None:
    scheduled = period_id_for(scheduled_at, rules.kind, rules.timezone)
    if scheduled != period_id:
        raise _RefusedError(
            Verdict.SCHEDULED_ELSEWHERE,
            f"scheduled_at {scheduled_at.isoformat()} lies in {scheduled} of {rules.timezone}, its week is {period_id}",
        )


def _check_approvals(approvals: Sequence[LegacyApproval], rules: Rules) -> None:
    for approval in approvals:
        _utc(approval.when, "when")
        if approval.amount is not None:
            _money(approval.amount, rules)


def _check_path(path: str) -> None:
    if "\\" in path or _DRIVE.match(path) or not _STEPS.isdisjoint(path.split("/")):
        raise _RefusedError(Verdict.UNSAFE_PATH, f"the path {path!r} is not plain and below the record's directory")


def _calls(record: LegacyRecord, rules: Rules) -> list[PlannedCall]:
    planned: list[PlannedCall] = []
    ended: dict[str, int] = {}
    open_names: set[str] = set()
    for call, excerpt in zip_longest(record.state.calls, record.excerpts, fillvalue=""):
        if not isinstance(call, LegacyCall):
            raise _RefusedError(Verdict.INVALID, "the record holds more excerpts than calls")
        if call.name in open_names:
            found = f"call {call.name!r} stands again after one that is not failed; give each request a name of its own"
            raise _RefusedError(Verdict.INVALID, found)
        if call.status != "failed":
            open_names.add(call.name)
        ended[call.name] = ended.get(call.name, 0) + 1
        planned.append(_call(call, ended[call.name], excerpt, rules))
    return sorted(_with_total(record, planned, rules), key=lambda call: (call.call_key, call.submission))


def _call(call: LegacyCall, submission: int, excerpt: str, rules: Rules) -> PlannedCall:
    match call.status:
        case "succeeded":
            state = SubmissionState.SUCCEEDED
        case "unknown":
            state = SubmissionState.IN_DOUBT
        case "failed":
            # A remote job of its own, or the provider's no.
            state = SubmissionState.REJECTED if call.remote_reference is None else SubmissionState.FAILED
        case _:
            assert_never(call.status)
    return PlannedCall(
        call_key=call.name,
        submission=submission,
        state=state,
        provider=call.provider,
        remote_ref=call.remote_reference,
        cost=_cost(call, state, rules),
        sent_at=None if call.sent_at is None else _utc(call.sent_at, "sent_at"),
        finished_at=None if call.finished_at is None else _utc(call.finished_at, "finished_at"),
        excerpt=excerpt,
    )


def _cost(call: LegacyCall, state: SubmissionState, rules: Rules) -> Money | None:
    cost = None if call.cost is None else _money(call.cost, rules)
    if cost is None or state in (SubmissionState.SUCCEEDED, SubmissionState.FAILED):
        return cost
    if cost.amount:
        found = f"call {call.name!r} cost {cost}, but is {call.status}"
        told = "" if state is SubmissionState.IN_DOUBT else " and has no remote reference of what was paid for"
        raise _RefusedError(Verdict.UNCLEAR_COST, found + told)
    return None


def _with_total(record: LegacyRecord, calls: list[PlannedCall], rules: Rules) -> list[PlannedCall]:
    if record.state.cost is None:
        return calls
    total = _money(record.state.cost, rules)
    costs = [call.cost for call in calls if call.cost is not None]
    if not costs:
        return [*calls, _total(record, total)]
    currencies = {cost.currency for cost in costs}
    summed = sum(costs[1:], costs[0]) if len(currencies) == 1 else None
    if summed != total:
        found = str(summed) if summed is not None else f"amounts in {' and '.join(sorted(currencies))}"
        raise _RefusedError(Verdict.COST_MISMATCH, f"its cost is {total}, its calls come to {found}")
    return calls


def _total(record: LegacyRecord, total: Money) -> PlannedCall:
    return PlannedCall(
        call_key=TOTAL,
        submission=1,
        state=SubmissionState.SUCCEEDED,
        provider="unknown",
        remote_ref=None,
        cost=total,
        sent_at=None,
        finished_at=None,
        excerpt=f'{{"record":"{record.sha256}"}}',
    )


def _money(cost: LegacyCost, rules: Rules) -> Money:
    if cost.currency is None:
        raise _RefusedError(Verdict.UNKNOWN_CURRENCY, f"the amount {cost.amount} has no currency")
    if cost.currency not in rules.currencies:
        found = f"currency is {cost.currency!r}, no code of ISO 4217 and not declared for this import"
        raise _RefusedError(Verdict.UNKNOWN_CURRENCY, found)
    try:
        return Money(amount=cost.amount, currency=cost.currency).non_negative(field="cost")
    except ConfigurationError as error:
        raise _RefusedError(Verdict.INVALID_AMOUNT, error.message) from error


def _status(state: LegacyState, calls: Sequence[PlannedCall]) -> tuple[TaskStatus, HeldFor | None]:
    match state.status:
        case "completed":
            if state.completed_at is None:
                raise _RefusedError(Verdict.INVALID, "status is completed, but there is no completed_at")
            return TaskStatus.COMPLETED, None
        case "failed" | "unfinished":
            # In doubt wins: what may have been paid is never put away.
            if any(call.state is SubmissionState.IN_DOUBT for call in calls):
                return TaskStatus.HELD, HeldFor.IN_DOUBT
            return TaskStatus.DISCARDED if state.status == "failed" else TaskStatus.DEAD, None
        case _:
            assert_never(state.status)


def _utc(instant: datetime, field: str) -> datetime:
    try:
        return in_utc(instant, field=field)
    except InvalidIdentity as error:
        raise _RefusedError(Verdict.INVALID, error.message) from error
