from collections.abc import Callable
from datetime import timedelta

import pytest

from dagster_idempotent.domain.task import HeldFor, TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.retry_policy import Verdict
from dagster_idempotent.engine.sweeping import due_tasks, sweep_pipeline
from dagster_idempotent.errors import (
    CallInDoubt,
    CandidateInvalid,
    DatabaseUnavailable,
    PipelineFrozen,
    TaskClosed,
)
from dagster_idempotent.store.sweeping import SQL
from tests.side_effects.conftest import House

EXPIRE = (
    "UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() - interval '1s' WHERE owner IS NOT NULL"
)


def due(house: House, *, finished: bool = False) -> list[str]:
    batch = due_tasks(house.database, house.pipeline.name, is_finished=lambda _: finished, limit=1000)
    return [task.task_id for task in batch.tasks]


def sweep(house: House, *, finished: bool = False) -> dict[str, list[str]]:
    swept = sweep_pipeline(house.database, house.pipeline.name, is_finished=lambda _: finished)
    return {"dead": swept.dead, "held": swept.held, "released": swept.released, "locked": swept.locked}


def status(house: House, task_id: str) -> TaskStatus:
    return get_task(house.database, house.pipeline.name, task_id).status


def test_a_final_error_is_a_dead_letter_at_once_and_keeps_its_error(house: House) -> None:
    work = house.claim(house.allocate())
    assert work.fail_with(CandidateInvalid("title: missing")) is Verdict.DEAD_LETTER
    assert due(house, finished=True) == []
    assert sweep(house)["dead"] == []  # its run may still be at work in another op
    assert sweep(house, finished=True)["dead"] == [work.task.task_id]
    task = get_task(house.database, house.pipeline.name, work.task.task_id)
    assert (task.status, task.attempts, task.error) == (TaskStatus.DEAD, 1, "CandidateInvalid: title: missing")
    kept = house.query("SELECT owner, last_owner FROM dagster_idempotent.tasks")
    assert kept == [{"owner": None, "last_owner": "run-1"}]


def test_a_passing_error_is_due_after_its_backoff_under_a_finished_owner(make_house: Callable[..., House]) -> None:
    house = make_house()
    work = house.claim(house.allocate())
    assert work.fail_with(ConnectionError("reset")) is Verdict.AGAIN
    house.change("UPDATE dagster_idempotent.tasks SET next_attempt_at = clock_timestamp() + interval '1h'")
    assert due(house, finished=True) == []
    house.change("UPDATE dagster_idempotent.tasks SET next_attempt_at = clock_timestamp()")
    assert due(house) == []
    assert due(house, finished=True) == [work.task.task_id]
    house.change(EXPIRE)
    assert due(house) == [work.task.task_id]


def test_errors_that_are_written_elsewhere_leave_the_task_as_it_is(house: House) -> None:
    work = house.claim(house.allocate())
    for error in (CallInDoubt("x"), DatabaseUnavailable("x"), GeneratorExit()):
        assert work.fail_with(error) is Verdict.LEAVE
    assert status(house, work.task.task_id) is TaskStatus.RUNNING


def test_a_frozen_pipeline_uses_no_attempts_and_its_tasks_come_back_when_it_is_thawed(house: House) -> None:
    work = house.claim(house.allocate())
    house.change("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover'")
    assert work.fail_with(PipelineFrozen("frozen: failover")) is Verdict.HOLD
    task = get_task(house.database, house.pipeline.name, work.task.task_id)
    assert (task.status, task.attempts, task.held_for) == (TaskStatus.HELD, 0, HeldFor.GATE)
    assert sweep(house)["released"] == []
    house.change("UPDATE dagster_idempotent.pipelines SET frozen_reason = NULL")
    assert sweep(house)["released"] == [task.task_id]
    assert due(house) == [task.task_id]


def test_a_killed_run_is_due_after_its_lease_and_a_backoff(make_house: Callable[..., House]) -> None:
    house = make_house(lease="1h", backoff=None)
    task = house.claim(house.allocate()).task
    assert due(house) == []
    house.change(EXPIRE)
    assert due(house) == []  # 30 s after the end of the lease
    house.change("UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() - interval '31s'")
    assert due(house) == [task.task_id]


def test_a_task_that_was_planned_and_never_begun_is_due_after_a_leases_length(make_house: Callable[..., House]) -> None:
    house = make_house(lease="100ms")
    task = house.allocate()
    while house.query(
        "SELECT clock_timestamp() < created_at + interval '100ms' AS young FROM dagster_idempotent.tasks"
    )[0]["young"]:
        pass
    assert due(house) == [task.task_id]
    long = make_house(lease="10m")
    assert due(long) == []


def test_killed_until_its_attempts_are_spent_a_task_is_a_dead_letter(make_house: Callable[..., House]) -> None:
    house = make_house(max_attempts=2)
    task = house.allocate()
    for run in ("run-1", "run-2"):
        house.claim(task, run, finished=True)
        assert sweep(house)["dead"] == []
    assert due(house, finished=True) == []
    house.change(EXPIRE)
    assert due(house) == []
    assert sweep(house)["dead"] == [task.task_id]
    with pytest.raises(TaskClosed):
        house.claim(task, "run-3")


