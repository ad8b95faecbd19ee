"""A run may let go of a job that takes long: it uses no attempt, loses nothing, and people are told in time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.errors import (
    LeaseLost,
    RemoteJobFailed,
    RemoteJobUnfinished,
    TaskClosed,
)
from dagster_idempotent.providers.protocol import expected_within
from dagster_idempotent.store import listing

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

PROMPT: dict[str, object] = {"prompt": "a forest"}
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_spent_budget_fails_nothing_and_the_next_run_goes_on_with_the_same_job(bench: "Bench") -> None:
    job = bench.unfinished()
    assert bench.states() == ["accepted"]
    assert bench.task()["status"] == "running"
    bench.driven("succeeded")
    result = bench.call(bench.studio(), PROMPT)
    assert (result.remote_ref, result.replayed, bench.charges) == (job, True, 1)


@pytest.mark.parametrize(
    ("declared", "poll_budget", "kept"),
    [(timedelta(hours=1), 0, timedelta(hours=1)), (None, 0, timedelta(days=1)), (None, 50, timedelta(hours=50))],
)
def test_how_long_a_job_takes_is_kept_with_its_intent(
    bench: "Bench", declared: timedelta | None, poll_budget: int, kept: timedelta
) -> None:
    studio = bench.studio(expected_within=declared, poll_budget=timedelta(hours=poll_budget))
    assert expected_within(studio) == kept
    bench.unfinished(expected_within=kept)
    assert bench.rows()[0]["expected_within"] == kept
    assert bench.database.run(listing.overdue_jobs) == []
    bench.sql.execute(
        "UPDATE dagster_idempotent.submissions SET settled_at = settled_at - %s", [kept - timedelta(minutes=1)]
    )
    assert bench.database.run(listing.overdue_jobs) == []
    bench.sql.execute("UPDATE dagster_idempotent.submissions SET settled_at = settled_at - interval '1 minute'")
    (late,) = bench.database.run(listing.overdue_jobs)
    assert late["remote_ref"] == bench.rows()[0]["remote_ref"]
    with pytest.raises(psycopg.errors.RestrictViolation, match="fixed with its intent"):
        bench.sql.execute("UPDATE dagster_idempotent.submissions SET expected_within = NULL")


def test_a_run_that_lets_go_gives_its_attempt_back(bench: "Bench") -> None:
    bench.unfinished()
    waiting = bench.studio(poll_budget=timedelta(0))
    for _ in range(10):
        work = bench.claim(bench.allocate(), [waiting])
        with pytest.raises(RemoteJobUnfinished) as caught:
            bench.call(waiting, PROMPT, work=work)
        assert work.let_go(caught.value)
        task = bench.task()
        assert (task["status"], task["attempts"], task["owner"]) == ("pending", 1, None)
        assert task["next_attempt_at"] is not None
    bench.driven("succeeded")
    bench.call(bench.studio(), PROMPT)
    assert (bench.task()["attempts"], bench.charges) == (2, 1)


def test_the_run_that_submitted_may_wait_too_but_one_that_saw_a_job_fail_is_counted(bench: "Bench") -> None:
    bench.declare(max_attempts=1)
    waiting = bench.studio(poll_budget=timedelta(0))
    work = bench.claim(bench.allocate())
    with pytest.raises(RemoteJobUnfinished) as caught:
        bench.call(waiting, PROMPT, work=work)
    assert work.let_go(caught.value)
    assert bench.task()["attempts"] == 0
    bench.driven("failed")
    work = bench.claim(bench.allocate())
    with pytest.raises(RemoteJobFailed) as failed:
        bench.call(waiting, PROMPT, work=work)
    work.fail_with(failed.value)
    # The op's own retry submits a new job, and waits for it in the same, counted attempt.
    with pytest.raises(RemoteJobUnfinished) as caught:
        bench.call(waiting, PROMPT, work=work)
    assert work.let_go(caught.value)
    assert (bench.task()["attempts"], bench.charges) == (1, 2)
    with pytest.raises(TaskClosed, match="is dead"):
        bench.claim(bench.allocate())


def test_nobody_lets_go_of_a_task_that_is_not_theirs(bench: "Bench") -> None:
    bench.unfinished()
    old = bench.claim(bench.allocate())
    bench.claim(bench.allocate())
    assert not old.let_go(RemoteJobUnfinished("late", retry_after=1.0))
    assert bench.task()["status"] == "running"


def test_a_poll_that_loses_its_lease_stops_at_once(bench: "Bench") -> None:
    bench.unfinished()
    bench.declare(lease="600ms")
    rarely = Backoff(base=timedelta(hours=1), cap=timedelta(hours=1))
    slow = bench.studio(pace=rarely, poll_budget=timedelta(days=1))
    work = bench.claim(bench.allocate())
    caught: list[BaseException] = []

    def poll() -> None:
        try:
            bench.call(slow, PROMPT, work=work)
        except LeaseLost as error:
            caught.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    bench.sql.execute("UPDATE dagster_idempotent.tasks SET owner = 'another', fencing_token = fencing_token + 1")
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len(caught) == 1


def test_two_who_poll_one_job_bring_one_result(bench: "Bench") -> None:
    bench.unfinished()
    bench.driven("succeeded")
    bench.metered.fault("hold", times=2, path_contains="/result")
    work = bench.claim(bench.allocate())
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(bench.call, bench.studio(), PROMPT, work=work) for _ in range(2)]
        bench.metered.wait_held(2)
        bench.metered.release()
        first, second = (each.result(timeout=30) for each in asked)
    assert first.value == second.value
    assert (bench.states(), bench.charges) == (["succeeded"], 1)
    booked = bench.sql.execute("SELECT kind FROM dagster_idempotent.costs").fetchall()
    assert booked == [{"kind": "settled"}]


def test_the_lease_is_renewed_while_a_job_is_polled(bench: "Bench") -> None:
    bench.declare(lease="900ms")
    bench.metered.fault("slow", seconds=2.0, path_contains="/result")
    assert bench.call(bench.studio(), PROMPT).value.body.startswith(PNG)
    assert bench.task()["fencing_token"] == 1
