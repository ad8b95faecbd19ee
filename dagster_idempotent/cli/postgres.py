"""`postgres`: the embedded server of a folder."""

from pathlib import Path

import click

from dagster_idempotent import embedded
from dagster_idempotent.cli.failures import Failure, failures_told
from dagster_idempotent.cli.options import Function, dry_run_option, json_option
from dagster_idempotent.cli.output import print_facts, say
from dagster_idempotent.cli.verbs import Noun


def folder_option(function: Function) -> Function:
    """Add --folder."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="DAGSTER_IDEMPOTENT_FOLDER",
        help="Where the server keeps data, log and locks.  [default: $DAGSTER_HOME/postgres, else your data folder]",
    )(function)


@click.group(cls=Noun)
def command() -> None:
    """Start, stop and find the embedded PostgreSQL of a folder."""


@command.command()
@folder_option
@json_option
@dry_run_option
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Stop after so many minutes without a client; 0: never.",
)
def start(*, folder: Path | None, as_json: bool, dry_run: bool, idle_minutes: float) -> None:
    """Start the server unless it runs, and print where it is.

    Example:
      dagster-idempotent postgres start --folder ./postgres
    """
    with failures_told():
        if dry_run:
            running = embedded.status(folder)
            if running is not None or as_json:
                print_facts({} if running is None else _facts(running), as_json=as_json)
            say("It would be started." if running is None else "It runs; nothing would be started.")
            return
        print_facts(_facts(embedded.start(folder, idle_timeout=idle_minutes * 60 or None)), as_json=as_json)


@command.command()
@folder_option
@dry_run_option
def stop(*, folder: Path | None, dry_run: bool) -> None:
    """Stop the server, ending the connections of its clients; its data stays.

    Example:
      dagster-idempotent postgres stop
    """
    with failures_told():
        if dry_run:
            running = embedded.status(folder) is not None
            say("It would be stopped." if running else "No server is running; nothing would be stopped.")
            return
        say("Stopped." if embedded.stop(folder) else "No server was running.")


@command.command()
@folder_option
@json_option
def status(*, folder: Path | None, as_json: bool) -> None:
    """Print where the server is; exit code 1 says that none is running.

    Example:
      psql "$(dagster-idempotent postgres status --json | jq -r .url)"
    """
    with failures_told():
        server = embedded.status(folder)
        if server is None:
            raise Failure(
                f"No server is running in {folder or embedded.default_folder()}. "
                "`dagster-idempotent postgres start` starts it."
            )
        print_facts(_facts(server), as_json=as_json)


def _facts(server: embedded.Server) -> dict[str, object]:
    return {
        "url": server.url,
        "folder": str(server.folder),
        "pid": server.pid,
        "version": server.version,
        "source": str(server.source),
        "sockets": str(server.sockets),
    }
