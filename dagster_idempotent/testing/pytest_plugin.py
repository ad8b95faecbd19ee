"""Fixtures for a project that tests its pipelines against a real PostgreSQL and a provider with its own bill."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from dagster_idempotent import embedded
from dagster_idempotent.embedded.urls import with_database
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

_STRATEGIES_SINCE = 15_00_00
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a server: the one of DAGSTER_IDEMPOTENT_POSTGRES_URL, else one of our own that ends with the session."""
    if os.environ.get("DAGSTER_IDEMPOTENT_POSTGRES_URL"):
        yield embedded.resolve_url()
        return
    folder = tmp_path_factory.mktemp("postgres")
    # Nothing outlives the session, so nothing has to survive a power cut.
    server = embedded.start(folder, durable=False)
    try:
        yield server.url
    finally:
        embedded.remove(folder)


@pytest.fixture(scope="session")
def ledger_template(postgres_url: str) -> Iterator[str]:
    """Name a database that holds an empty ledger; each test gets a copy of it."""
    name = f"ledger_template_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        database = Database(with_database(postgres_url, name))
        schema.upgrade(database)
        database.close()
        yield name
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def ledger_url(postgres_url: str, ledger_template: str) -> Iterator[str]:
    """Give the URL of a ledger of the test's own."""
    name = f"ledger_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}" + _strategy(admin))
        admin.execute(copy.format(sql.Identifier(name), sql.Identifier(ledger_template)))
        yield with_database(postgres_url, name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Database]:
    """Give a ledger of the test's own, open."""
    database = Database(ledger_url)
    yield database
    database.close()


@pytest.fixture
def metered_provider(tmp_path: Path) -> Iterator[MeteredProvider]:
    """Start a metered provider with an empty bill; it ends with the test."""
    with MeteredProvider.start(tmp_path / "metered_provider") as provider:
        yield provider


def _strategy(admin: psycopg.Connection) -> LiteralString:
    """Return how to copy a database: where nothing is flushed to disk, as files, which takes half the time."""
    row = admin.execute("SELECT current_setting('fsync'), current_setting('server_version_num')::int").fetchone()
    return " STRATEGY FILE_COPY" if row is not None and row[0] == "off" and row[1] >= _STRATEGIES_SINCE else ""
