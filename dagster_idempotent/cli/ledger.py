"""Which ledger a command works on: `--url`, the environment, or the embedded server of `--folder`."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import psycopg
from click.core import ParameterSource
from psycopg.conninfo import conninfo_to_dict

from dagster_idempotent import embedded
from dagster_idempotent.cli.failures import failures_told
from dagster_idempotent.embedded import place
from dagster_idempotent.errors import DatabaseUnavailable
from dagster_idempotent.store import version
from dagster_idempotent.store.database import Database, describe

PATIENCE = timedelta(seconds=15)


def ledger_url(url: str | None, folder: Path | None, *, may_create: bool = False) -> str:
    """Return the URL to use; raises a usage error where there is none, or two."""
    if url and folder is not None:
        if _typed("url") == _typed("folder"):
            raise click.UsageError("--url and --folder both name a ledger. Give one of them.")
        url = url if _typed("url") else None
    if url:
        return _checked(embedded.libpq_url(url))
    if not may_create and not place.find(folder).majors():
        where = folder or embedded.default_folder()
        raise click.UsageError(
            f"No ledger is named and {where} holds no embedded server. Give --url (or set {embedded.URL_VARIABLE}), "
            "or --folder with the folder of an embedded server."
        )
    return embedded.start(folder).url


@contextmanager
def opened(
    url: str | None, folder: Path | None, *, may_create: bool = False, any_version: bool = False
) -> Generator[Database]:
    """Open the ledger for one command; its schema is checked unless `any_version`."""
    with failures_told():
        database = Database(ledger_url(url, folder, may_create=may_create), max_connections=2, patience=PATIENCE)
        reach(database)
        try:
            if not any_version:
                version.check(database)
            yield database
        finally:
            database.close()


def reach(database: Database) -> None:
    """Raise DatabaseUnavailable at once where the server does not take a connection."""
    try:
        database.connect().close()
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(
            f"PostgreSQL at {describe(database.url)} cannot be reached: {str(error).strip()}. Check that the server "
            "runs and that the URL is right."
        ) from error


def _checked(url: str) -> str:
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The text of the error may quote the URL, and with it a password.
        raise click.UsageError(
            "The database URL cannot be parsed. Write it as postgresql://user:password@host:5432/database; "
            "escape special characters of the password as %XX."
        ) from error
    return url


def _typed(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
