"""The schema is made and upgraded, by several processes at once, under any default isolation."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagster_idempotent.errors import SchemaMismatch
from dagster_idempotent.store import schema, version
from dagster_idempotent.store.database import Database

if TYPE_CHECKING:
    from tests.conftest import Crew
from tests.integration.schema.conftest import Sql

UPGRADE = """
import sys
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database
sys.stdin.readline()
print(schema.upgrade(Database(sys.argv[1])))
"""


class TestUpgrade:
    @pytest.fixture
    def empty_url(self, postgres_url: str, ledger_url: str) -> Iterator[str]:
        """Give a database without a ledger."""
        name = conninfo_to_dict(ledger_url)["dbname"] + "_empty"
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(psql.SQL("CREATE DATABASE {}").format(psql.Identifier(name)))
            yield make_conninfo("", **(conninfo_to_dict(postgres_url) | {"dbname": name}))
            admin.execute(psql.SQL("DROP DATABASE {} WITH (FORCE)").format(psql.Identifier(name)))

    @pytest.mark.parametrize("isolation", ["read committed", "serializable"])
    def test_two_processes_upgrade_at_once(self, empty_url: str, isolation: str) -> None:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            default = psql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
            admin.execute(default.format(psql.Identifier(admin.info.dbname), psql.Literal(isolation)))
            # Both wait for this lock, then go at once.
            admin.execute("BEGIN")
            admin.execute("SELECT pg_advisory_xact_lock(%s)", [schema._MIGRATION_LOCK])
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", UPGRADE, empty_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                for _ in range(2)
            ]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            self._wait_for_waiters(empty_url, len(processes))
            admin.execute("COMMIT")
        outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
        assert outputs == [schema.wanted_version()] * 2
        database = Database(empty_url)
        schema.check(database)
        database.close()

    def test_the_written_sql_makes_the_same_schema(self, empty_url: str, ledger_url: str) -> None:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            admin.execute(schema.upgrade_sql())  # pyright: ignore[reportArgumentType]
        database = Database(empty_url)
        schema.check(database)
        database.close()
        assert self._objects(empty_url) == self._objects(ledger_url)

    def test_a_database_without_a_ledger_is_refused_and_left_empty(self, empty_url: str) -> None:
        database = Database(empty_url)
        with pytest.raises(SchemaMismatch, match=r"holds no ledger.*dagster-idempotent schema upgrade") as caught:
            schema.check(database)
        database.close()
        assert caught.value.facts == {"found": None, "wanted": schema.wanted_version()}
        assert self._objects(empty_url) == []

    def test_an_old_schema_names_the_command(self, ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(version, "wanted_version", lambda: "9999")
        with pytest.raises(
            SchemaMismatch, match=r"has the ledger schema \d+.*wants 9999.*dagster-idempotent schema upgrade"
        ):
            schema.check(ledger)

    def test_a_newer_schema_names_the_remedy(self, ledger: Database, sql: Sql) -> None:
        sql.execute("UPDATE dagster_idempotent.alembic_version SET version_num = '9999'")
        with pytest.raises(SchemaMismatch, match=r"schema 9999, which is newer.*Install the version"):
            schema.check(ledger)

    def test_no_text_about_the_schema_holds_the_password(self, ledger_url: str, sql: Sql) -> None:
        sql.execute("UPDATE dagster_idempotent.alembic_version SET version_num = '9999'")
        database = Database(make_conninfo(ledger_url, password="s3cr3t-password"))  # noqa: S106 - it must not be shown
        with pytest.raises(SchemaMismatch) as caught:
            schema.check(database)
        database.close()
        assert "s3cr3t" not in str(caught.value)

    def _objects(self, url: str) -> list[tuple[str, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(
                """SELECT 'column', table_name, column_name, data_type, is_nullable, column_default
                FROM information_schema.columns WHERE table_schema = 'dagster_idempotent'
                UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
                FROM pg_constraint WHERE connamespace = to_regnamespace('dagster_idempotent')
                    AND conrelid::regclass::text NOT LIKE '%alembic%'
                UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes
                WHERE schemaname = 'dagster_idempotent' AND tablename <> 'alembic_version'
                UNION ALL SELECT 'function', proname, prosrc, '', '', '' FROM pg_proc
                WHERE pronamespace = to_regnamespace('dagster_idempotent')
                UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid), '', ''
                FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
                WHERE NOT tgisinternal AND c.relnamespace = to_regnamespace('dagster_idempotent')
                ORDER BY 1, 2, 3, 4"""
            ).fetchall()

    def _wait_for_waiters(self, url: str, number: int) -> None:
        with psycopg.connect(url, autocommit=True) as watcher:
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            deadline = datetime.now(UTC) + timedelta(seconds=60)
            while watcher.execute(query).fetchone() != (number,):
                assert datetime.now(UTC) < deadline
                watcher.execute("SELECT pg_stat_clear_snapshot()")


class TestIsolation:
    def test_allocation_is_right_where_the_server_defaults_to_serializable(
        self, postgres_url: str, ledger_url: str, crew: "Crew"
    ) -> None:
        name = conninfo_to_dict(ledger_url)["dbname"]
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            default = psql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'")
            admin.execute(default.format(psql.Identifier(name)))
        workers = crew.connected(16, url=ledger_url)
        for month in (1, 2, 3):
            instant = f"2026-{month:02}-12T00:00:00+00:00"
            orders = [{"subject": f"tenant-{n // 2}", "scheduled_at": instant} for n in range(16)]
            answers = crew.at_once(workers, "allocate", orders)
            assert [json.dumps(answer) for answer in answers if "error" in answer] == []
            numbers = [int(answer["value"].rpartition("-")[2]) for answer in answers]
            assert sorted(numbers) == sorted([*range(8), *range(8)])
