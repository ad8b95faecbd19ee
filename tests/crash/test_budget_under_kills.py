"""64 concurrent calls against a budget for 10: exactly 10 are paid, and the ledger is the provider's bill (R18).

Sixteen processes make four calls each, at once. A proxy in front of PostgreSQL, or of the provider, kills processes at
random messages; then new runs go on until nothing is left that the budget allows.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dagster_idempotent.engine.verify import verify
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.fault_proxy import Direction, FaultProxy, When
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew, WorkerHandle

Sql = psycopg.Connection[dict[str, Any]]
Until = Callable[..., object]
PROCESSES, CALLS, AFFORDABLE = 16, 4, 10
PIPELINE = {
    "lease": "10s",
    "sender_lease": "2s",
    "send_window": "1900ms",
    "max_attempts": 200,
    "per_pipeline": f"{AFFORDABLE} USD",
}
# Whoever has been held for the budget is let go by an operator; here with the stroke that the command makes.
RELEASE = """UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL,
    lease_expires_at = NULL, fencing_token = fencing_token + 1 WHERE status = 'held'"""
OPEN = "SELECT FROM dagster_idempotent.submissions WHERE state IN ('intended', 'in_doubt', 'accepted')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A ledger, a provider that charges 1 USD a call, and a way to start processes."""

    crew: "Crew"
    url: str
    sql: Sql
    metered: MeteredProvider
    until: Until
    gone: type[Exception]

    def survive(self, chance: random.Random) -> None:
        """Let six processes die somewhere, then let new runs do what is left."""
        with proxies(self.url, self.metered) as (database, provider):
            host, port = provider.address
            told = settings(database.url_for(self.url), f"http://{host}:{port}/v1")
            workers = self.crew.connected(PROCESSES, **told)
            for number, worker in enumerate(workers):
                claim(worker, number, "first")
            # The first strike is early, so that there is one in every run.
            for victim, latest in zip(chance.sample(workers, 6), (60, *[1200] * 5), strict=True):
                proxy, reach = chance.choice([(database, latest), (provider, min(latest, 2 * AFFORDABLE))])
                direction = chance.choice(list(Direction))
                seen = getattr(proxy.counts, str(direction))
                proxy.at(
                    seen + chance.randint(1, reach),
                    action=partial(os.kill, victim.pid, signal.SIGKILL),
                    direction=direction,
                    when=chance.choice(list(When)),
                )
            for worker in workers:
                worker.tell("map", items=CALLS, concurrency=CALLS)
            assert False in {number: lives(worker, self.gone) for number, worker in enumerate(workers)}.values()
        assert self.metered.charges <= AFFORDABLE
        self.go_on()
        assert self.metered.charges == AFFORDABLE
        self.check()

    def go_on(self) -> None:
        """Start further runs, round after round, until nothing is in doubt and the budget lets nobody go on."""
        workers = [self.crew.worker(**settings(self.url, self.metered.base_url)) for _ in range(PROCESSES)]
        rounds = iter(range(1000))

        def settled() -> bool:
            self.sql.execute(RELEASE)
            ended = [run(worker, number, f"again-{next(rounds)}") for number, worker in enumerate(workers)]
            return not self.sql.execute(OPEN).rowcount and all(ended)

        self.until(settled, patience=60)

    def check(self) -> None:
        """The ledger's totals are the bill's, its counters are its records, and nothing else is wrong with it."""
        bill = self.metered.bill()
        query = "SELECT reserved, settled FROM dagster_idempotent.budgets WHERE scope = 'pipeline'"
        assert self.sql.execute(query).fetchone() == {"reserved": Decimal(0), "settled": bill.total}
        answered = self.sql.execute(
            "SELECT idempotency_key AS key FROM dagster_idempotent.submissions WHERE state = 'succeeded'"
        ).fetchall()
        assert sorted(row["key"] for row in answered) == sorted(str(line.client_reference) for line in bill.lines)
        database = Database(self.url)
        assert verify(database).findings == []
        database.close()


@pytest.fixture
def place(  # noqa: PLR0917 - fixtures
    crew: "Crew", ledger_url: str, sql: Sql, until: Until, worker_gone: type[Exception], tmp_path: Path
) -> Iterator[Place]:
    with MeteredProvider.start(tmp_path / "provider", price="1") as metered:
        yield Place(crew=crew, url=ledger_url, sql=sql, metered=metered, until=until, gone=worker_gone)


def test_of_64_calls_in_16_processes_exactly_10_are_sent(place: Place) -> None:
    workers = place.crew.connected(PROCESSES, **settings(place.url, place.metered.base_url))
    for number, worker in enumerate(workers):
        claim(worker, number, "first")
    answers = place.crew.at_once(workers, "map", [{"items": CALLS, "concurrency": CALLS}] * PROCESSES)
    assert {answer["error"] for answer in answers if "error" in answer} == {"CallsUnfinished"}
    assert place.metered.charges == len(place.metered.requests()) == AFFORDABLE
    place.check()


@pytest.mark.parametrize("seed", range(2))
def test_after_kills_at_random_points_the_ledger_is_the_bill(place: Place, seed: int) -> None:
    place.survive(random.Random(seed))  # noqa: S311 - a place to strike


@pytest.mark.explore
@pytest.mark.parametrize("seed", range(2, 40))
def test_after_kills_at_many_random_points_the_ledger_is_the_bill(place: Place, seed: int) -> None:
    place.survive(random.Random(seed))  # noqa: S311 - a place to strike


def run(worker: "WorkerHandle", number: int, owner: str) -> bool:
    """Run a task again; return whether it has every answer, or was refused by the budget."""
    if (answer := claim(worker, number, owner)) is None:
        worker.tell("map", items=CALLS, concurrency=CALLS)
        answer = worker.answer()
    if "value" in answer:
        return True
    assert answer["error"] in {"LeaseBusy", "CallsUnfinished", "TaskHeld"}, answer
    return answer["error"] == "CallsUnfinished" and "budget of pipeline" in answer["text"]


def claim(worker: "WorkerHandle", number: int, owner: str) -> dict[str, Any] | None:
    """Claim the task of a number for a run of its own; return why that did not work."""
    task_id = worker.ask("allocate", subject=f"tenant-{number}")
    worker.tell("claim", task_id=task_id, owner=f"{owner}-{number}", finished=["*"])
    answer = worker.answer()
    return answer if "error" in answer else None


def lives(worker: "WorkerHandle", worker_gone: type[Exception]) -> bool:
    """Wait for the worker's answer; return whether it came."""
    with suppress(worker_gone):
        worker.answer()
        return True
    return False


def settings(url: str, base_url: str) -> dict[str, Any]:
    provider = {
        "base_url": base_url,
        "api_key_variable": "K",
        "look_up_path": "/lookup",
        "settle_delay": 0.3,
        "upper_bound": "1 USD",
    }
    return {"url": url, "pipeline": PIPELINE, "provider": provider, "environment": {"K": "k"}}


@contextmanager
def proxies(url: str, metered: MeteredProvider) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    parts = conninfo_to_dict(url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    upstream = Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)
    with ExitStack() as stack:
        database = stack.enter_context(FaultProxy(upstream, protocol="postgres"))
        yield database, stack.enter_context(FaultProxy(urlsplit(metered.base_url).netloc))
