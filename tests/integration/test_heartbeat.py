"""Leases and senders are renewed on a connection of their own, as long as they are needed (R27)."""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import CallInProgress, LeaseBusy, LeaseLost
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "summarise"}]}


class Digest(BaseModel):
    title: str


SHORT = Pipeline("weekly_digest", output=Digest, lease="1s", sender_lease="1s", send_window="900ms")
IDENTITY = Identity(pipeline="weekly_digest", scheduled_at=datetime(2026, 8, 3, tzinfo=UTC))


@pytest.fixture
def provider(metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> ChatCompletionsProvider:
    monkeypatch.setenv("K", "k")
    return ChatCompletionsProvider(
        base_url=metered_provider.base_url, api_key_variable="K", look_up_path="/lookup", settle_delay=timedelta(0)
    )


def begin(database: Database, owner: str = "run") -> Work:
    task = Allocator(database).allocate(SHORT, IDENTITY)
    return claim(
        database, Heartbeat(database), SHORT, task.task_id, Owner(owner), is_finished=lambda owner: owner == "over"
    )


def expiry(sql: Sql, table: str = "tasks", column: str = "lease_expires_at") -> datetime:
    row = sql.execute(f"SELECT {column} AS e FROM dagster_idempotent.{table}").fetchone()  # noqa: S608 - a test's own text # pyright: ignore[reportArgumentType]
    assert row is not None
    return row["e"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name]


def proxy_to(ledger_url: str) -> FaultProxy:
    parts = conninfo_to_dict(ledger_url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    return FaultProxy(Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port), protocol="postgres")


def test_a_lease_is_renewed_while_the_block_runs_and_the_thread_ends_with_it(
    ledger: Database, sql: Sql, until: Until
) -> None:
    work = begin(ledger)
    first = expiry(sql)
    with work.renewed():
        until(lambda: expiry(sql) > first)
        until(lambda: expiry(sql) > first + SHORT.lease)
        assert threads()
    assert threads() == []
    last = expiry(sql)
    until(lambda: sql.execute("SELECT FROM dagster_idempotent.tasks WHERE lease_expires_at < now()").rowcount)
    assert expiry(sql) == last


def test_one_thread_serves_all_leases_of_a_process(ledger: Database) -> None:
    heartbeat = Heartbeat(ledger)
    leases = []
    for number in range(3):
        identity = Identity(pipeline="weekly_digest", explicit_key=f"key-{number}")
        task = Allocator(ledger).allocate(SHORT, identity)
        leases.append(claim(ledger, heartbeat, SHORT, task.task_id, Owner("run"), is_finished=lambda _: False))
    with leases[0].renewed():
        with leases[1].renewed(), leases[2].renewed():
            assert len(threads()) == 1
        assert len(threads()) == 1
    assert threads() == []
    with leases[0].renewed():
        assert len(threads()) == 1
    assert threads() == []


def test_it_renews_while_every_pooled_connection_is_busy(ledger_url: str, sql: Sql, until: Until) -> None:
    database = Database(ledger_url, max_connections=1)
    work = begin(database)
    first = expiry(sql)
    with work.renewed(), database.transaction():
        until(lambda: expiry(sql) > first + timedelta(seconds=1))
    database.close()


def test_it_goes_on_after_a_cut_connection_and_a_server_that_was_away(ledger_url: str, sql: Sql, until: Until) -> None:
    with proxy_to(ledger_url) as proxy:
        database = Database(proxy.url_for(ledger_url))
        work = begin(database)
        with work.renewed() as held:
            first = expiry(sql)
            until(lambda: expiry(sql) > first)
            proxy.cut_all()
            second = expiry(sql)
            until(lambda: expiry(sql) > second)
            proxy.refuse()
            proxy.cut_all()
            third = expiry(sql)
            # Nobody took the task while the lease was over, so it is still ours when the server is there again.
            until(lambda: sql.execute("SELECT FROM dagster_idempotent.tasks WHERE lease_expires_at < now()").rowcount)
            proxy.accept()
            until(lambda: expiry(sql) > third)
            held.check_lease()
        database.close()


def test_a_lost_lease_is_noticed_and_named(ledger: Database, ledger_url: str, sql: Sql, until: Until) -> None:
    work = begin(ledger, "over")
    with work.renewed() as held:
        other = Database(ledger_url)
        begin(other, "another run")
        assert held.beat is not None
        beat = held.beat
        until(lambda: beat.lost)
        with pytest.raises(LeaseLost, match="Dagster run another run"):
            held.check_lease()
        taken = expiry(sql)
        assert taken is not None
        other.close()


def test_a_locked_task_row_does_not_hold_up_the_senders(
    ledger: Database, sql: Sql, metered_provider: MeteredProvider, provider: ChatCompletionsProvider, until: Until
) -> None:
    work = begin(ledger)
    metered_provider.fault("hold")

    def call() -> None:
        with work.renewed():
            Guard(work, provider).call(CallKey("summary"), REQUEST)

    with ThreadPoolExecutor() as pool:
        calling = pool.submit(call)
        metered_provider.wait_held(1)
        with psycopg.connect(ledger.url) as locker:
            locker.execute("SELECT FROM dagster_idempotent.tasks FOR UPDATE")
            first = expiry(sql, "submissions", "sender_expires_at")
            until(lambda: expiry(sql, "submissions", "sender_expires_at") > first + 2 * SHORT.sender_lease)
            locker.rollback()
        metered_provider.release()
        calling.result()


def test_a_call_eight_times_as_long_as_the_lease_is_never_taken_over(
    ledger: Database, sql: Sql, metered_provider: MeteredProvider, provider: ChatCompletionsProvider, until: Until
) -> None:
    work = begin(ledger)
    metered_provider.fault("hold")

    def call() -> bool:
        with work.renewed():
            return Guard(work, provider).call(CallKey("summary"), REQUEST).replayed

    other = Database(ledger.url)
    begun = sql.execute("SELECT clock_timestamp() AS t").fetchone()
    assert begun is not None
    refused: list[str] = []

    def intrude() -> bool:
        """Try to take the task over and to make the call, as a new run and as an orphan of the same run."""
        with pytest.raises(LeaseBusy) as busy:
            claim(
                other,
                Heartbeat(other),
                SHORT,
                work.task.task_id,
                Owner("new"),
                is_finished=lambda _: False,
                providers=[provider],
            )
        with pytest.raises(CallInProgress):
            Guard(work, provider).call(CallKey("summary"), REQUEST)
        refused.append(str(busy.value))
        now = sql.execute("SELECT clock_timestamp() AS t").fetchone()
        assert now is not None
        assert begun is not None
        return now["t"] - begun["t"] > 8 * SHORT.lease

    with ThreadPoolExecutor() as pool:
        calling = pool.submit(call)
        metered_provider.wait_held(1)
        until(intrude)
        metered_provider.release()
        assert calling.result() is False
    other.close()
    assert len(refused) > 8
    row = sql.execute("SELECT owner, attempts FROM dagster_idempotent.tasks").fetchone()
    assert row == {"owner": "run", "attempts": 1}
    assert metered_provider.charges == 1


def test_a_fork_renews_nothing_of_its_parent(crew: "Crew", ledger_url: str, sql: Sql, until: Until) -> None:
    settings = {"lease": "2s", "sender_lease": "1s", "send_window": "900ms"}
    (worker,) = crew.connected(1, url=ledger_url, pipeline=settings)
    parents, childs = (worker.ask("allocate", subject=subject) for subject in ("parent", "child"))
    worker.ask("claim", task_id=parents, owner="run")
    child = worker.ask("renew_in_child_too", task_id=childs, own="child")
    try:
        worker.kill()
        live = "SELECT FROM dagster_idempotent.tasks WHERE task_id = %s AND lease_expires_at > clock_timestamp()"
        until(lambda: not sql.execute(live, [parents]).rowcount)
        assert sql.execute(live, [childs]).rowcount == 1
    finally:
        os.kill(child, signal.SIGKILL)
