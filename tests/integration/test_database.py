"""Connections: opened late, bounded, issued again after a fault, none shared with a fork."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagster_idempotent.errors import DatabaseUnavailable
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.testing.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]


@pytest.fixture
def proxy(ledger_url: str) -> Iterator[FaultProxy]:
    parts = conninfo_to_dict(ledger_url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    upstream = Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)
    with FaultProxy(upstream, protocol="postgres") as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: FaultProxy, ledger_url: str) -> Iterator[Database]:
    """Give a database behind the proxy."""
    database = Database(proxy.url_for(ledger_url))
    yield database
    database.close()


def one(connection: Connection) -> object:
    row = connection.execute("SELECT 1 AS one").fetchone()
    assert row is not None
    return row["one"]


def test_nothing_is_opened_before_the_first_statement(proxy: FaultProxy, behind: Database) -> None:
    assert proxy.counts.connections == 0
    behind.run(one)
    assert proxy.counts.connections == 1


def test_steps_in_a_row_share_one_connection(proxy: FaultProxy, behind: Database) -> None:
    for _ in range(10):
        behind.run(one)
    assert proxy.counts.connections == 1


def test_a_server_that_comes_back_serves_at_once(proxy: FaultProxy, behind: Database) -> None:
    behind.run(one)
    proxy.refuse()
    proxy.cut_all()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(behind.run, one)
        assert proxy.counts.connections == 1
        proxy.accept()
        assert waiting.result(timeout=20) == 1


def test_all_idle_connections_are_replaced_after_a_restart_of_the_server(proxy: FaultProxy, ledger_url: str) -> None:
    database = Database(proxy.url_for(ledger_url), max_connections=4, patience=timedelta(seconds=5))
    everybody = threading.Barrier(4)

    def together(connection: Connection) -> object:
        everybody.wait()
        return one(connection)

    with ThreadPoolExecutor() as pool:
        list(pool.map(database.run, [together] * 4))
    before = proxy.counts.connections
    proxy.cut_all()
    assert database.run(one) == 1
    assert proxy.counts.connections == before + 1
    database.close()


def test_a_server_that_stays_away_is_named_without_its_password(proxy: FaultProxy, ledger_url: str) -> None:
    proxy.refuse()
    url = make_conninfo(proxy.url_for(ledger_url), password="s3cr3t-password")  # noqa: S106 - it must not be shown
    database = Database(url, patience=timedelta(seconds=0.3))
    with pytest.raises(DatabaseUnavailable, match=r"(?s)did not serve us within.*refused") as caught:
        database.run(one)
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(DatabaseUnavailable):
        database.run(one, patience=timedelta(0))


def test_connections_that_stay_busy_are_named_as_the_reason(ledger_url: str) -> None:
    database = Database(ledger_url, max_connections=1, patience=timedelta(seconds=0.2))
    with database.transaction():
        with pytest.raises(DatabaseUnavailable, match="all 1 connections of this process stayed busy"):
            database.run(one)
        with pytest.raises(DatabaseUnavailable, match="stayed busy"), database.transaction():
            pass
    assert database.run(one) == 1
    database.close()


def test_an_error_of_a_statement_is_raised_once_and_leaves_the_connection_usable(
    proxy: FaultProxy, behind: Database
) -> None:
    issued: list[int] = []

    def wrong(connection: Connection) -> object:
        issued.append(1)
        return connection.execute("SELECT 1 / 0").fetchone()

    with pytest.raises(errors.DivisionByZero):
        behind.run(wrong)
    assert behind.run(one) == 1
    assert (issued, proxy.counts.connections) == ([1], 1)


def test_a_serialisation_failure_is_issued_again_a_bounded_number_of_times(ledger: Database) -> None:
    issued: list[int] = []

    def fails(connection: Connection) -> object:
        issued.append(1)
        return connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    with pytest.raises(errors.SerializationFailure):
        ledger.run(fails)
    assert len(issued) == 6


def test_a_transaction_cut_short_is_not_lent_again(ledger: Database, sql: Sql) -> None:
    def interrupted() -> None:
        with ledger.transaction() as connection:
            connection.execute("INSERT INTO dagster_idempotent.audit (actor, action, reason) VALUES ('a', 'b', 'c')")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ledger.run(one) == 1
    assert sql.execute("SELECT FROM dagster_idempotent.audit").rowcount == 0


def test_a_closed_database_opens_again_and_takes_back_what_was_lent(proxy: FaultProxy, behind: Database) -> None:
    with behind.transaction() as connection:
        behind.close()
        assert one(connection) == 1
    assert connection.closed
    assert behind.run(one) == 1
    assert proxy.counts.connections == 2


@pytest.mark.parametrize("setting", ["off", "local", "remote_write"])
def test_a_weaker_commit_than_on_is_not_accepted(ledger_url: str, sql: Sql, setting: str) -> None:
    sql.execute(f"ALTER DATABASE {sql.info.dbname} SET synchronous_commit = '{setting}'")  # pyright: ignore[reportArgumentType]
    database = Database(ledger_url)
    found = database.run(lambda c: c.execute("SHOW synchronous_commit").fetchone())
    assert found == {"synchronous_commit": "on"}
    database.close()


def test_a_stronger_commit_is_kept(ledger_url: str, sql: Sql) -> None:
    sql.execute(f"ALTER DATABASE {sql.info.dbname} SET synchronous_commit = 'remote_apply'")  # pyright: ignore[reportArgumentType]
    database = Database(ledger_url)
    found = database.run(lambda c: c.execute("SHOW synchronous_commit").fetchone())
    assert found == {"synchronous_commit": "remote_apply"}
    database.close()


def test_a_commit_whose_replication_was_given_up_is_not_built_upon(ledger: Database) -> None:
    # The text and code of PostgreSQL's own warning.
    warning = "DO $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication due to user request'; END $$"
    with pytest.raises(DatabaseUnavailable, match="synchronous standby"):
        ledger.run(lambda c: c.execute(warning))
    assert ledger.run(one) == 1


def test_a_fork_has_connections_of_its_own_and_leaves_those_of_its_parent(crew: "Crew", ledger_url: str) -> None:
    (worker,) = crew.connected(1, url=ledger_url)
    found = worker.ask("query_in_fork_too")
    assert found["child"] != found["before"]
    assert found["after"] == found["before"]
