"""Raw artifacts: stored once, before any model call (R21)."""

from hashlib import sha256

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Raw
from dagster_idempotent.errors import PayloadPruned
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.statements import statements

SQL = statements("artifacts")


def store(connection: Connection, pipeline: str, task_id: TaskId, *, name: str, body: bytes, media_type: str) -> bool:
    """Store an artifact unless there is one of that name; return whether these bytes were the first."""
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "name": name,
        "sha256": sha256(body).hexdigest(),
        "size": len(body),
        "media_type": media_type,
        "body": body,
    }
    return connection.execute(SQL["store_artifact"], parameters).fetchone() is not None


def get(connection: Connection, pipeline: str, task_id: TaskId, name: str) -> Raw | None:
    """Read an artifact; raises PayloadPruned where retention dropped its body."""
    row = connection.execute(SQL["get_artifact"], {"pipeline": pipeline, "task_id": task_id, "name": name}).fetchone()
    if row is None:
        return None
    if row["body"] is None:
        raise PayloadPruned(
            f"Raw {name!r} of task {task_id} was pruned at {row['pruned_at']}; its hash {row['sha256']} is "
            "kept. It is not collected again: the result of this task was made from it.",
            task_id=task_id,
        )
    return Raw(
        name=row["name"],
        sha256=row["sha256"],
        size=row["size"],
        media_type=row["media_type"],
        body=bytes(row["body"]),
    )
