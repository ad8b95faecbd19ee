"""`dead-letters`: tasks out of attempts."""

import click

from dagster_idempotent.cli.asking import Asked, DecidingOnTask, asking, deciding_on_task
from dagster_idempotent.cli.failures import Failure
from dagster_idempotent.cli.options import (
    limit_option,
    pipeline_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_facts, print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.engine import dead_letters
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "task_id", "subject", "attempts", "last_owner", "unsettled", "created_at", "error")
FACTS = ("pipeline", "task_id", "attempts", "max_attempts", "last_owner", "final", "error")


@click.group(cls=Noun)
def command() -> None:
    """Tasks out of attempts: list, redrive, discard."""


@command.command("list")
@asking
@pipeline_option
@limit_option
def list_(asked: Asked, *, pipeline: str | None, limit: int) -> None:
    """List dead letters with their last error.

    Example:
      dagster-idempotent dead-letters list
    """
    with asked.opened() as database:
        rows = database.run(lambda c: listing.tasks(c, pipeline=pipeline, status="dead", limit=limit))
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="There are no dead letters.")


@command.command()
@asking
@task_argument
def show(asked: Asked, *, task: str, pipeline: str | None) -> None:
    """Show one dead letter: error, attempts, last owner, artifacts, paid calls.

    Example:
      dagster-idempotent dead-letters show 2026-W32-0
    """
    with asked.opened() as database:
        ref = find_task(database, task, pipeline=pipeline)
        facts = database.run(lambda c: listing.task(c, ref)) or {}
        if facts.get("status") != "dead":
            raise Failure(f"Task {ref} is {facts.get('status')}, not a dead letter. `tasks show` shows any task.")
        calls = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id))
        shown = {name: facts[name] for name in FACTS}
        paid = [
            {"call": row["call_key"], "cost": row["cost"], "currency": row["currency"]}
            for row in calls
            if row["state"] == "succeeded"
        ]
        artifacts = database.run(lambda c: listing.artifacts(c, ref))
        stored = [{"name": row["name"], "size": row["size"], "sha256": row["sha256"]} for row in artifacts]
        print_facts({**shown, "artifacts": stored, "paid": paid, "submissions": len(calls)}, as_json=asked.as_json)


@command.command()
@deciding_on_task
def redrive(decision: DecidingOnTask) -> None:
    """Make a dead task pending again, its attempts counted from nought.

    Paid answers are replayed, so that only what has no answer is paid for.

    Example:
      dagster-idempotent dead-letters redrive 2026-W32-0 --actor ada --reason "the prompt is mended"
    """
    decision.decide(dead_letters.redrive)


@command.command()
@deciding_on_task
def discard(decision: DecidingOnTask) -> None:
    """End a dead or held task for good.

    Refused while the outcome of one of its calls is not known: a discard would hide a charge.

    Example:
      dagster-idempotent dead-letters discard 2026-W32-0 --actor ada --reason "the customer left"
    """
    decision.decide(dead_letters.discard)
