"""The hook for the user's own alerts: what newly waits for a person, told once."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import cast

import dagster as dg

from dagster_idempotent.definitions.operator_links import runs_link
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine.task_facts import short_time
from dagster_idempotent.store import listing, sightings
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef

# What one tick looks at of each kind; a cursor that remembers as many still is a few kilobytes.
SEEN = 500


class AttentionKind(StrEnum):
    """Why something waits for a person."""

    IN_DOUBT = "in_doubt"
    HELD = "held"
    DEAD = "dead"
    OVERDUE = "overdue"
    MESSAGE = "message"
    CHARGED_TWICE = "charged_twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One thing that waits for a person; `link` shows its runs, absolute where the ledger knows `webserver_url`."""

    kind: AttentionKind
    pipeline: str
    task_id: str
    call_key: str
    text: str
    link: str
    channel: str = ""

    @property
    def name(self) -> str:
        """Names the thing for as long as it waits."""
        of = f"{self.pipeline}/{self.task_id}"
        return f"{self.kind} {of} {self.call_key or self.channel}".rstrip()


Alert = Callable[[Sequence[Attention]], None]


def attentions(database: Database, webserver: str | None) -> Sequence[Attention]:
    """List what waits for a person: what is in doubt, held, dead, late, undelivered, or was charged twice."""
    doubtful = database.run(lambda c: listing.calls(c, state="in_doubt", limit=SEEN))
    held = database.run(lambda c: listing.tasks(c, status="held", limit=SEEN))
    dead = database.run(lambda c: listing.tasks(c, status="dead", limit=SEEN))
    overdue = database.run(lambda c: listing.overdue_jobs(c, limit=SEEN))
    twice = database.run(lambda c: sightings.charged_twice(c, limit=SEEN))
    stuck = [
        row
        for state in ("in_doubt", "dead")
        for row in database.run(lambda c, state=state: listing.messages(c, state=state, limit=SEEN))
    ]
    found = [
        *((AttentionKind.IN_DOUBT, row, f"call {row['call_key']!r} is in doubt") for row in doubtful),
        *(
            (AttentionKind.HELD, row, f"it is held for its {row['held_for']}")
            for row in held
            if row["held_for"] != "in_doubt"
        ),
        *((AttentionKind.DEAD, row, f"it is a dead letter ({row['error'] or 'no error kept'})") for row in dead),
        *((AttentionKind.OVERDUE, row, _late(row)) for row in overdue),
        *((AttentionKind.MESSAGE, row, _undelivered(row)) for row in stuck),
        *((AttentionKind.CHARGED_TWICE, row, f"call {row['call_key']!r}: {row['found']}") for row in twice),
    ]
    return [_about(kind, row, said, webserver) for kind, row, said in found]


def _late(row: listing.Row) -> str:
    by = short_time(row["expected_by"])
    return f"{row['provider']} accepted call {row['call_key']!r} as {row['remote_ref']}, and its result was due by {by}"


def _undelivered(row: listing.Row) -> str:
    state = "in doubt" if row["state"] == "in_doubt" else "not delivered, and its attempts are spent"
    return f"the message for {row['channel']} is {state} ({row['error'] or 'no error kept'})"


def _about(kind: AttentionKind, row: listing.Row, said: str, webserver: str | None) -> Attention:
    ref = TaskRef(pipeline=row["pipeline"], task_id=TaskId(row["task_id"]))
    return Attention(
        kind=kind,
        pipeline=ref.pipeline,
        task_id=ref.task_id,
        call_key=row.get("call_key", ""),
        text=f"Task {ref}: {said}. `dagster-idempotent explain {ref}` says what is safe next.",
        link=runs_link(ref, webserver),
        channel=row.get("channel", ""),
    )


def alert_sensor(alert: Alert, *, minimum_interval_seconds: int = 60) -> dg.SensorDefinition:
    """Make the sensor that calls `alert` with what newly waits for a person; it makes no runs.

    At most one call a tick, with everything that is new in it, so a bad night is one message. Each thing is told once
    while it waits, and again when it comes back after it was resolved. Where `alert` raises, the tick fails in the UI
    and the next one tells the same things; a daemon killed just after a call may tell them twice.
    """

    @dg.sensor(
        name="idempotency_alerts",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"ledger"},
        description="Call your alert with what newly waits for a person: what is in doubt, held, dead, overdue, "
        "undelivered or charged twice.",
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        ledger: LedgerResource = context.resources.ledger
        waiting = {_short(each.name): each for each in attentions(ledger.database(), ledger.webserver_url)}
        told = _read(context.cursor)
        new = [each for name, each in waiting.items() if name not in told]
        if new:
            alert(new)
        said = f"{len(new)} new, {len(waiting)} waiting for a person."
        # Of more than one tick looks at, some are out of sight for a while: they are not new when they come back.
        kept = told if len(waiting) >= SEEN else set[str]()
        return dg.SensorResult(skip_reason=said, cursor=json.dumps(sorted(kept | waiting.keys())))

    return sense


def _read(cursor: str | None) -> set[str]:
    """Read what has been told; of a text that a person typed nothing has been told, and everything is told again."""
    try:
        found: object = json.loads(cursor or "[]")
    except ValueError:
        found = None
    return {str(each) for each in cast("list[object]", found)} if isinstance(found, list) else set()


def _short(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]
