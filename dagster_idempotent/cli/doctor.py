"""`doctor`: whether everything around the ledger is as it needs it."""

import os
from pathlib import Path

import click

from dagster_idempotent.cli.failures import FAILED
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import json_option, ledger_options
from dagster_idempotent.cli.output import print_json, print_rows, say
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine.doctor import Health, examine


@click.command(cls=Verb)
@ledger_options
@json_option
@click.option(
    "--dagster-home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the dagster.yaml to check.  [default: DAGSTER_HOME]",
)
@click.pass_context
def command(
    ctx: click.Context, *, url: str | None, folder: Path | None, as_json: bool, dagster_home: Path | None
) -> None:
    """Check the server, the schema, the rights, the clock, connections, standbys, defaults, and dagster.yaml.

    Each finding comes with what to do. Exit code 1 says that something has to be mended before the ledger works.

    Example:
      dagster-idempotent doctor
    """
    home = dagster_home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
    with opened(url, folder, any_version=True) as database:
        checks = examine(database, dagster_home=home)
    rows = [{"check": each.name, "health": str(each.health), "found": each.found, "do": each.do} for each in checks]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ("check", "health", "found"), as_json=False, nothing="")
        for each in checks:
            if each.do:
                say(f"{each.name}: {each.do}")
    if any(each.health is Health.FAILED for each in checks):
        ctx.exit(FAILED)
