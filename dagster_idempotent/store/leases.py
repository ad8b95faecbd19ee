"""The lease: claim, renewal, failure, hold, completion; every write states owner and token (R23, R26-R30)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import HeldFor, Lease, Owner, Task
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import task_of
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.texts import storable

SQL = statements("leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a claim found; only claimed, reentered and dead wrote something."""

    verdict: str
    retry_after: timedelta | None
    task: Task | None


def claim(
    connection: Connection,
    pipeline: str,
    task_id: TaskId,
    owner: Owner,
    *,
    finished: Lease | None = None,
    backoff: bool = False,
) -> Claim:
    """Claim or re-enter a task in one statement, on the database's clock.

    `finished` is the lease of an owner whose Dagster run is known to be over, compared and swapped. `backoff` makes
    the claim wait for `next_attempt_at`; a person's launch does not.
    """
    row = connection.execute(
        SQL["claim"],
        {
            "pipeline": pipeline,
            "task_id": task_id,
            "owner": owner,
            "finished_owner": None if finished is None else finished.owner,
            "finished_token": None if finished is None else finished.token,
            "backoff": backoff,
        },
    ).fetchone()
    if row is None or row["task_id"] is None:
        return Claim(verdict="missing", retry_after=None, task=None)
    return Claim(verdict=row["verdict"], retry_after=row["retry_after"], task=task_of(row))


def renew(connection: Connection, lease: Lease) -> datetime | None:
    """Extend the lease; return its new expiry, or None where it is lost."""
    row = connection.execute(SQL["renew"], _of(lease)).fetchone()
    return None if row is None else row["lease_expires_at"]


def fail(connection: Connection, lease: Lease, *, error: str, delay: timedelta, final: bool) -> bool:
    """Store an error and when the next attempt is due; return whether the lease still held."""
    parameters = _of(lease) | {"error": storable(error), "delay": delay, "final": final}
    return connection.execute(SQL["fail"], parameters).fetchone() is not None


def hold(connection: Connection, lease: Lease, *, held_for: HeldFor, error: str) -> bool:
    """Put the task on hold; return whether the lease still held."""
    parameters = _of(lease) | {"held_for": held_for, "error": storable(error)}
    row = connection.execute(SQL["hold"], parameters).fetchone()
    return row is not None and row["verdict"] == "held"


def wait(connection: Connection, lease: Lease, *, delay: timedelta, error: str) -> bool:
    """Let go of a task that waits for a remote job; return whether the lease still held."""
    parameters = _of(lease) | {"delay": delay, "error": storable(error)}
    row = connection.execute(SQL["wait"], parameters).fetchone()
    return row is not None and row["verdict"] == "waiting"


def release_held(connection: Connection, pipeline: str, task_id: TaskId) -> bool:
    """Set a held task free where nothing is left to wait for; return whether it was."""
    row = connection.execute(SQL["release_held"], {"pipeline": pipeline, "task_id": task_id}).fetchone()
    return row is not None and row["verdict"] == "released"


def sweep(connection: Connection, pipeline: str, task_id: TaskId, *, finished: Lease | None = None) -> str:
    """Decide a task that is out of attempts; return dead, held or untouched."""
    row = connection.execute(
        SQL["sweep"],
        {
            "pipeline": pipeline,
            "task_id": task_id,
            "finished_owner": None if finished is None else finished.owner,
            "finished_token": None if finished is None else finished.token,
        },
    ).fetchone()
    return "untouched" if row is None else row["verdict"]


def complete(
    connection: Connection,
    lease: Lease,
    *,
    output: str,
    sha256: str,
    completed_by: str,
    channels: Mapping[str, bool],
) -> Task | None:
    """Commit the accepted output and its outbox rows; None where the lease is lost or the task has ended.

    `channels` maps each channel to whether it deduplicates.
    """
    row = connection.execute(
        SQL["complete"],
        _of(lease)
        | {
            "output": output,
            "sha256": sha256,
            "completed_by": completed_by,
            "channels": list(channels.keys()),
            "deduplicates": list(channels.values()),
        },
    ).fetchone()
    return None if row is None else task_of(row)


def _of(lease: Lease) -> dict[str, object]:
    return {"pipeline": lease.pipeline, "task_id": lease.task_id, "owner": lease.owner, "token": lease.token}
