"""Retention: payloads go after their time, keys, hashes, costs and decisions stay for ever (R9)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.listing import check_pipeline
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.store import decisions, listing
from dagster_idempotent.store.database import Database

MAX_BATCH = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What one pipeline gave up; `skipped` tasks wait for a call, a message or another process."""

    pipeline: str
    tasks: int
    bodies: int
    bytes: int
    skipped: int


def prune(
    database: Database,
    *,
    older_than: timedelta,
    pipeline: str | None = None,
    batch: int = 500,
    who: Who,
    dry_run: bool = False,
    progress: Callable[[Pruned], None] = lambda _: None,
) -> list[Pruned]:
    """Drop the bodies of completed and discarded tasks that ended before `older_than` ago.

    Each batch is a transaction of its own, so that it may be stopped at any time; it never waits for a task that
    somebody holds, and never blocks allocation. A task with an unsettled call or an undelivered message is skipped.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise ConfigurationError(f"batch is {batch}, expected 1 to {MAX_BATCH}.", field="batch")
    if older_than < timedelta(0):
        raise ConfigurationError(f"older_than is {older_than}, expected a positive duration.", field="older_than")
    if pipeline is not None:
        check_pipeline(database, pipeline)
    names = [pipeline] if pipeline else [row["pipeline"] for row in database.run(listing.pipelines)]
    before = database.run(listing.clock) - older_than
    return [
        _prune(database, name, before=before, batch=batch, who=who, dry_run=dry_run, progress=progress)
        for name in names
    ]


def _prune(
    database: Database,
    pipeline: str,
    *,
    before: datetime,
    batch: int,
    who: Who,
    dry_run: bool,
    progress: Callable[[Pruned], None],
) -> Pruned:
    total = Pruned(pipeline=pipeline, tasks=0, bodies=0, bytes=0, skipped=0)
    after: tuple[datetime, str] | None = None
    while True:
        with database.transaction() as connection:
            row = decisions.prune(connection, pipeline, before=before, after=after, limit=batch, who=who)
            if dry_run:
                raise psycopg.Rollback
        if not row["seen"]:
            return total
        total = Pruned(
            pipeline=pipeline,
            tasks=total.tasks + row["tasks"],
            bodies=total.bodies + row["bodies"],
            bytes=total.bytes + row["bytes"],
            skipped=total.skipped + row["seen"] - row["tasks"],
        )
        progress(total)
        after = (row["last_at"], row["last_task"])
