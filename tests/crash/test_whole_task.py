"""A worker dies, or loses a reply, at every message of a whole task: the provider charges once (R12-R16, R23, R32).

The oracle is the provider's own bill. The faults come from a proxy between the worker and PostgreSQL, or between the
worker and the provider; then new Dagster runs go on until the task is done.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from dagster_idempotent.testing.fault_proxy import Direction, FaultProxy, When
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.crash.conftest import finish, ledger_and_provider, server_of

if TYPE_CHECKING:
    from tests.conftest import Crew, WorkerHandle

Sql = psycopg.Connection[dict[str, Any]]
# Short, so that a run after a crash need not wait long for the dead sender.
PIPELINE = {"lease": "10s", "sender_lease": "1s", "send_window": "900ms", "max_attempts": 50}
SETTLE_DELAY = 0.5
ATTEMPTS = 200
# More messages than a whole task has in one direction: an explored number beyond the last one is a run without a fault.
MESSAGES = 150
SPREAD = range(1, MESSAGES, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One ledger and one provider; each task in it is a subject of its own."""

    crew: "Crew"
    provider: MeteredProvider
    url: str
    sql: Sql
    folder: Path

    def worker(self, *, url: str | None = None, base_url: str | None = None, **provider: object) -> "WorkerHandle":
        """Start a worker whose ways to PostgreSQL and to the provider may lead through a proxy."""
        return self.crew.worker(
            url=url or self.url,
            pipeline=PIPELINE,
            provider={
                "base_url": base_url or self.provider.base_url,
                "api_key_variable": "K",
                "look_up_path": "/lookup",
                "settle_delay": SETTLE_DELAY,
                **provider,
            },
            environment={"K": "k"},
            folder=str(self.folder),
        )

    def finish(self, subject: str, **provider: object) -> str:
        """Start Dagster runs, one after the other, until one has done the task; return its id."""
        waits = {"LeaseBusy", "CallInDoubt", "CallInProgress", "CallNotSent"}
        return finish(self.worker(**provider), subject, attempts=ATTEMPTS, waits=waits)

    def check(self, task_id: str, charged_before: int) -> None:
        """One charge, one accepted output, one delivered file; counters and records agree."""
        assert self.provider.charges - charged_before == 1
        task = self.sql.execute("SELECT * FROM dagster_idempotent.tasks WHERE task_id = %s", [task_id]).fetchone()
        assert task is not None
        assert task["status"] == "completed"
        calls = self.sql.execute(
            "SELECT state FROM dagster_idempotent.submissions WHERE task_id = %s ORDER BY submission", [task_id]
        ).fetchall()
        assert [call["state"] for call in calls] == ["not_sent"] * (len(calls) - 1) + ["succeeded"]
        outbox = self.sql.execute("SELECT state FROM dagster_idempotent.outbox WHERE task_id = %s", [task_id])
        assert [message["state"] for message in outbox] == ["delivered"]
        files = list((self.folder / "weekly_digest").glob(f"{task_id}.*"))
        assert [file.read_text() for file in files] == [self._output(task_id)]

    def _output(self, task_id: str) -> str:
        row = self.sql.execute(
            "SELECT output::text AS o FROM dagster_idempotent.tasks WHERE task_id = %s", [task_id]
        ).fetchone()
        assert row is not None
        return row["o"]


@pytest.fixture
def world(crew: "Crew", shared: dict[str, Any]) -> World:
    return World(crew=crew, **shared)


