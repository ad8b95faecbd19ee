"""`schema`: create, check and print the ledger's schema."""

from pathlib import Path

import click
import psycopg
from sqlalchemy.exc import DBAPIError

from dagster_idempotent.cli.failures import failures_told
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import dry_run_option, json_option, ledger_options
from dagster_idempotent.cli.output import print_facts, say
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.store import schema as ledger_schema
from dagster_idempotent.store.database import Database


@click.group(cls=Noun)
def command() -> None:
    """Create, check and print the ledger's schema."""


@command.command()
@ledger_options
@json_option
@dry_run_option
def upgrade(*, url: str | None, folder: Path | None, as_json: bool, dry_run: bool) -> None:
    """Create the ledger's schema, or bring it to the version that this library wants.

    Two upgrades at once are safe. Nothing is ever dropped.

    Example:
      dagster-idempotent schema upgrade --url postgresql://ledger@db.example/ledger
    """
    with opened(url, folder, may_create=True, any_version=True) as database:
        found, wanted = ledger_schema.found_version(database), ledger_schema.wanted_version()
        needed = found is None or ledger_schema.is_behind(database)
        if not needed:
            ledger_schema.check(database)
        elif not dry_run:
            _upgrade(database)
        facts = {"from": found, "to": wanted, "changed": needed and not dry_run, "dry_run": dry_run}
        print_facts(facts, as_json=as_json)
        say("The schema is up to date." if not needed else "Would be upgraded." if dry_run else "Upgraded.")


@command.command()
@ledger_options
@json_option
def check(*, url: str | None, folder: Path | None, as_json: bool) -> None:
    """Check that the schema is exactly the one that this library wants.

    Exit code 1 says that it is not, and stderr what mends it.

    Example:
      dagster-idempotent schema check && echo ready
    """
    with opened(url, folder, any_version=True) as database:
        found, wanted = ledger_schema.found_version(database), ledger_schema.wanted_version()
        print_facts({"found": found, "wanted": wanted, "ok": found == wanted}, as_json=as_json)
        ledger_schema.check(database)


@command.command()
def sql() -> None:
    """Print the SQL of the whole schema, for people who run such things themselves.

    Example:
      dagster-idempotent schema sql | psql "$DATABASE_URL"
    """
    with failures_told():
        click.echo(ledger_schema.upgrade_sql())


def _upgrade(database: Database) -> None:
    try:
        ledger_schema.upgrade(database)
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise error.orig from error
        raise
