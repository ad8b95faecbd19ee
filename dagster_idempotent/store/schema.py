"""The schema's version: checked at start-up, upgraded by plain-SQL migrations under one lock."""

from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, pool

from dagster_idempotent.errors import SchemaMismatch
from dagster_idempotent.store.database import Database, describe

SCHEMA = "dagster_idempotent"
UPGRADE_COMMAND = "dagster-idempotent schema upgrade"
_MIGRATIONS = Path(__file__).parent / "migrations"
# Any fixed number will do: it must only be the same in every version of this library.
_MIGRATION_LOCK = 6_402_117_733_051


def wanted_version() -> str:
    """Return the schema version that this library is written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise SchemaMismatch("This installation has no migrations: reinstall dagster-idempotent.")
    return head


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
    return found is None or (found != wanted_version() and found in _known_versions())


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
    if found in _known_versions():
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


def upgrade(database: Database) -> str:
    """Create or upgrade the ledger schema; return its version. Two processes at once are safe."""
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database.url), poolclass=pool.NullPool
    )
    with engine.begin() as connection:
        plain = connection.execution_options(no_parameters=True)
        # Bound to this transaction, so that a connection pooler in between does no harm.
        plain.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        plain.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return wanted_version()


def upgrade_sql() -> str:
    """Return the SQL of the whole schema, for people who run such things themselves."""
    parts = sorted((_MIGRATIONS / "sql").glob("*.sql"), key=_position)
    texts = [f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};", *(part.read_text(encoding="utf-8") for part in parts)]
    version = (
        f"CREATE TABLE {SCHEMA}.alembic_version (version_num varchar(32) PRIMARY KEY);\n"
        f"INSERT INTO {SCHEMA}.alembic_version VALUES ('{wanted_version()}');"
    )
    return "\n".join(["BEGIN;", *texts, version, "COMMIT;"])


def _known_versions() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _position(path: Path) -> tuple[str, int]:
    number, part = path.stem.split("_", 1)
    order = ("tables", "triggers", "work", "sending")
    return number, order.index(part) if part in order else len(order)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
