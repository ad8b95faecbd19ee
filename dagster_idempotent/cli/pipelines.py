"""`pipelines`: list them, freeze and unfreeze their paid calls."""

from pathlib import Path

import click

from dagster_idempotent.cli.decided import tell
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import decision_options, json_option, ledger_options
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.engine import freezing
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "period_kind", "timezone", "gate", "tasks", "open", "held", "dead", "frozen_reason")


@click.group(cls=Noun)
def command() -> None:
    """List pipelines, freeze and unfreeze their paid calls."""


@command.command("list")
@ledger_options
@json_option
def list_(*, url: str | None, folder: Path | None, as_json: bool) -> None:
    """List pipelines with the numbers of their open, held and dead tasks.

    Example:
      dagster-idempotent pipelines list --json
    """
    with opened(url, folder) as database:
        rows = database.run(listing.pipelines)
        print_rows(rows, COLUMNS, as_json=as_json, nothing="No pipeline has been registered yet.")


@command.command()
@click.argument("pipeline")
@ledger_options
@json_option
@decision_options
def freeze(
    *, url: str | None, folder: Path | None, as_json: bool, actor: str, reason: str, dry_run: bool, pipeline: str
) -> None:
    """Stop every new paid call of a pipeline, from the next intent on.

    Calls that are under way finish and keep their answers. Freeze after a failover to an asynchronous standby, until
    the ledger has been compared with the provider.

    Example:
      dagster-idempotent pipelines freeze weekly_digest --actor ada --reason "failover at 03:10"
    """
    with opened(url, folder) as database:
        who = Who(actor=actor, reason=reason)
        tell(freezing.freeze(database, pipeline, who=who, dry_run=dry_run), as_json=as_json)


@command.command()
@click.argument("pipeline")
@ledger_options
@json_option
@decision_options
def unfreeze(
    *, url: str | None, folder: Path | None, as_json: bool, actor: str, reason: str, dry_run: bool, pipeline: str
) -> None:
    """Let the paid calls of a pipeline start again.

    Example:
      dagster-idempotent pipelines unfreeze weekly_digest --actor ada --reason "compared with the invoice"
    """
    with opened(url, folder) as database:
        who = Who(actor=actor, reason=reason)
        tell(freezing.unfreeze(database, pipeline, who=who, dry_run=dry_run), as_json=as_json)