@pytest.fixture(scope="module")
def shared(
    postgres_url: str, ledger_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("world")
    with ledger_and_provider(postgres_url, ledger_template, "crash", folder) as given:
        yield given | {"folder": folder / "delivered"}


@pytest.fixture
def database_proxy(world: World) -> Iterator[Callable[[], FaultProxy]]:
    """Give a way to start proxies in front of PostgreSQL; each counts from 1."""
    upstream = server_of(world.url)
    started: list[FaultProxy] = []

    def start() -> FaultProxy:
        proxy = FaultProxy(upstream, protocol="postgres")
        proxy.start()
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        proxy.close()


@pytest.fixture
def provider_proxy(world: World) -> Iterator[Callable[[], FaultProxy]]:
    """Give a way to start proxies in front of the provider."""
    started: list[FaultProxy] = []

    def start() -> FaultProxy:
        proxy = FaultProxy(urlsplit(world.provider.base_url).netloc)
        proxy.start()
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        proxy.close()


def base_url(proxy: FaultProxy) -> str:
    host, port = proxy.address
    return f"http://{host}:{port}/v1"


def kill(worker: "WorkerHandle", proxy: FaultProxy) -> Callable[[], None]:
    def strike() -> None:
        os.kill(worker.pid, signal.SIGKILL)
        proxy.cut_all()

    return strike


def run_to_its_end(worker: "WorkerHandle", subject: str) -> None:
    """Run a task in a worker that may be killed meanwhile."""
    with suppress(Exception):
        worker.tell("whole_task", subject=subject, owner=f"{subject}-first")
        worker.answer()


def survive_kill_at_database_message(
    world: World, proxies: Callable[[], FaultProxy], n: int, direction: Direction, when: When
) -> None:
    proxy = proxies()
    worker = world.worker(url=proxy.url_for(world.url))
    subject = f"{direction}-{when}-{n}"
    before = world.provider.charges
    proxy.at(n, action=kill(worker, proxy), direction=direction, when=when)
    run_to_its_end(worker, subject)
    world.check(world.finish(subject), before)
    proxy.close()


def survive_lost_reply_at_database_message(world: World, proxies: Callable[[], FaultProxy], n: int) -> None:
    proxy = proxies()
    worker = world.worker(url=proxy.url_for(world.url))
    subject = f"lost-{n}"
    before = world.provider.charges
    proxy.at(n, action=proxy.cut_all, when=When.AFTER)
    run_to_its_end(worker, subject)
    world.check(world.finish(subject), before)
    worker.kill()
    proxy.close()


@pytest.mark.parametrize("n", SPREAD)
def test_a_kill_at_a_message_to_the_database(world: World, database_proxy: Callable[[], FaultProxy], n: int) -> None:
    for when in When:
        survive_kill_at_database_message(world, database_proxy, n, Direction.TO_UPSTREAM, when)


@pytest.mark.parametrize("n", SPREAD)
def test_a_lost_reply_to_a_message(world: World, database_proxy: Callable[[], FaultProxy], n: int) -> None:
    survive_lost_reply_at_database_message(world, database_proxy, n)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("n", [1, 2])
def test_a_kill_at_a_message_of_the_provider(
    world: World, provider_proxy: Callable[[], FaultProxy], n: int, direction: Direction, when: When
) -> None:
    proxy = provider_proxy()
    worker = world.worker(base_url=base_url(proxy))
    subject = f"provider-kill-{direction}-{when}-{n}"
    before = world.provider.charges
    proxy.at(n, action=kill(worker, proxy), direction=direction, when=when)
    run_to_its_end(worker, subject)
    world.check(world.finish(subject), before)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("n", [1, 2])
def test_a_cut_at_a_message_of_the_provider(
    world: World, provider_proxy: Callable[[], FaultProxy], n: int, direction: Direction, when: When
) -> None:
    proxy = provider_proxy()
    worker = world.worker(base_url=base_url(proxy))
    subject = f"provider-cut-{direction}-{when}-{n}"
    before = world.provider.charges
    proxy.at(n, action=proxy.cut_all, direction=direction, when=when)
    run_to_its_end(worker, subject)
    world.check(world.finish(subject), before)


HONOURS_KEYS = {"look_up_path": None, "key_window": 3600}


def survive_fault_in_a_resend(world: World, proxies: Callable[[], FaultProxy], n: int, *, killed: bool) -> None:
    """A run loses the answer; the next one, under the fault, sends the same key again to a provider without look-up."""
    subject = f"resend-{n}-{killed}"
    before = world.provider.charges
    world.provider.configure(deduplicate=True)
    world.provider.fault("accept_then_drop")
    first = world.worker(**HONOURS_KEYS)
    # On a busy machine the send window may end before the first byte: then nothing left, and the next try sends.
    while first.refused("whole_task", subject=subject, owner=f"{subject}-lost")["error"] != "CallInDoubt":
        assert world.provider.charges == before
    proxy = proxies()
    worker = world.worker(url=proxy.url_for(world.url), **HONOURS_KEYS)
    proxy.at(n, action=kill(worker, proxy) if killed else proxy.cut_all, when=When.AFTER)
    with suppress(Exception):
        worker.tell("whole_task", subject=subject, owner=f"{subject}-first", finished=["*"])
        worker.answer()
    world.check(world.finish(subject, **HONOURS_KEYS), before)
    world.provider.configure(deduplicate=False)
    proxy.close()


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "reply lost"])
@pytest.mark.parametrize("n", range(5, MESSAGES, 25))
def test_a_fault_in_a_resend_under_the_same_key(
    world: World, database_proxy: Callable[[], FaultProxy], n: int, *, killed: bool
) -> None:
    survive_fault_in_a_resend(world, database_proxy, n, killed=killed)


@pytest.mark.explore
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "reply lost"])
@pytest.mark.parametrize("n", range(1, MESSAGES))
def test_a_fault_at_every_message_of_a_resend(
    world: World, database_proxy: Callable[[], FaultProxy], n: int, *, killed: bool
) -> None:
    survive_fault_in_a_resend(world, database_proxy, n, killed=killed)


@pytest.mark.explore
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("n", range(1, MESSAGES))
def test_a_kill_at_every_message_of_the_database(
    world: World, database_proxy: Callable[[], FaultProxy], n: int, direction: Direction, when: When
) -> None:
    survive_kill_at_database_message(world, database_proxy, n, direction, when)


@pytest.mark.explore
@pytest.mark.parametrize("n", range(1, MESSAGES))
def test_a_lost_reply_to_every_message(world: World, database_proxy: Callable[[], FaultProxy], n: int) -> None:
    survive_lost_reply_at_database_message(world, database_proxy, n)


def test_a_whole_task_has_fewer_messages_than_are_explored(
    world: World, database_proxy: Callable[[], FaultProxy]
) -> None:
    proxy = database_proxy()
    # With leases so long that no heartbeat adds messages of its own.
    unhurried = {**PIPELINE, "sender_lease": "10m", "lease": "1h"}
    worker = world.worker(url=proxy.url_for(world.url))
    worker.ask("whole_task", subject="unhurried", owner="run", pipeline=unhurried)
    assert 50 < proxy.counts.to_upstream < MESSAGES
    assert 50 < proxy.counts.to_client < MESSAGES
