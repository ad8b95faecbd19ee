"""`outbox`: messages that announce results."""

from collections.abc import Mapping

import click

from dagster_idempotent.cli.asking import Asked, DecidingOnTask, asking, deciding_on_task
from dagster_idempotent.cli.failures import NeedsOperator, UsersCode
from dagster_idempotent.cli.loading import load_channels
from dagster_idempotent.cli.options import (
    dry_run_option,
    limit_option,
    pipeline_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_rows, say
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.outbox import MessageState
from dagster_idempotent.engine import messages, relay
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.engine.messages import Found
from dagster_idempotent.engine.relay import Channel
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "task_id", "channel", "state", "deduplicates", "attempts", "delivered_at", "error")


@click.group(cls=Noun)
def command() -> None:
    """Messages: list, deliver, resolve."""


@command.command("list")
@asking
@pipeline_option
@click.option("--task", metavar="TASK", help="Only the messages of this task.")
@click.option("--state", type=click.Choice([str(state) for state in MessageState]), help="Only this state.")
@click.option("--all", "everything", is_flag=True, help="Delivered ones too.")
@limit_option
def list_(
    asked: Asked, *, pipeline: str | None, task: str | None, state: str | None, everything: bool, limit: int
) -> None:
    """List messages that are not delivered yet.

    Example:
      dagster-idempotent outbox list --state in_doubt
    """
    with asked.opened() as database:
        ref = None if task is None else find_task(database, task, pipeline=pipeline)
        rows = database.run(
            lambda c: listing.messages(
                c,
                pipeline=pipeline if ref is None else ref.pipeline,
                task_id=None if ref is None else ref.task_id,
                state=state,
                delivered=everything,
                limit=limit,
            )
        )
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No message fits.")


@command.command()
@asking
@dry_run_option
@task_argument
@click.option(
    "-m",
    "--channels",
    required=True,
    metavar="MODULE:ATTRIBUTE",
    help="A mapping of channel names to channels, as given to `deliver`.",
)
def deliver(asked: Asked, *, dry_run: bool, task: str, pipeline: str | None, channels: str) -> None:
    """Deliver what is ready of one task, now, from this machine.

    Exit code 3 says that a message is in doubt or dead, and somebody has to look.

    Example:
      dagster-idempotent outbox deliver 2026-W32-0 -m my_project.delivery:channels
    """
    given: Mapping[str, Channel] = {} if dry_run else load_channels(channels)
    with asked.opened() as database:
        ref = find_task(database, task, pipeline=pipeline)
        now: set[str] = set()
        if not dry_run:
            with UsersCode(f"A channel of {ref} (`outbox list --task {ref} --all` shows where its messages stand)"):
                done = relay.deliver_task(database, ref.pipeline, ref.task_id, given)
            now = {each.message.channel for each in done if each.delivered_now}
        rows = database.run(lambda c: listing.messages(c, pipeline=ref.pipeline, task_id=ref.task_id, delivered=True))
        shown = [{**row, "delivered_now": row["channel"] in now} for row in rows]
        print_rows(shown, (*COLUMNS, "delivered_now"), as_json=asked.as_json, nothing="The task has no messages.")
        if dry_run:
            say("Dry run: nothing was delivered.")
        stuck = [row["channel"] for row in rows if row["state"] in ("in_doubt", "dead")]
        if stuck and not dry_run:
            raise NeedsOperator(f"{', '.join(stuck)}: look where it should have arrived, then `outbox resolve`.")


@command.command()
@deciding_on_task
@click.argument("channel", metavar="CHANNEL")
@click.option(
    "--as",
    "found",
    type=click.Choice([str(found) for found in Found]),
    required=True,
    help="What you found; not_delivered makes it go again.",
)
@click.option("--evidence", required=True, metavar="TEXT", help="What shows it.")
def resolve(decision: DecidingOnTask, *, channel: str, found: str, evidence: str) -> None:
    """Settle a message in doubt, or make a dead one ready again.

    Example:
      dagster-idempotent outbox resolve 2026-W32-0 email --as delivered --evidence "no. 812" --actor ada --reason bill
    """
    decision.decide(messages.resolve, channel, Found(found), evidence=evidence)
