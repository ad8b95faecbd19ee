"""`doctor`: whether everything around the ledger is as it needs it, and whether a user's definitions pay once."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from dagster_idempotent.cli.failures import FAILED, UsersCode, failures_told
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import json_option, ledger_options
from dagster_idempotent.cli.output import print_json, print_rows, say
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.embedded import place
from dagster_idempotent.engine.doctor import Check, Health, examine


@click.command(cls=Verb)
@ledger_options
@json_option
@click.option(
    "--dagster-home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the dagster.yaml to check.  [default: DAGSTER_HOME]",
)
@click.option(
    "-m", "--module", "modules", multiple=True, metavar="MODULE", help="Also check the definitions of a module."
)
@click.option(
    "-f", "--python-file", "files", multiple=True, metavar="FILE", help="Also check the definitions of a Python file."
)
@click.option(
    "-w",
    "--workspace",
    "workspaces",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also check every code location of a workspace.yaml.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    dagster_home: Path | None,
    modules: Sequence[str],
    files: Sequence[str],
    workspaces: Sequence[Path],
) -> None:
    """Check the server, the schema, the rights, the clock, connections, standbys, defaults, dagster.yaml, your code.

    Each finding comes with what to do. Over definitions (-m, -f, -w): paid resources and clients without a guard, SDK
    retries left on, a RetryPolicy over unguarded paid ops, weeks that lie in two ISO weeks, run monitoring off. With
    these and no ledger named, only the definitions are checked. Exit code 1 says that something has to be mended.

    Examples:
      dagster-idempotent doctor
      dagster-idempotent doctor -w workspace.yaml
      dagster-idempotent doctor -m my_project.definitions
    """
    home = dagster_home or (Path(os.environ["DAGSTER_HOME"]) if os.environ.get("DAGSTER_HOME") else None)
    checks: list[Check] = []
    over_definitions = bool(modules or files or workspaces)
    if url or place.find(folder).majors() or not over_definitions:
        with opened(url, folder, any_version=True) as database:
            checks += examine(database, dagster_home=home)
    else:
        say("No ledger is named: the server was not checked.")
    if over_definitions:
        checks += _of_definitions(modules, files, workspaces, home)
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


def _of_definitions(
    modules: Sequence[str], files: Sequence[str], workspaces: Sequence[Path], home: Path | None
) -> Sequence[Check]:
    with failures_told(), UsersCode("The code location"):
        # Dagster takes seconds to load; every other command does without it.
        doctor = import_module("dagster_idempotent.definitions.doctor")
        return doctor.examine_definitions(modules=modules, files=files, workspaces=workspaces, dagster_home=home)
