"""How often stored answers were handed out again: numbers for people, which no rule reads."""

from collections.abc import Sequence

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.statements import statements

SQL = statements("replays")


def count(connection: Connection, pipeline: str, task_id: TaskId, replayed: Sequence[tuple[CallKey, int]]) -> None:
    """Add what was replayed, by call and submission; a call that stands twice was replayed twice."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "call_keys": [call_key for call_key, _ in replayed],
        "submissions": [submission for _, submission in replayed],
    }
    connection.execute(SQL["count_replays"], parameters)


def count_task(connection: Connection, pipeline: str, task_id: TaskId) -> None:
    """Add one replay of every answer of a task."""
    connection.execute(SQL["count_task_replayed"], {"pipeline": pipeline, "task_id": task_id})


def total(connection: Connection) -> int:
    """Return how often any answer was replayed."""
    row = connection.execute(SQL["total_replays"]).fetchone()
    return 0 if row is None else row["times"]
