"""What the ledger knows of one task, in one look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine.resolutions import current_row
from dagster_idempotent.store import listing, sightings
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef

Row = Mapping[str, Any]
MOST_CALLS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A task with its calls' current submissions, their history, its messages and its latest decisions."""

    ref: TaskRef
    task: Row
    calls: Sequence[Row]
    messages: Sequence[Row]
    audit: Sequence[Row]
    history: Mapping[str, Sequence[Row]]
    sightings: Sequence[Row]

    @property
    def status(self) -> TaskStatus:
        """The status of the task."""
        return TaskStatus(self.task["status"])

    @property
    def now(self) -> datetime:
        """The database's clock at the look."""
        return self.task["now"]

    def in_state(self, *states: str) -> list[Row]:
        """Return the current submissions in one of these states."""
        return [row for row in self.calls if row["state"] in states]


def look(database: Database, ref: TaskRef) -> Facts:
    """Read everything that an explanation rests on."""
    task = database.run(lambda c: listing.task(c, ref)) or {}
    rows = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, limit=MOST_CALLS))
    history = {key: list(group) for key, group in groupby(rows, key=lambda row: str(row["call_key"]))}
    current = [row for row in (current_row(group) for group in history.values()) if row is not None]
    return Facts(
        ref=ref,
        task=task,
        calls=current,
        messages=database.run(
            lambda c: listing.messages(c, pipeline=ref.pipeline, task_id=ref.task_id, delivered=True)
        ),
        audit=database.run(lambda c: listing.audit(c, pipeline=ref.pipeline, task_id=ref.task_id, limit=20)),
        history=history,
        sightings=database.run(lambda c: sightings.of_task(c, ref)),
    )


def short_time(instant: datetime) -> str:
    """Write an instant for a sentence."""
    return instant.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
