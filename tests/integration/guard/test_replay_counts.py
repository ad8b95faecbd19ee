"""How often a stored answer stood in for another charge is counted, for people; nothing rests on it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.replays import count_replays
from dagster_idempotent.store import listing, replays

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


def test_replays_are_counted_with_what_they_saved(bench: "Bench") -> None:
    provider = bench.provider(cost_of=lambda _: Money.parse("0.02 USD"))
    for _ in range(2):
        work = bench.claim(bench.allocate())
        with work.renewed():
            calls = Calls(work, provider)
            for name in ("summary", "summary", "title"):
                calls.call(name, bench.request)
    (costs,) = bench.database.run(lambda c: listing.costs(c, by="period", period="2026-W32"))
    # One in the first run, which asked twice for it, and three in the second.
    assert (costs["charges"], costs["replays"], bench.charges) == (2, 4, 2)
    assert (str(costs["settled"]), str(costs["saved"])) == ("0.04", "0.08")
    assert bench.database.run(replays.total) == 4
    for by in ("task", "pipeline", "provider"):
        (row,) = bench.database.run(lambda c, by=by: listing.costs(c, by=by))
        assert (row["charges"], row["replays"], str(row["saved"])) == (2, 4, "0.08")


def test_replays_of_an_op_that_failed_are_counted_as_well(bench: "Bench") -> None:
    bench.call(bench.provider())
    work = bench.claim(bench.allocate())

    def fail_after_the_call() -> None:
        with work.renewed():
            Calls(work, bench.provider()).call("summary", bench.request)
            raise KeyError("in the middle of the op")

    with pytest.raises(KeyError):
        fail_after_the_call()
    assert bench.database.run(replays.total) == 1


def test_ops_that_count_the_same_replays_at_once_lose_none(bench: "Bench") -> None:
    provider = bench.provider()
    work = bench.claim(bench.allocate())
    with work.renewed():
        for number in range(20):
            Calls(work, provider).call(f"call-{number}", bench.request)
    replayed = [replace(result, replayed=True) for result in work.results]
    together = threading.Barrier(4)

    def count(seed: int) -> None:
        mixed = random.Random(seed).sample(replayed, len(replayed))  # noqa: S311 - an order, no secret
        together.wait(timeout=30)
        for _ in range(10):
            count_replays(bench.database, work.lease.pipeline, work.lease.task_id, mixed)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))
    assert bench.database.run(replays.total) == 4 * 10 * len(replayed)


def test_a_count_that_cannot_be_written_fails_nothing(bench: "Bench", caplog: pytest.LogCaptureFixture) -> None:
    first = bench.call(bench.provider())
    bench.sql.execute("ALTER TABLE dagster_idempotent.replays RENAME TO elsewhere")
    work = bench.claim(bench.allocate())
    with work.renewed():
        assert Calls(work, bench.provider()).call("summary", bench.request) == first.value
    assert "replays.not_counted" in caplog.messages
