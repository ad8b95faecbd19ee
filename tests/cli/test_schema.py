from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from alembic.script import ScriptDirectory
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from dagster_idempotent.store import schema, version

Run = Callable[..., Any]


@pytest.fixture
def empty_url(ledger_url: str) -> str:
    """Take the ledger's schema away: a database that holds no ledger."""
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA dagster_idempotent CASCADE")
    return ledger_url


def test_check_accepts_the_wanted_schema(cli: Run) -> None:
    done = cli("schema", "check", "--json")
    assert done.code == 0
    assert done.json() == {"found": version.wanted_version(), "wanted": version.wanted_version(), "ok": True}
    assert done.err == ""


@pytest.mark.usefixtures("empty_url")
def test_check_of_an_empty_database_names_the_command_that_mends_it(cli: Run) -> None:
    done = cli("schema", "check")
    assert done.code == 1
    assert "ok:     no" in done.out
    assert "dagster-idempotent schema upgrade" in done.err


@pytest.mark.usefixtures("empty_url")
def test_upgrade_creates_the_schema_once_and_a_dry_run_never(cli: Run) -> None:
    dry = cli("schema", "upgrade", "--dry-run", "--json")
    assert (dry.code, dry.json()["changed"]) == (0, False)
    assert cli("schema", "check").code == 1
    first = cli("schema", "upgrade", "--json")
    assert first.json() == {"from": None, "to": version.wanted_version(), "changed": True, "dry_run": False}
    second = cli("schema", "upgrade", "--json")
    assert (second.code, second.json()["changed"]) == (0, False)


def test_the_printed_sql_makes_the_schema_that_upgrade_makes(cli: Run, empty_url: str) -> None:
    text = cli("schema", "sql").out
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(text.encode())
    assert cli("schema", "check").code == 0


def test_a_role_without_rights_is_told_so_in_one_line(cli: Run, empty_url: str) -> None:
    parts = conninfo_to_dict(empty_url)
    role = f"nobody_{parts['dbname']}"
    with psycopg.connect(empty_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    try:
        done = cli("schema", "upgrade", "--url", f"postgresql:///?{urlencode(parts | {'user': role})}")
    finally:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    assert done.code == 1
    assert "permission denied" in done.err or "authentication failed" in done.err
    assert done.err.count("\n") == 1


def test_the_versions_are_those_of_alembic() -> None:
    scripts = ScriptDirectory(str(version.MIGRATIONS))
    assert version.known_versions() == sorted(script.revision for script in scripts.walk_revisions())
    assert version.wanted_version() == scripts.get_current_head()
    assert schema.upgrade_sql().count("BEGIN;") == 1


@pytest.mark.parametrize("url", ["nonsense", "mysql://root:hunter2@host/db", "postgresql://u:hunter2@h:p:p/db?x"])
def test_a_url_that_cannot_be_read_is_a_usage_error_that_hides_its_password(cli: Run, url: str) -> None:
    done = cli("schema", "check", "--url", url)
    assert done.code == 2
    assert "hunter2" not in done.out + done.err


def test_a_server_that_is_away_is_told_at_once_without_a_password(cli: Run) -> None:
    done = cli("schema", "check", "--url", "postgresql://u:hunter2@127.0.0.1:1/db")
    assert done.code == 1
    assert done.err.startswith("Error: PostgreSQL at 127.0.0.1/db cannot be reached")
    assert "hunter2" not in done.err
