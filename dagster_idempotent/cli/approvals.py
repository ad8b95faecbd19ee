"""`approvals`: the gates that wait for a named person."""

from pathlib import Path

import click

from dagster_idempotent.cli.decided import tell
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import (
    MONEY,
    decision_options,
    json_option,
    ledger_options,
    limit_option,
    pipeline_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine import approvals
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.listing import find_task
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
@ledger_options
@json_option
@pipeline_option
@limit_option
def list_(*, url: str | None, folder: Path | None, as_json: bool, pipeline: str | None, limit: int) -> None:
    """List what waits for an approval, with the hash to approve, and what was approved.

    Example:
      dagster-idempotent approvals list --pipeline weekly_digest
    """
    with opened(url, folder) as database:
        rows = database.run(lambda c: listing.approvals(c, pipeline=pipeline, limit=limit))
        print_rows(rows, COLUMNS, as_json=as_json, nothing="Nothing waits for an approval, and none was given.")


@command.command()
@ledger_options
@json_option
@decision_options
@task_argument
@click.option(
    "--shown",
    required=True,
    metavar="SHA256",
    help="Hash of what you looked at: `approvals list` prints it; another hash is refused.",
)
@click.option("--up-to", type=MONEY, help='Limit of the task from now on, such as "2.00 USD".')
def approve(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    task: str,
    pipeline: str | None,
    shown: str,
    up_to: Money | None,
) -> None:
    """Open the gate of a task for what was shown, by its hash.

    At the gate `spend` that is the raw artifact, at `publish` the accepted output.

    Example:
      dagster-idempotent approvals approve 2026-W32-0 --shown 4f0c… --up-to "2.00 USD" --actor ada --reason "read it"
    """
    with opened(url, folder) as database:
        ref = find_task(database, task, pipeline=pipeline)
        who = Who(actor=actor, reason=reason)
        decision = approvals.approve(database, ref, shown=shown, up_to=up_to, who=who, dry_run=dry_run)
        tell(decision, as_json=as_json)


@command.command()
@click.argument("approval", type=int)
@ledger_options
@json_option
@decision_options
def revoke(
    *, url: str | None, folder: Path | None, as_json: bool, actor: str, reason: str, dry_run: bool, approval: int
) -> None:
    """Take an approval back, by its number in `approvals list`.

    Paid calls that have started and messages that were set free stay so.

    Example:
      dagster-idempotent approvals revoke 17 --actor ada --reason "wrong tenant"
    """
    with opened(url, folder) as database:
        who = Who(actor=actor, reason=reason)
        tell(approvals.revoke(database, approval, who=who, dry_run=dry_run), as_json=as_json)
