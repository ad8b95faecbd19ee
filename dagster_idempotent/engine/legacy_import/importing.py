"""The import itself: every record is judged, the right ones become tasks one by one, the others stay as they are."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from dagster_idempotent.domain.legacy import ACCEPTED, REASONS, LegacyRecord, Refusal, Verdict
from dagster_idempotent.domain.legacy_plan import Plan
from dagster_idempotent.domain.period import TaskId, task_id_for
from dagster_idempotent.engine.legacy_import.choices import Import, rules_for
from dagster_idempotent.engine.legacy_import.columns import imported_task
from dagster_idempotent.engine.legacy_import.files import check_target, file_sizes, is_below, move
from dagster_idempotent.engine.legacy_import.spool import Spool
from dagster_idempotent.store import legacy
from dagster_idempotent.store.database import Database

BATCH = 100
BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict about one record; `note` says what else happened to it."""

    source: str
    verdict: Verdict
    reason: str
    task_id: TaskId | None = None
    note: str | None = None


@dataclass(slots=True, kw_only=True)
class Summary:
    """How many records got which verdict."""

    verdicts: Counter[Verdict] = field(default_factory=Counter[Verdict])

    @property
    def refused(self) -> int:
        """How many records need somebody."""
        return sum(count for verdict, count in self.verdicts.items() if verdict not in ACCEPTED)

    @property
    def records(self) -> int:
        """How many records there are."""
        return self.verdicts.total()


def import_records(
    database: Database, what: Import, *, dry_run: bool = False, tell: Callable[[Finding], object] = lambda _: None
) -> Summary:
    """Import every record that is beyond doubt; `tell` gets the verdict about each, in the order of import.

    A dry run writes nothing and tells the same. Killed at any point and started again, it ends in the same state:
    each record is one statement, known by its hash.
    """
    if what.move_to is not None and not dry_run:
        check_target(what.folder, what.move_to)
    rules = rules_for(database, what, register=not dry_run)
    summary = Summary()
    with closing(Spool(rules)) as spool:
        for item in _read(what):
            spool.add(item)
        importer = _Importer(database, what, spool, dry_run=dry_run)
        for batch in _batches(spool):
            for finding in importer.take(batch):
                summary.verdicts[finding.verdict] += 1
                tell(finding)
    return summary


class _Importer:
    """Brings plans into the ledger, in their order."""

    def __init__(self, database: Database, what: Import, spool: Spool, *, dry_run: bool) -> None:
        self._database = database
        self._what = what
        self._spool = spool
        self._dry_run = dry_run
        self._collection = what.collection_name
        # A reply to a commit may be lost: by this the statement, issued again, knows its own row.
        self._import_id = str(uuid4())
        # Of the period at hand, in a dry run: how many records would have been numbered.
        self._period = ("", 0)

    def take(self, batch: Sequence[Plan | Refusal]) -> Iterator[Finding]:
        """Bring a batch in; what the ledger knows already costs it one question for all."""
        plans = [item for item in batch if isinstance(item, Plan)]
        # Files are hashed only where that can change anything.
        tasks = [imported_task(plan, self._what.name, self._metadata(plan), sizes={}) for plan in plans]
        known = iter(self._database.run(lambda c: legacy.inspect_records(c, tasks)) if tasks else [])
        for item in batch:
            yield _refused(item) if isinstance(item, Refusal) else self._take(item, next(known))

    def _take(self, plan: Plan, seen: legacy.Seen) -> Finding:
        record = plan.record
        if seen.verdict == "new":
            sizes = file_sizes(self._what.folder, record)
            if isinstance(sizes, Refusal):
                return _refused(sizes)
            # It looks again, under the lock: a batch is only as fresh as its question.
            task = imported_task(plan, self._what.name, self._metadata(plan), sizes=sizes)
            seen = self._numbered(plan, seen) if self._dry_run else self._import(task)
        finding = self._finding(plan, seen)
        if finding.verdict in ACCEPTED and finding.task_id and self._what.move_to and not self._dry_run:
            return self._moved(finding, record.source, finding.task_id, self._what.move_to)
        return finding

    def _import(self, task: legacy.ImportedTask) -> legacy.Seen:
        what = self._what
        return self._database.run(lambda c: legacy.import_record(c, task, actor=what.actor, reason=what.reason))

    def _numbered(self, plan: Plan, seen: legacy.Seen) -> legacy.Seen:
        period, before = self._period
        before = before if period == plan.period_id else 0
        self._period = (plan.period_id, before + 1)
        task_id = task_id_for(plan.period_id, (seen.sequence or 0) + before)
        return legacy.Seen(verdict="imported", task_ids=[task_id])

    def _finding(self, plan: Plan, seen: legacy.Seen) -> Finding:
        verdict = Verdict(seen.verdict)
        source, names = plan.record.label, ", ".join(seen.task_ids)
        if verdict in ACCEPTED:
            reason = f"{REASONS[verdict]}: {names}"
            return Finding(source=source, verdict=verdict, reason=reason, task_id=seen.task_ids[0])
        key = "" if plan.identity is None else f" (key {plan.identity.allocation_key})"
        return Finding(source=source, verdict=verdict, reason=f"{REASONS[verdict]}: {names}{key}")

    def _moved(self, finding: Finding, source: str, task_id: TaskId, target: Path) -> Finding:
        note = "left in place: its directory holds several records"
        if self._spool.is_alone(source):
            note = move(self._what.folder, source, target, task_id)
        return Finding(
            source=finding.source, verdict=finding.verdict, reason=finding.reason, task_id=task_id, note=note
        )

    def _metadata(self, plan: Plan) -> dict[str, str | None]:
        return {
            "collection": self._collection,
            "source": f"{self._collection}/{plan.record.label}",
            "actor": self._what.actor,
            "import_id": self._import_id,
        }


def _batches(items: Iterable[Plan | Refusal]) -> Iterator[Sequence[Plan | Refusal]]:
    """Cut what is imported into batches, bounded in number and in bytes, so that memory stays flat."""
    batch: list[Plan | Refusal] = []
    size = 0
    for item in items:
        batch.append(item)
        size += sum(map(len, item.record.documents.values())) if isinstance(item, Plan) else 0
        if len(batch) >= BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(what: Import) -> Iterable[LegacyRecord | Refusal]:
    root = what.folder.resolve()
    for item in what.adapter(what.folder):
        if isinstance(item, LegacyRecord) and not is_below(root, item.source):
            reason = f"its directory {item.source!r} is not below the folder that is imported"
            yield Refusal(source=item.label, verdict=Verdict.UNSAFE_PATH, reason=reason)
        else:
            yield item


def _refused(refusal: Refusal) -> Finding:
    return Finding(
        source=refusal.source, verdict=refusal.verdict, reason=f"{REASONS[refusal.verdict]}: {refusal.reason}"
    )
