"""Old records in the ledger: one statement imports one, whole or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements

SQL = statements("legacy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the ledger knows of a record or a task; `sequence` is the one that a new record would get."""

    verdict: str
    task_ids: Sequence[TaskId]
    sequence: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """The rows of one record: columns of `tasks` with its calls, artifacts and approvals, and what must not be JSON."""

    columns: Mapping[str, object]
    output: str | None
    bodies: Sequence[bytes]


def inspect_records(connection: Connection, tasks: Sequence[ImportedTask]) -> Sequence[Seen]:
    """Tell what importing each record would find, as if it were the only one; writes nothing."""
    inner = ("calls", "artifacts", "approvals")
    columns = [Jsonb({name: value for name, value in task.columns.items() if name not in inner}) for task in tasks]
    rows = connection.execute(SQL["inspect_records"], {"tasks": columns}).fetchall()
    return [Seen(verdict=row["verdict"], task_ids=row["task_ids"], sequence=row["sequence"]) for row in rows]


def import_record(connection: Connection, task: ImportedTask, *, actor: str, reason: str) -> Seen:
    """Import a record; issued again with the same import id it finds itself."""
    parameters = {
        "task": Jsonb(task.columns),
        "output": task.output,
        "bodies": list(task.bodies),
        "actor": actor,
        "reason": reason,
    }
    row = connection.execute(SQL["import_record"], parameters).fetchone() or {}
    return Seen(verdict=row["verdict"], task_ids=row["task_ids"])


def map_task(
    connection: Connection, pipeline: str, task_id: TaskId, identity: Identity | None, *, actor: str, reason: str
) -> Seen:
    """Give an imported task its identity, None: mark it unrelated."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "allocation_key": None if identity is None else identity.allocation_key,
        "run_id": None if identity is None else identity.run_id,
        "subject": None if identity is None else identity.subject,
        "scheduled_at": None if identity is None else identity.scheduled_at,
        "version": None if identity is None else identity.version,
        "actor": actor,
        "reason": reason,
    }
    row = connection.execute(SQL["map_task"], parameters).fetchone() or {}
    return Seen(verdict=row["verdict"], task_ids=row["task_ids"])


def begin_read_only(connection: Connection) -> None:
    """Make the transaction just begun one snapshot that cannot write."""
    connection.execute(SQL["read_only"])


def find_import(connection: Connection, pipeline: str, collection: str, record_sha256: str) -> Row | None:
    """Read everything that an imported record left in the ledger."""
    parameters = {"pipeline": pipeline, "collection": collection, "record_sha256": record_sha256}
    return connection.execute(SQL["find_import"], parameters).fetchone()


def import_totals(connection: Connection, pipeline: str, collection: str) -> Row:
    """Count what the imports of a collection left in the ledger."""
    parameters = {"pipeline": pipeline, "collection": collection}
    return connection.execute(SQL["import_totals"], parameters).fetchone() or {}
