"""`pipelines`: list them, freeze and unfreeze their paid calls."""

import click

from dagster_idempotent.cli.asking import Asked, Deciding, asking, deciding
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.engine import freezing
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "period_kind", "timezone", "gate", "tasks", "open", "held", "dead", "frozen_reason")


@click.group(cls=Noun)
def command() -> None:
    """List pipelines, freeze and unfreeze their paid calls."""


@command.command("list")
@asking
def list_(asked: Asked) -> None:
    """List pipelines with the numbers of their open, held and dead tasks.

    Example:
      dagster-idempotent pipelines list --json
    """
    with asked.opened() as database:
        rows = database.run(listing.pipelines)
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No pipeline has been registered yet.")


@command.command()
@click.argument("pipeline")
@deciding
def freeze(decision: Deciding, *, pipeline: str) -> None:
    """Stop every new paid call of a pipeline, from the next intent on.

    Calls that are under way finish and keep their answers. Freeze after a failover to an asynchronous standby, until
    the ledger has been compared with the provider.

    Example:
      dagster-idempotent pipelines freeze weekly_digest --actor ada --reason "failover at 03:10"
    """
    decision.decide(freezing.freeze, pipeline)


@command.command()
@click.argument("pipeline")
@deciding
def unfreeze(decision: Deciding, *, pipeline: str) -> None:
    """Let the paid calls of a pipeline start again.

    Example:
      dagster-idempotent pipelines unfreeze weekly_digest --actor ada --reason "compared with the invoice"
    """
    decision.decide(freezing.unfreeze, pipeline)
