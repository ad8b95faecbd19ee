import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest

from dagster_idempotent import FileChannel
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Owner, Task, TaskStatus
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.relay import deliver_task
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import LeaseBusy, LeaseLost, TaskClosed
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.side_effects.conftest import Digest, House

Result = TypeVar("Result")
EXPIRE = (
    "UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() - interval '1s' WHERE owner IS NOT NULL"
)


def row(house: House) -> dict[str, object]:
    (found,) = house.query("SELECT status, attempts, fencing_token, owner FROM dagster_idempotent.tasks")
    return found


def test_of_sixteen_workers_that_claim_at_once_one_works(house: House) -> None:
    task, barrier, outcomes = house.allocate(), threading.Barrier(16), []

    def worker(number: int) -> None:
        database = Database(house.database.url)
        barrier.wait(30)
        try:
            work = claim(
                database,
                Heartbeat(database),
                house.pipeline,
                task.task_id,
                Owner(f"run-{number}"),
                is_finished=lambda _: False,
            )
            outcomes.append(work.lease.owner)
        except LeaseBusy as busy:
            outcomes.append(busy.retry_after is not None)
        finally:
            database.close()

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, outcomes))[:15] == ["True"] * 15
    assert (row(house)["attempts"], row(house)["fencing_token"]) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_cut_off_at_any_message_while_it_collects_a_run_collects_once(house: House, when: str) -> None:
    collected: list[int] = []

    def collect() -> str:
        collected.append(1)
        return f"page {len(collected)}"

    for n in range(1, 30):
        work = house.claim(house.allocate(n), f"run-{n}")
        raw, _ = cut_off(
            house, n, when, lambda database, w=work: stages.collect(replace(w, database=database), collect)
        )
        assert raw.text() == f"page {n}"
        assert stages.collect(work, collect) == (raw, False)
        assert len(collected) == n


@pytest.mark.parametrize("when", ["before", "after"])
def test_cut_off_at_any_message_of_the_final_commit_a_run_finds_its_own_result(house: House, when: str) -> None:
    ours, other = Digest(title="ours"), Digest(title="a visibly different answer")
    for n in range(1, 30):
        work = house.claim(house.allocate(n), f"run-{n}")
        first = cut_off(
            house,
            n,
            when,
            lambda database, w=work: stages.persist(
                replace(w, database=database), ours, dagster_run_id="run", channels={"file": True}
            ),
        )
        second = stages.persist(work, other, dagster_run_id="run", channels={"file": True})
        assert (first.output, second.output, second.accepted_now) == (ours, ours, False)
        assert first.task.output_sha256 == second.task.output_sha256
        assert len(house.messages(second.task)) == 1


def cut_off(house: House, n: int, when: str, act: Callable[[Database], Result]) -> Result:
    """Act through a proxy that cuts the connection at message `n`, if it comes to that."""
    with psycopg.connect(house.database.url) as connection:
        upstream = f"{connection.info.host}/.s.PGSQL.{connection.info.port}"
    with FaultProxy(upstream, protocol="postgres") as proxy:
        proxy.at(n, action=proxy.cut_all, when=when)
        database = Database(proxy.url_for(house.database.url))
        try:
            return act(database)
        finally:
            database.close()


def test_a_worker_that_died_holding_a_lease_is_waited_for_and_then_replaced(house: House) -> None:
    dead = house.claim(house.allocate(), "run-1")
    with pytest.raises(LeaseBusy, match="run-1") as busy:
        house.claim(dead.task, "run-2")
    assert 590 < (busy.value.retry_after or 0) <= 600
    house.change(EXPIRE)
    work = house.claim(dead.task, "run-2")
    assert (work.attempt, work.lease.token) == (2, 2)


def test_where_dagster_has_forgotten_the_run_only_the_end_of_the_lease_frees_the_task(house: House) -> None:
    house.claim(house.allocate(), "run-1")
    with pytest.raises(LeaseBusy):
        house.claim(house.allocate(), "run-2", finished=False)  # an unknown run counts as alive
    house.change(EXPIRE)
    assert house.claim(house.allocate(), "run-2", finished=False).attempt == 2


