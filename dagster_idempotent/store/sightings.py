"""What look-ups show beside an answer: it settles nothing, and people are shown it."""

from collections.abc import Sequence
from enum import StrEnum

from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.submissions import Call
from dagster_idempotent.store.texts import storable

SQL = statements("sightings")


class Sighting(StrEnum):
    """What was seen; the schema says what each means."""

    CONFIRMED = "confirmed"
    CHARGED_AGAIN = "charged_again"
    POSSIBLE = "possible"
    ACKNOWLEDGED = "acknowledged"


def record(
    connection: Connection, call: Call, submission: int, kind: Sighting, found: Sequence[tuple[str, str]]
) -> None:
    """Keep what was seen, each with the provider's reference and a description; what is known stays as it is."""
    parameters = call.parameters() | {
        "submission": submission,
        "kind": str(kind),
        "references": [storable(reference) for reference, _ in found],
        "described": [storable(described) for _, described in found],
    }
    connection.execute(SQL["record_sightings"], parameters)


def of_task(connection: Connection, ref: TaskRef) -> Sequence[Row]:
    """List what needs a person's eyes for a task."""
    return connection.execute(SQL["sightings_of_task"], {"pipeline": ref.pipeline, "task_id": ref.task_id}).fetchall()


def charged_twice(connection: Connection, *, limit: int) -> Sequence[Row]:
    """List what was paid for more than once and nobody has seen to, the latest first."""
    return connection.execute(SQL["charged_twice"], {"limit": limit}).fetchall()