def test_a_sweep_that_finds_nothing_to_decide_changes_nothing(house: House) -> None:
    done, running = house.complete(0), house.claim(house.allocate(1)).task
    before = house.query("SELECT * FROM dagster_idempotent.tasks ORDER BY task_id")
    assert sweep(house, finished=True) == {"dead": [], "held": [], "released": [], "locked": []}
    assert house.query("SELECT * FROM dagster_idempotent.tasks ORDER BY task_id") == before
    assert {done.task_id, running.task_id} == {row["task_id"] for row in before}


def test_a_row_that_somebody_keeps_locked_is_passed_over(make_house: Callable[..., House]) -> None:
    house = make_house(max_attempts=1)
    tasks = [house.claim(house.allocate(number)).task.task_id for number in range(5)]
    house.change(EXPIRE)
    stuck = house.database.connect()
    try:
        with stuck.transaction():
            stuck.execute("SELECT FROM dagster_idempotent.tasks WHERE task_id = %s FOR UPDATE", (tasks[0],))
            assert sweep(house) == {"dead": tasks[1:], "held": [], "released": [], "locked": tasks[:1]}
    finally:
        stuck.close()
    assert sweep(house)["dead"] == tasks[:1]


def test_a_spent_task_in_doubt_is_held_and_never_dead(make_house: Callable[..., House]) -> None:
    house = make_house(max_attempts=1)
    work = house.claim(house.allocate())
    house.change(
        "INSERT INTO dagster_idempotent.submissions (pipeline, task_id, call_key, submission, state, sender, "
        "sender_expires_at, owner, fencing_token, provider, fingerprint, fingerprint_version, fingerprint_fields, "
        "idempotency_key, key_no, lookup, settle_delay) VALUES ('weekly_digest', %s, 'summary', 1, 'intended', "
        "gen_random_uuid(), clock_timestamp() - interval '1s', 'run-1', 1, 'p', 'f', 1, '{}', 'k', 0, 'none', '1s')",
        work.task.task_id,
    )
    house.change(EXPIRE)
    assert sweep(house)["held"] == [work.task.task_id]
    assert sweep(house) == {"dead": [], "held": [], "released": [], "locked": []}
    house.change(
        "UPDATE dagster_idempotent.submissions SET state = 'not_sent', settled_by = 'operator', "
        "settled_at = clock_timestamp()"
    )
    # In one pass: nothing is left to wait for, and no attempt is left.
    assert sweep(house) == {"dead": [work.task.task_id], "held": [], "released": [work.task.task_id], "locked": []}


def test_due_tasks_come_in_batches_that_go_on_and_start_again(house: House) -> None:
    tasks = [house.claim(house.allocate(number)).task.task_id for number in range(7)]
    house.change("UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() - interval '1h'")
    seen, after = [], ""
    for _ in range(3):
        batch = due_tasks(house.database, house.pipeline.name, is_finished=lambda _: False, after=after, limit=3)
        seen.append([task.task_id for task in batch.tasks])
        after = batch.after
    assert seen == [tasks[:3], tasks[3:6], tasks[6:]]
    assert after == ""


MANY = """
INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id, status, owner,
    lease_expires_at, fencing_token, attempts, output, output_sha256, completed_at)
SELECT 'weekly_digest', '2020-W01-' || n, '2020-W01', n, 'key-' || n, lpad(to_hex(n), 64, '0'),
    CASE WHEN n <= 5000 THEN 'running' ELSE 'completed' END, 'run', clock_timestamp() - interval '1h', 1,
    CASE WHEN n <= 100 THEN 5 ELSE 1 END,
    CASE WHEN n > 5000 THEN '{}'::json END, CASE WHEN n > 5000 THEN repeat('0', 64) END,
    CASE WHEN n > 5000 THEN clock_timestamp() END
FROM generate_series(1, 45000) n
"""


def test_with_five_thousand_open_tasks_among_many_a_batch_reads_the_unfinished_only(house: House) -> None:
    house.change(MANY)
    house.change("ANALYZE dagster_idempotent.tasks")
    page = {"pipeline": "weekly_digest", "after": "", "limit": 100}
    for name in ("due_tasks", "spent_tasks", "resolvable_holds"):
        rows = house.database.run(lambda c, name=name: c.execute("EXPLAIN ANALYZE " + SQL[name], page).fetchall())
        plan = "\n".join(row["QUERY PLAN"] for row in rows)
        assert "Seq Scan on tasks" not in plan, plan
        spent = float(rows[-1]["QUERY PLAN"].removeprefix("Execution Time: ").removesuffix(" ms"))
        assert timedelta(milliseconds=spent) < timedelta(seconds=1), plan
    assert len(due(house)) == 1000
    assert len(sweep(house)["dead"]) == 100
