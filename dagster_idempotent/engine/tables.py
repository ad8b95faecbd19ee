"""Tables written by task: an absolute write, so that doing it again is harmless (R33)."""

from collections.abc import Mapping, Sequence

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.store import task_rows
from dagster_idempotent.store.database import Connection


def replace_rows(
    connection: Connection,
    table: str,
    pipeline: str,
    task_id: TaskId,
    rows: Sequence[Mapping[str, object]],
) -> int:
    """Make `rows` all that `table` has of a task, in one transaction; return how many they are.

    The table has the columns `pipeline` and `task_id`, which are filled in, and the columns that the rows name, the
    same in each. Works on any PostgreSQL connection; inside a transaction (an SqlChannel, an effect) it joins it.
    """
    key = {"pipeline": pipeline, "task_id": task_id}
    whole = [{**row, **key} for row in rows]
    if any(set(row) != set(whole[0]) for row in whole):
        raise ConfigurationError(
            f"The rows of task {task_id} for table {table!r} do not all have the same columns. Nothing was written. "
            "Give every row the same names, None for what it does not have.",
            field="rows",
        )
    path = table.split(".")
    with connection.transaction():
        task_rows.lock(connection, path, key)
        task_rows.delete(connection, path, key)
        if whole:
            task_rows.insert(connection, path, whole)
    return len(whole)
