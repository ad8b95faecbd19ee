"""`prune`: retention."""

from datetime import timedelta

import click

from dagster_idempotent.cli.asking import Deciding, deciding
from dagster_idempotent.cli.options import duration, pipeline_option
from dagster_idempotent.cli.output import print_rows, say
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine import retention
from dagster_idempotent.engine.retention import MAX_BATCH, Pruned

COLUMNS = ("pipeline", "tasks", "bodies", "bytes", "skipped")


@click.command(cls=Verb)
@deciding
@pipeline_option
@click.option("--older-than", type=duration, required=True, help="Only tasks that ended longer ago, such as 90d.")
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=MAX_BATCH),
    default=500,
    show_default=True,
    help="Tasks of one transaction.",
)
def command(decision: Deciding, *, pipeline: str | None, older_than: timedelta, batch: int) -> None:
    """Drop the payloads of completed and discarded tasks; keys, hashes, costs and decisions stay for ever.

    Tasks with a call whose outcome is not known, or with an undelivered message, are skipped. It may be stopped and
    started again at any time. A key that was pruned years ago still finds its task, and is never paid for again.

    Example:
      dagster-idempotent prune --older-than 400d --actor cron --reason "retention policy"
    """

    def progress(so_far: Pruned) -> None:
        say(f"{so_far.pipeline}: {so_far.tasks} tasks, {so_far.bytes} bytes")

    with decision.opened() as database:
        found = retention.prune(
            database,
            older_than=older_than,
            pipeline=pipeline,
            batch=batch,
            who=decision.who,
            dry_run=decision.dry_run,
            progress=progress,
        )
        rows = [
            {
                "pipeline": each.pipeline,
                "tasks": each.tasks,
                "bodies": each.bodies,
                "bytes": each.bytes,
                "skipped": each.skipped,
                "dry_run": decision.dry_run,
            }
            for each in found
        ]
        print_rows(rows, COLUMNS, as_json=decision.as_json, nothing="No pipeline has been registered yet.")
        if decision.dry_run:
            say("Dry run: nothing was changed.")
