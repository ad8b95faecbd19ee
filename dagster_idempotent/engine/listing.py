"""Finding the task or call that a person means, and saying what exists where it does not."""

from dagster_idempotent.errors import IdempotentError, TaskNotFound
from dagster_idempotent.store import listing
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef


def find_task(database: Database, text: str, *, pipeline: str | None = None) -> TaskRef:
    """Return the one task that a person names.

    By task id, `pipeline/task id`, allocation key, run id, Dagster run id, idempotency key or remote reference. Raises
    TaskNotFound naming what exists, also where more than one fits.
    """
    found = database.run(lambda c: listing.locate(c, text, pipeline))
    if not found:
        found = database.run(lambda c: listing.locate_anywhere(c, text, pipeline))
    if len(found) == 1:
        return found[0]
    if found:
        raise TaskNotFound(
            f"{text!r} fits {len(found)} tasks: {', '.join(map(str, found))}. Give one of them in this form.",
            found=[str(ref) for ref in found],
        )
    latest = database.run(lambda c: listing.latest_tasks(c, pipeline))
    there = f"the newest are {', '.join(map(str, latest))}" if latest else "there are no tasks yet"
    within = f" in pipeline {pipeline!r}" if pipeline else ""
    raise TaskNotFound(
        f"No task{within} has the id or key {text!r}; {there}. `dagster-idempotent tasks list` shows more.",
        found=[],
    )


def check_pipeline(database: Database, pipeline: str) -> None:
    """Raise an error naming the pipelines there are, unless this is one."""
    names = [row["pipeline"] for row in database.run(listing.pipelines)]
    if pipeline not in names:
        there = f"there are {', '.join(names)}" if names else "the ledger has none yet"
        raise IdempotentError(f"There is no pipeline {pipeline!r}; {there}.", found=names)


def unknown_call(database: Database, ref: TaskRef, call_key: str) -> IdempotentError:
    """Say which calls a task has."""
    rows = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id))
    keys = sorted({row["call_key"] for row in rows})
    there = f"it has {', '.join(keys)}" if keys else "it has made no paid call"
    return IdempotentError(f"Task {ref} has no call {call_key!r}; {there}.", found=keys)
