"""`approvals`: the gates that wait for a named person."""

import click

from dagster_idempotent.cli.asking import Asked, Deciding, DecidingOnTask, asking, deciding, deciding_on_task
from dagster_idempotent.cli.options import (
    amount,
    limit_option,
    pipeline_option,
)
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine import approvals
from dagster_idempotent.store import listing

COLUMNS = (
    "id",
    "pipeline",
    "task_id",
    "gate",
    "state",
    "shown_sha256",
    "actor",
    "amount_cap",
    "currency",
    "created_at",
)


@click.group(cls=Noun)
def command() -> None:
    """Open and close the gates that wait for a named person."""


@command.command("list")
@asking
@pipeline_option
@limit_option
def list_(asked: Asked, *, pipeline: str | None, limit: int) -> None:
    """List what waits for an approval, with the hash to approve, and what was approved.

    Example:
      dagster-idempotent approvals list --pipeline weekly_digest
    """
    with asked.opened() as database:
        rows = database.run(lambda c: listing.approvals(c, pipeline=pipeline, limit=limit))
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="Nothing waits for an approval, and none was given.")


@command.command()
@deciding_on_task
@click.option(
    "--shown",
    required=True,
    metavar="SHA256",
    help="Hash of what you looked at: `approvals list` prints it; another hash is refused.",
)
@click.option("--up-to", type=amount, help='Limit of the task from now on, such as "2.00 USD".')
def approve(decision: DecidingOnTask, *, shown: str, up_to: Money | None) -> None:
    """Open the gate of a task for what was shown, by its hash.

    At the gate `spend` that is the raw artifact, at `publish` the accepted output.

    Example:
      dagster-idempotent approvals approve 2026-W32-0 --shown 4f0c… --up-to "2.00 USD" --actor ada --reason "read it"
    """
    decision.decide(approvals.approve, shown=shown, up_to=up_to)


@command.command()
@click.argument("approval", type=int)
@deciding
def revoke(decision: Deciding, *, approval: int) -> None:
    """Take an approval back, by its number in `approvals list`.

    Paid calls that have started and messages that were set free stay so.

    Example:
      dagster-idempotent approvals revoke 17 --actor ada --reason "wrong tenant"
    """
    decision.decide(approvals.revoke, approval)
