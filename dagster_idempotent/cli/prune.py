"""`prune`: retention."""

from datetime import timedelta
from pathlib import Path

import click

from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import DURATION, decision_options, json_option, ledger_options, pipeline_option
from dagster_idempotent.cli.output import print_rows, say
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine import retention
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.retention import MAX_BATCH, Pruned

COLUMNS = ("pipeline", "tasks", "bodies", "bytes", "skipped")


@click.command(cls=Verb)
@ledger_options
@json_option
@decision_options
@pipeline_option
@click.option("--older-than", type=DURATION, required=True, help="Only tasks that ended longer ago, such as 90d.")
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=MAX_BATCH),
    default=500,
    show_default=True,
    help="Tasks of one transaction.",
)
def command(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    pipeline: str | None,
    older_than: timedelta,
    batch: int,
) -> None:
    """Drop the payloads of completed and discarded tasks; keys, hashes, costs and decisions stay for ever.

    Tasks with a call whose outcome is not known, or with an undelivered message, are skipped. It may be stopped and
    started again at any time. A key that was pruned years ago still finds its task, and is never paid for again.

    Example:
      dagster-idempotent prune --older-than 400d --actor cron --reason "retention policy"
    """

    def progress(so_far: Pruned) -> None:
        say(f"{so_far.pipeline}: {so_far.tasks} tasks, {so_far.bytes} bytes")

    with opened(url, folder) as database:
        found = retention.prune(
            database,
            older_than=older_than,
            pipeline=pipeline,
            batch=batch,
            who=Who(actor=actor, reason=reason),
            dry_run=dry_run,
            progress=progress,
        )
        rows = [
            {
                "pipeline": each.pipeline,
                "tasks": each.tasks,
                "bodies": each.bodies,
                "bytes": each.bytes,
                "skipped": each.skipped,
                "dry_run": dry_run,
            }
            for each in found
        ]
        print_rows(rows, COLUMNS, as_json=as_json, nothing="No pipeline has been registered yet.")
        if dry_run:
            say("Dry run: nothing was changed.")
