"""What the ledger knows of one task, in one look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from dagster_idempotent.domain.task import OPEN, TaskStatus
from dagster_idempotent.engine.resolutions import current_row
from dagster_idempotent.store import listing, sightings
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef

Row = Mapping[str, Any]
MOST_CALLS = 100_000
# As the ledger calls a paid answer that came beside another one.
LATE = "late answer"


def shown_at_the_gate(task: Row) -> Literal["artifact", "output"] | None:
    """Name what the hash to approve stands for; None where nothing is collected, and the task itself is approved."""
    if task["gate"] == "publish":
        return "output"
    return None if task["shown_sha256"] == task["run_id"] else "artifact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A task with its calls' current submissions, their history, its messages and its latest decisions.

    `siblings` are tasks that were launched as this one might be, where it was never launched itself.
    """

    ref: TaskRef
    task: Row
    calls: Sequence[Row]
    messages: Sequence[Row]
    audit: Sequence[Row]
    history: Mapping[str, Sequence[Row]]
    budgets: Sequence[Row]
    sightings: Sequence[Row]
    siblings: Sequence[Row] = ()

    @property
    def status(self) -> TaskStatus:
        """The status of the task."""
        return TaskStatus(self.task["status"])

    @property
    def now(self) -> datetime:
        """The database's clock at the look."""
        return self.task["now"]

    @property
    def leased(self) -> bool:
        """Whether somebody's lease still runs; a lease without an end always does."""
        expires = self.task["lease_expires_at"]
        return self.status in OPEN and (expires is None or expires > self.now)

    @property
    def spent(self) -> bool:
        """Whether the next claim finds the task out of attempts, or not worth another."""
        return bool(self.task["final"]) or self.task["attempts"] >= self.task["max_attempts"]

    @property
    def waits_for_approval(self) -> bool:
        """Whether the spend gate is closed."""
        return self.task["gate"] == "spend" and not self.task["gate_open"]

    @property
    def given_up(self) -> frozenset[str]:
        """The channels whose message an operator gave up on."""
        last: dict[str, str] = {}
        for row in self.audit:
            if row["action"] == "resolve_message":
                last.setdefault(row["after"]["channel"], row["after"]["state"])
        return frozenset(channel for channel, state in last.items() if state == "dead")

    @property
    def charged_twice(self) -> list[Row]:
        """The double charges that nobody has seen to yet; `remote_ref` is LATE for a paid answer beside another."""
        late = [
            {**row, "kind": "charged_again", "remote_ref": LATE}
            for rows in self.history.values()
            for row in rows
            if row["late"]
        ]
        seen_to = {_charge(row) for row in self.sightings if row["kind"] == "acknowledged"}
        found = [*late, *(row for row in self.sightings if row["kind"] == "charged_again")]
        return [row for row in found if _charge(row) not in seen_to]

    def in_state(self, *states: str) -> list[Row]:
        """Return the current submissions in one of these states."""
        return [row for row in self.calls if row["state"] in states]


def _charge(row: Row) -> tuple[str, int, str]:
    return row["call_key"], row["submission"], row["remote_ref"]


def look(database: Database, ref: TaskRef) -> Facts:
    """Read everything that an explanation rests on."""
    task: Row = database.run(lambda c: listing.task(c, ref)) or {}
    launch: Mapping[str, Any] = task.get("launch") or {}
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
        budgets=_limits(database, ref, task) if task.get("held_for") == "budget" else [],
        sightings=database.run(lambda c: sightings.of_task(c, ref)),
        siblings=[] if launch.get("job") else database.run(lambda c: listing.launched_like(c, ref)),
    )


def _limits(database: Database, ref: TaskRef, task: Row) -> list[Row]:
    """Read the limits that bind a task."""
    scopes = (f"task:{ref.task_id}", f"period:{task['period_id']}", "pipeline")
    rows = [
        row
        for scope in scopes
        for row in database.run(lambda c, scope=scope: listing.budgets(c, pipeline=ref.pipeline, scope=scope))
    ]
    return [row for row in rows if row["limit"] is not None]


def short_time(instant: datetime) -> str:
    """Write an instant for a sentence."""
    return instant.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
