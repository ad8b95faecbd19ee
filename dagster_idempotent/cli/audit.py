"""`audit`: who decided what, when and why."""

import click

from dagster_idempotent.cli.asking import Asked, asking
from dagster_idempotent.cli.options import limit_option, pipeline_option
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.store import listing

COLUMNS = ("at", "actor", "action", "pipeline", "task_id", "reason", "before", "after")


@click.command(cls=Verb)
@asking
@pipeline_option
@click.option("--task", metavar="TASK", help="Only this task.")
@click.option("--by", metavar="NAME", help="Only what this person or program decided.")
@click.option("--action", metavar="NAME", help="Only this action, such as resolve, discard or prune.")
@limit_option
def command(
    asked: Asked, *, pipeline: str | None, task: str | None, by: str | None, action: str | None, limit: int
) -> None:
    """List who decided what, when and why, the latest first.

    Example:
      dagster-idempotent audit --task 2026-W32-0
    """
    with asked.opened() as database:
        ref = None if task is None else find_task(database, task, pipeline=pipeline)
        rows = database.run(
            lambda c: listing.audit(
                c,
                pipeline=pipeline if ref is None else ref.pipeline,
                task_id=None if ref is None else ref.task_id,
                actor=by,
                action=action,
                limit=limit,
            )
        )
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No decision fits.")
