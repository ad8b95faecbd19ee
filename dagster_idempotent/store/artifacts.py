"""Raw artifacts: stored once, before any model call (R21); a large one lies at a URI."""

from dataclasses import dataclass
from hashlib import sha256

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import PayloadPruned
from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.statements import statements

SQL = statements("artifacts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An artifact as its row has it: its body, or the URI where that lies."""

    name: str
    sha256: str
    size: int
    media_type: str
    body: bytes | None
    uri: str | None


def store(
    connection: Connection,
    pipeline: str,
    task_id: TaskId,
    *,
    name: str,
    body: bytes,
    media_type: str,
    uri: str | None = None,
) -> bool:
    """Store an artifact unless there is one of that name; return whether these bytes were the first.

    With a `uri` the bytes lie there already, and only what they are is stored.
    """
    parameters = {
        "pipeline": pipeline,
        "task_id": task_id,
        "name": name,
        "sha256": sha256(body).hexdigest(),
        "size": len(body),
        "media_type": media_type,
        "body": body if uri is None else None,
        "uri": uri,
    }
    return connection.execute(SQL["store_artifact"], parameters).fetchone() is not None


def get(connection: Connection, pipeline: str, task_id: TaskId, name: str) -> Stored | None:
    """Read an artifact; raises PayloadPruned where retention dropped its body."""
    row = connection.execute(SQL["get_artifact"], {"pipeline": pipeline, "task_id": task_id, "name": name}).fetchone()
    if row is None:
        return None
    if row["body"] is None and row["uri"] is None:
        raise PayloadPruned(
            f"Raw {name!r} of task {task_id} was pruned at {row['pruned_at']}; its hash {row['sha256']} is "
            "kept. It is not collected again: the result of this task was made from it.",
            task_id=task_id,
        )
    return Stored(
        name=row["name"],
        sha256=row["sha256"],
        size=row["size"],
        media_type=row["media_type"],
        body=None if row["body"] is None else bytes(row["body"]),
        uri=row["uri"],
    )
