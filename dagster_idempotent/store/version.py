"""Which schema version a ledger has and which one this library wants; read without loading Alembic."""

from pathlib import Path

import psycopg

from dagster_idempotent.errors import SchemaMismatch
from dagster_idempotent.store.database import Database, describe

MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_COMMAND = "dagster-idempotent schema upgrade"


def known_versions() -> list[str]:
    """Return the versions that this library can upgrade, oldest first: the numbers of its migration files."""
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def wanted_version() -> str:
    """Return the schema version that this library is written for."""
    known = known_versions()
    if not known:
        raise SchemaMismatch("This installation has no migrations: reinstall dagster-idempotent.")
    return known[-1]


def found_version(database: Database) -> str | None:
    """Return the schema version of `database`, None where the ledger was never created."""

    def read(connection: psycopg.Connection[dict[str, object]]) -> str | None:
        row = connection.execute("SELECT to_regclass('dagster_idempotent.alembic_version') AS there").fetchone()
        if row is None or row["there"] is None:
            return None
        found = connection.execute("SELECT version_num FROM dagster_idempotent.alembic_version").fetchone()
        return None if found is None else str(found["version_num"])

    return database.run(read)


def is_behind(database: Database) -> bool:
    """Whether the ledger is missing, or older than this library wants and upgradable."""
    found = found_version(database)
    return found is None or (found != wanted_version() and found in known_versions())


def check(database: Database) -> None:
    """Raise SchemaMismatch unless the schema is exactly the wanted one; it names the command that mends it."""
    found, wanted = found_version(database), wanted_version()
    if found == wanted:
        return
    where = f"The database {describe(database.url)}"
    if found is None:
        raise SchemaMismatch(
            f"{where} holds no ledger. Nothing is created by itself: with a mistyped URL a new, empty ledger would "
            f"pay for everything again. If this is the right database, run `{UPGRADE_COMMAND}`.",
            found=found,
            wanted=wanted,
        )
    if found in known_versions():
        raise SchemaMismatch(
            f"{where} has the ledger schema {found}, this version of dagster-idempotent wants {wanted}. "
            f"Run `{UPGRADE_COMMAND}`.",
            found=found,
            wanted=wanted,
        )
    raise SchemaMismatch(
        f"{where} has the ledger schema {found}, which is newer than this version of dagster-idempotent knows "
        f"({wanted}). Install the version that upgraded it, or a later one.",
        found=found,
        wanted=wanted,
    )