def test_a_stale_worker_writes_nothing_after_another_acquired_the_task(house: House) -> None:
    stale = house.claim(house.allocate(), "run-1")
    house.change(EXPIRE)
    fresh = house.claim(stale.task, "run-2")
    before = house.query("SELECT * FROM dagster_idempotent.tasks")
    assert not stale.fail("too late")
    with pytest.raises(LeaseLost, match="run-2"):
        stages.persist(stale, Digest(title="stale"), dagster_run_id="run-1", channels={"file": True})
    assert house.query("SELECT * FROM dagster_idempotent.tasks") == before
    assert house.query("SELECT * FROM dagster_idempotent.outbox") == []
    assert stages.persist(fresh, Digest(title="fresh"), dagster_run_id="run-2").accepted_now


def test_a_failed_run_is_retried_without_a_second_downstream_write(house: House, tmp_path: Path) -> None:
    channels = {"file": FileChannel(tmp_path)}
    work = house.claim(house.allocate(), "run-1")
    work.fail_with(ConnectionError("between collect and persist"))
    house.change(EXPIRE)
    work = house.claim(work.task, "run-2")
    stages.persist(work, Digest(title="x"), dagster_run_id="run-2", channels={"file": True})
    (first,) = deliver_task(house.database, *work_key(work.task), channels)
    # The op failed after its delivery: everything of the run is done again.
    stages.persist(work, Digest(title="y"), dagster_run_id="run-2", channels={"file": True})
    (second,) = deliver_task(house.database, *work_key(work.task), channels)
    assert (first.delivered_now, second.delivered_now) == (True, False)
    (file,) = tmp_path.rglob("*.json")
    assert file.read_text() == '{"title":"x"}'


def work_key(task: Task) -> tuple[str, TaskId]:
    return task.pipeline, task.task_id


def test_a_completed_task_that_is_run_again_starts_nothing(house: House) -> None:
    task = house.complete()
    before = house.query("SELECT * FROM dagster_idempotent.tasks")
    with pytest.raises(TaskClosed) as closed:
        house.claim(task, "run-2", finished=True)
    assert closed.value.status is TaskStatus.COMPLETED
    assert house.query("SELECT * FROM dagster_idempotent.tasks") == before


def test_a_lost_lease_stops_a_run_before_its_next_paid_call(
    make_house: Callable[..., House], metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret")
    house = make_house(lease="300ms")
    provider = ChatCompletionsProvider(
        base_url=metered_provider.base_url, api_key_variable="KEY", settle_delay=timedelta(seconds=1)
    )
    work = house.claim(house.allocate(), "run-1")
    with work.renewed():
        house.claim(work.task, "run-2", finished=True)
        assert work.beat is not None
        while not work.beat.lost:  # the next renewal tells
            house.query("SELECT pg_sleep(0.02)")
        with pytest.raises(LeaseLost, match="run-2"):
            Calls(work, provider).call("summary", {"model": "m", "messages": []})
    assert metered_provider.charges == 0


def test_work_eight_times_as_long_as_its_lease_keeps_it_and_leaves_no_thread_behind(
    make_house: Callable[..., House],
) -> None:
    house = make_house(lease="300ms")
    threads = set(threading.enumerate())
    work = house.claim(house.allocate(), "run-1")
    began = house.query("SELECT clock_timestamp() AS at")[0]["at"]
    with work.renewed():
        while house.query("SELECT clock_timestamp() AS at")[0]["at"] < began + timedelta(seconds=2.4):
            with pytest.raises(LeaseBusy):
                house.claim(work.task, "run-2")
        work.check_lease()
    left = {thread.name for thread in set(threading.enumerate()) - threads if "heartbeat" in thread.name}
    assert left == set()
