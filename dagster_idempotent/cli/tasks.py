"""`tasks`: list and show tasks, read what is kept of them, release a lease."""

from pathlib import Path

import click

from dagster_idempotent.cli.asking import Asked, DecidingOnTask, asking, deciding_on_task
from dagster_idempotent.cli.options import (
    limit_option,
    pipeline_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_facts, print_json, print_rows
from dagster_idempotent.cli.payloads import hand_out, output_option
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine import dead_letters, payloads
from dagster_idempotent.engine.listing import check_pipeline, find_task
from dagster_idempotent.engine.stages import RAW
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "task_id", "subject", "status", "held_for", "attempts", "unsettled", "owner", "created_at")
CALL_COLUMNS = ("call_key", "submission", "state", "provider", "sends", "cost", "currency", "settled_by", "remote_ref")
ARTIFACT_COLUMNS = ("name", "sha256", "size", "media_type", "pruned_at")
MESSAGE_COLUMNS = ("channel", "state", "attempts", "delivered_at", "error")


@click.group(cls=Noun)
def command() -> None:
    """List and show tasks, read what is kept of them, release a lease."""


@command.command("list")
@asking
@pipeline_option
@click.option("--period", metavar="ID", help="Only this period, such as 2026-W32.")
@click.option("--subject", metavar="TEXT", help="Only this subject (tenant, account).")
@click.option("--status", type=click.Choice([str(status) for status in TaskStatus]), help="Only this status.")
@limit_option
def list_(
    asked: Asked, *, pipeline: str | None, period: str | None, subject: str | None, status: str | None, limit: int
) -> None:
    """List tasks, the newest periods first.

    Example:
      dagster-idempotent tasks list --status held
    """
    with asked.opened() as database:
        if pipeline is not None:
            check_pipeline(database, pipeline)
        rows = database.run(
            lambda c: listing.tasks(c, pipeline=pipeline, period=period, subject=subject, status=status, limit=limit)
        )
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No task fits.")


@command.command()
@asking
@task_argument
def show(asked: Asked, *, task: str, pipeline: str | None) -> None:
    """Show one task with its artifacts, calls and messages.

    TASK is a task id, PIPELINE/TASK_ID, an allocation key, a run id, a Dagster run id, an idempotency key or a
    reference of the provider.

    Example:
      dagster-idempotent tasks show weekly_digest/2026-W32-0
    """
    with asked.opened() as database:
        ref = find_task(database, task, pipeline=pipeline)
        facts = dict(database.run(lambda c: listing.task(c, ref)) or {})
        facts.pop("now", None)
        artifacts = database.run(lambda c: listing.artifacts(c, ref))
        calls = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id))
        messages = database.run(
            lambda c: listing.messages(c, pipeline=ref.pipeline, task_id=ref.task_id, delivered=True)
        )
        if asked.as_json:
            print_json({**facts, "artifacts": artifacts, "calls": calls, "messages": messages})
            return
        print_facts({name: value for name, value in facts.items() if value is not None}, as_json=False)
        for title, rows, columns in (
            ("artifacts", artifacts, ARTIFACT_COLUMNS),
            ("calls", calls, CALL_COLUMNS),
            ("messages", messages, MESSAGE_COLUMNS),
        ):
            if rows:
                click.echo(f"\n{title}:")
                print_rows(rows, columns, as_json=False, nothing="")


@command.command()
@asking
@task_argument
@click.argument("name", metavar="[NAME]", default=RAW)
@output_option
def artifact(asked: Asked, *, task: str, pipeline: str | None, name: str, output: Path | None) -> None:
    """Print an artifact of a task, byte for byte; NAME is `raw` unless given, and `tasks show` lists them.

    Its hash is compared with the one recorded before a byte is printed.

    Examples:
      dagster-idempotent tasks artifact 2026-W32-0
      dagster-idempotent tasks artifact 2026-W32-0 raw --output documents.json
    """
    with asked.opened() as database:
        found = payloads.artifact(database, find_task(database, task, pipeline=pipeline), name)
    hand_out(found, output=output, as_json=asked.as_json)


@command.command("output")
@asking
@task_argument
@output_option
def output_(asked: Asked, *, task: str, pipeline: str | None, output: Path | None) -> None:
    """Print the accepted output of a completed task, as the JSON that was committed.

    Example:
      dagster-idempotent tasks output weekly_digest/2026-W32-0
    """
    with asked.opened() as database:
        found = payloads.output(database, find_task(database, task, pipeline=pipeline))
    hand_out(found, output=output, as_json=asked.as_json)


@command.command()
@deciding_on_task
def release(decision: DecidingOnTask) -> None:
    """Take the lease from a run that will not come back.

    The task becomes pending. Whatever the old run still writes is refused; a paid answer that it still receives is
    kept. Refused while a paid call is on its way.

    Example:
      dagster-idempotent tasks release 2026-W32-0 --actor ada --reason "its node is gone"
    """
    decision.decide(dead_letters.release_lease)
