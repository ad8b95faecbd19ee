"""Sets old records against what their import left in the ledger; reads only, and prints the same every time (R35)."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from dagster_idempotent.domain.legacy import LegacyRecord, Refusal, WithoutIdentity
from dagster_idempotent.domain.legacy_plan import Plan, Rules, examine
from dagster_idempotent.domain.submission import SubmissionState
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine.legacy_import.choices import Import, rules_for
from dagster_idempotent.engine.legacy_import.columns import PREFIX
from dagster_idempotent.engine.legacy_import.files import file_sizes
from dagster_idempotent.store import legacy
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.rows import Row

Tell = Callable[[str], object]


@dataclass(slots=True, kw_only=True)
class Totals:
    """What one side holds."""

    tasks: int = 0
    files: int = 0
    references: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict[str, Decimal])


@dataclass(slots=True, kw_only=True)
class Check:
    """Both sides, counted over the records that were imported; `not_imported` are those that are no tasks."""

    records: Totals = field(default_factory=Totals)
    ledger: Totals = field(default_factory=Totals)
    not_imported: int = 0
    differences: int = 0

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.differences == 0


def check_import(database: Database, what: Import, *, tell: Tell = lambda _: None) -> Check:
    """Recompute every hash and total of the records of `what`, and of those it moved, and compare with the ledger.

    `tell` gets a line for each difference. The transaction is one read-only snapshot.
    """
    rules = replace(rules_for(database, what, register=False), without_identity=WithoutIdentity.IMPORT)
    check = Check()
    with database.transaction() as connection:
        legacy.begin_read_only(connection)
        checker = _Checker(connection, what, rules, check, tell)
        for folder, item in _records(what):
            checker.take(folder, item)
        check.ledger = _totals(legacy.import_totals(connection, what.name, what.collection_name))
    checker.compare_totals()
    return check


class _Checker:
    """One snapshot of the ledger, and what was counted so far."""

    def __init__(self, connection: Connection, what: Import, rules: Rules, check: Check, tell: Tell) -> None:
        self._connection = connection
        self._what = what
        self._rules = rules
        self._check = check
        self._tell = tell
        # A copy of a record is no second task.
        self._seen: set[bytes] = set()

    def take(self, folder: Path, item: LegacyRecord | Refusal) -> None:
        """Compare one record with its task, if it has one."""
        row = None if isinstance(item, Refusal) else self._find(item)
        if isinstance(item, Refusal) or row is None:
            self._check.not_imported += 1
            return
        if (digest := bytes.fromhex(item.sha256)) in self._seen:
            return
        self._seen.add(digest)
        plan = examine(item, self._rules)
        if isinstance(plan, Refusal):
            self.differs(f"{item.label}: it was imported as {row['task_id']}, but now {plan.reason}")
            return
        _count(self._check.records, plan)
        files = file_sizes(folder, item)
        if isinstance(files, Refusal):
            self.differs(f"{item.label}: {files.reason}")
        for what, expected, found in _pairs(plan, row):
            if expected != found:
                self.differs(f"{item.label}: {what} of {row['task_id']} is {found}, the record says {expected}")

    def differs(self, line: str) -> None:
        """Count and tell a difference."""
        self._check.differences += 1
        self._tell(line)

    def compare_totals(self) -> None:
        """Set the sums of both sides against each other."""
        records, ledger = self._check.records, self._check.ledger
        for name in ("tasks", "files", "references", "costs"):
            if getattr(records, name) != getattr(ledger, name):
                found, expected = getattr(ledger, name), getattr(records, name)
                self.differs(f"all records: {name} of the ledger is {found}, of the records {expected}")

    def _find(self, record: LegacyRecord) -> Row | None:
        name, collection = self._what.name, self._what.collection_name
        return legacy.find_import(self._connection, name, collection, record.sha256)


def _records(what: Import) -> Iterable[tuple[Path, LegacyRecord | Refusal]]:
    for folder in (what.folder, what.move_to):
        if folder is not None and folder.is_dir():
            for item in what.adapter(folder):
                yield folder, item


def _count(totals: Totals, plan: Plan) -> None:
    totals.tasks += 1
    totals.files += len(plan.record.state.media)
    totals.references += len(plan.references)
    for currency, amount in plan.costs.items():
        totals.costs[currency] = totals.costs.get(currency, Decimal(0)) + amount


def _pairs(plan: Plan, row: Row) -> Iterable[tuple[str, object, object]]:
    """Name everything that has to be equal: what it is, what the record says, what the ledger has."""
    record, completed = plan.record, plan.status is TaskStatus.COMPLETED
    hashes = {f"{PREFIX}{name}": _hash(body) for name, body in record.documents.items()}
    hashes |= {f"{PREFIX}{file.path}": file.sha256 for file in record.state.media}
    yield "artifacts", hashes, row["artifacts"]
    yield "costs", plan.costs, _amounts(row["costs"])
    yield "counters", _amounts(row["booked"]), _amounts(row["counters"])
    yield "references", plan.references, row["refs"]
    answers = [_hash(call.excerpt.encode()) for call in plan.calls if call.state is SubmissionState.SUCCEEDED]
    yield "answers", answers, row["answers"]
    approvals = sorted((each.who, each.gate, each.when) for each in record.state.approvals)
    kept = [(actor, gate, datetime.fromisoformat(when)) for actor, gate, when in row["approvals"]]
    yield "approvals", approvals, sorted(each for each in kept if each in approvals)
    if completed:
        yield "completed_at", plan.completed_at, row["completed_at"]
        yield "output_sha256", _hash(record.output.encode()), row["output_sha256"]
        yield "output", row["output_sha256"], row["output_now"] or row["output_sha256"]


def _totals(row: Row) -> Totals:
    return Totals(tasks=row["tasks"], files=row["files"], references=row["references"], costs=_amounts(row["costs"]))


def _amounts(texts: Mapping[str, str]) -> dict[str, Decimal]:
    return {currency: Decimal(amount) for currency, amount in sorted(texts.items())}


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
