"""`verify --against-provider`: the ledger set against the records of those who were paid; both are only read.

A provider is asked key by key, so it answers for what the ledger knows, and for the calls that an unfinished task would
make: their keys follow from the task. A charge for a task that the ledger has lost altogether shows when that task is
planned again, before its first call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import assert_never

from dagster_idempotent.domain.submission import IdempotencyKey, LookUp, idempotency_key
from dagster_idempotent.engine.verify import Finding
from dagster_idempotent.errors import CredentialMissing
from dagster_idempotent.providers.outcome import (
    Finding as Answer,
    LookUpFailed,
    NotFound,
    PossibleMatches,
    Rejected,
    Succeeded,
    Unfinished,
)
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import provider_records as records
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.rows import Row

_PAID = ("accepted", "succeeded")
_EVERY = 100


@dataclass(slots=True, kw_only=True)
class Comparison:
    """What a provider and the ledger say differently; `unanswered` counts the look-ups that brought nothing."""

    asked: int = 0
    unanswered: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    notices: list[Finding] = field(default_factory=list[Finding])


def compare(
    database: Database,
    providers: Sequence[AnyProvider],
    *,
    pipeline: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Ask every provider that has an exact look-up about every key; references and costs have to be the same."""
    result = Comparison()
    by_name = {each.name: each for each in providers if each.lookup is LookUp.EXACT}
    for row in database.run(lambda c: records.sends_by_provider(c, pipeline)):
        if row["provider"] not in by_name:
            given = any(each.name == row["provider"] for each in providers)
            why = "it has no exact look-up" if given else "no adapter for it was given"
            found = f"{row['sends']} send(s) of {row['calls']} call(s) were not compared: {why}"
            result.notices.append(Finding(rule="not_compared", subject=f"provider {row['provider']}", found=found))
    if not by_name:
        return result
    rows = records.sends(database, list(by_name), pipeline)
    for (_, _, _, key), group in groupby(rows, key=_send):
        sends = list(group)
        _compare(result, sends, _ask(result, by_name, sends[0]["provider"], key, progress))
    for row in records.calls_never_made(database, list(by_name), pipeline):
        key = idempotency_key(row["ledger_id"], row["pipeline"], row["identity"], row["call_key"], 0)
        answer = _ask(result, by_name, row["provider"], key, progress)
        if isinstance(answer, Succeeded | Unfinished):
            found = f"the provider has it as {answer.remote_ref} under {key}; the ledger has no record of this call"
            result.findings.append(Finding(rule="unrecorded_charges", subject=_subject(row), found=found))
    return result


def _send(row: Row) -> tuple[str, str, str, str]:
    return row["pipeline"], row["task_id"], row["call_key"], row["idempotency_key"]


def _subject(row: Row) -> str:
    return f"{row['pipeline']}/{row['task_id']} call {row['call_key']}"


def _ask(
    result: Comparison,
    by_name: Mapping[str, AnyProvider],
    name: str,
    key: str,
    progress: Callable[[str], None],
) -> Answer:
    result.asked += 1
    if result.asked % _EVERY == 0:
        progress(f"{result.asked} look-ups")
    try:
        return by_name[name].find([IdempotencyKey(key)])
    except CredentialMissing as error:
        return LookUpFailed(reason=error.message)


def _compare(result: Comparison, sends: Sequence[Row], answer: Answer) -> None:
    """Set what a provider says of one key against the sends under it."""
    # The one that the provider's record is about: the paid one, else the last.
    row = next((send for send in sends if send["state"] in _PAID or send["late"]), sends[-1])
    paid = row["state"] in _PAID or row["late"]
    subject = f"{_subject(row)} submission {row['submission']}"
    match answer:
        case Succeeded() | Unfinished() if paid:
            result.findings += [
                Finding(rule=rule, subject=subject, found=found) for rule, found in _differences(row, answer)
            ]
        case Succeeded() | Unfinished():
            found = f"{row['state']} in the ledger; the provider has it as {answer.remote_ref}"
            if row["state"] in ("not_sent", "rejected"):
                result.findings.append(Finding(rule="unrecorded_charges", subject=subject, found=found))
            else:
                result.notices.append(Finding(rule="unsettled", subject=subject, found=found))
        case Rejected():
            if paid:
                found = f"{row['state']} in the ledger; the provider says that it refused it: {answer.reason}"
                result.findings.append(Finding(rule="unknown_references", subject=subject, found=found))
        case NotFound(complete=True):
            if paid:
                found = f"{row['state']} in the ledger as {row['remote_ref']}; the provider does not know its key"
                result.findings.append(Finding(rule="unknown_references", subject=subject, found=found))
        case NotFound() | PossibleMatches() | LookUpFailed():
            result.unanswered += 1
            reason = answer.reason if isinstance(answer, LookUpFailed) else "the provider's search was not complete"
            if isinstance(answer, PossibleMatches):
                reason = "the provider's search is fuzzy: it shows possible matches and proves nothing"
            result.notices.append(Finding(rule="not_compared", subject=subject, found=reason))
        case _:
            assert_never(answer)


def _differences(row: Row, answer: Succeeded | Unfinished) -> Iterator[tuple[str, str]]:
    ours, theirs = row["remote_ref"], answer.remote_ref
    if theirs is not None and ours != theirs:
        yield "references", f"{ours} in the ledger, {theirs} at the provider"
    if isinstance(answer, Unfinished):
        if row["state"] == "succeeded":
            yield "references", "succeeded in the ledger, unfinished at the provider"
        return
    cost = answer.cost
    if cost is None or row["cost"] is None or row["cost_basis"] == "estimated":
        return
    if (row["cost"], row["currency"]) != (cost.amount, cost.currency):
        yield "costs", f"{row['cost']:f} {row['currency']} in the ledger, {cost} at the provider"
