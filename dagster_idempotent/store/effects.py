"""Effects: the record that something happened to the user's own tables, committed with it (R33)."""

from dataclasses import dataclass
from uuid import UUID

from psycopg.types.json import Jsonb

from dagster_idempotent.domain.fingerprint import Fingerprint
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Lease
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements

SQL = statements("effects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect of a task; `attempt` is random and names one run of its transaction."""

    pipeline: str
    task_id: TaskId
    name: str
    attempt: UUID
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An effect that happened: its result as JSON text (None: pruned), and by which run of its transaction."""

    attempt: UUID
    result: str | None
    fingerprint: Fingerprint


def get(connection: Connection, effect: Effect) -> Recorded | None:
    """Read an effect that happened."""
    row = connection.execute(SQL["get_effect"], _of(effect)).fetchone()
    return None if row is None else _recorded(row)


def begin(connection: Connection, effect: Effect) -> bool:
    """Insert the record, waiting for a rival; return False where the effect has happened."""
    parameters = _of(effect) | {
        "fingerprint": effect.fingerprint.digest,
        "fingerprint_version": effect.fingerprint.version,
        "fingerprint_fields": Jsonb(effect.fingerprint.fields),
    }
    return connection.execute(SQL["begin_effect"], parameters).fetchone() is not None


def finish(connection: Connection, effect: Effect, lease: Lease | None, *, result: str) -> bool:
    """Write the result; return False where the lease is lost: the transaction must then be undone."""
    parameters = _of(effect) | {
        "result": result,
        "owner": None if lease is None else lease.owner,
        "token": None if lease is None else lease.token,
    }
    return connection.execute(SQL["finish_effect"], parameters).fetchone() is not None


def _of(effect: Effect) -> dict[str, object]:
    return {
        "pipeline": effect.pipeline,
        "task_id": effect.task_id,
        "effect": effect.name,
        "attempt": effect.attempt,
    }


def _recorded(row: Row) -> Recorded:
    return Recorded(
        attempt=UUID(str(row["attempt"])),
        result=row["result"],
        fingerprint=Fingerprint(
            version=row["fingerprint_version"], digest=row["fingerprint"], fields=row["fingerprint_fields"]
        ),
    )
