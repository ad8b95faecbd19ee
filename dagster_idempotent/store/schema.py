"""The schema: upgraded by plain-SQL migrations under one lock; its version is read in `store.version`."""

from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, pool

from dagster_idempotent.store.database import Database
from dagster_idempotent.store.version import (
    MIGRATIONS,
    UPGRADE_COMMAND,
    check,
    found_version,
    is_behind,
    wanted_version,
)

__all__ = [
    "SCHEMA",
    "UPGRADE_COMMAND",
    "check",
    "found_version",
    "is_behind",
    "upgrade",
    "upgrade_sql",
    "wanted_version",
]

SCHEMA = "dagster_idempotent"
# The parts of each migration in the order in which they run.
_PARTS = {
    "0001": ("tables", "triggers", "work", "sending"),
    "0002": ("tables", "calls", "tasks", "money", "retention"),
    "0003": ("outbox",),
    "0004": ("legacy",),
    "0005": ("last_owner",),
    "0006": ("effects",),
    "0007": ("remote_jobs",),
    "0008": ("sightings",),
    "0009": ("replays",),
    "0010": ("overdue_jobs",),
}
# Any fixed number will do: it must only be the same in every version of this library.
_MIGRATION_LOCK = 6_402_117_733_051


def upgrade(database: Database) -> str:
    """Create or upgrade the ledger schema; return its version. Two processes at once are safe."""
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(database.url),
        poolclass=pool.NullPool,
        # The second of two upgrades has to see what the first one committed while it waited for the lock.
        isolation_level="READ COMMITTED",
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
    parts = sorted((MIGRATIONS / "sql").glob("*.sql"), key=_position)
    texts = [f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};", *(part.read_text(encoding="utf-8") for part in parts)]
    version = (
        f"CREATE TABLE {SCHEMA}.alembic_version (version_num varchar(32) PRIMARY KEY);\n"
        f"INSERT INTO {SCHEMA}.alembic_version VALUES ('{wanted_version()}');"
    )
    return "\n".join(["BEGIN;", *texts, version, "COMMIT;"])


def _position(path: Path) -> tuple[str, int]:
    number, part = path.stem.split("_", 1)
    return number, _PARTS[number].index(part)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
