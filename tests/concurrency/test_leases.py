"""Many processes want one task (R23, R25-R29)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
PROCESSES = 32
SHORT = {"lease": "500ms", "sender_lease": "400ms", "send_window": "300ms"}


def task_row(sql: Sql, task_id: str) -> dict[str, Any]:
    row = sql.execute("SELECT * FROM dagster_idempotent.tasks WHERE task_id = %s", [task_id]).fetchone()
    assert row is not None
    return row


@pytest.fixture
def expire(sql: Sql, until: Callable[..., object]) -> Callable[[str], None]:
    """Wait until the lease of a task is over, by the database's clock."""

    def wait(task_id: str) -> None:
        until(
            lambda: (
                sql.execute(
                    "SELECT FROM dagster_idempotent.tasks WHERE task_id = %s AND lease_expires_at < clock_timestamp()",
                    [task_id],
                ).rowcount
            )
        )

    return wait


def test_of_32_claims_at_once_one_holds_the_lease(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    workers = crew.connected(PROCESSES, url=ledger_url)
    for number in range(3):
        task_id = workers[0].ask("allocate", subject=f"tenant-{number}")
        orders = [{"task_id": task_id, "owner": f"run-{n}"} for n in range(PROCESSES)]
        answers = crew.at_once(workers, "claim", orders)
        winners = [n for n, answer in enumerate(answers) if "value" in answer]
        assert len(winners) == 1
        assert {answer["error"] for answer in answers if "error" in answer} == {"LeaseBusy"}
        row = task_row(sql, task_id)
        assert (row["owner"], row["attempts"], row["fencing_token"]) == (f"run-{winners[0]}", 1, 1)


def test_of_32_takeovers_of_an_expired_lease_one_succeeds(
    crew: "Crew", ledger_url: str, sql: Sql, expire: Callable[[str], None]
) -> None:
    workers = crew.connected(PROCESSES, url=ledger_url, pipeline={**SHORT, "lease": "1s"})
    task_id = workers[0].ask("allocate")
    workers[0].ask("claim", task_id=task_id, owner="first")
    expire(task_id)
    answers = crew.at_once(workers, "claim", [{"task_id": task_id, "owner": f"run-{n}"} for n in range(PROCESSES)])
    assert len([answer for answer in answers if "value" in answer]) == 1
    assert task_row(sql, task_id)["fencing_token"] == 2
    assert task_row(sql, task_id)["attempts"] == 2


def test_of_32_takeovers_from_a_finished_run_one_succeeds(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    workers = crew.connected(PROCESSES, url=ledger_url)
    task_id = workers[0].ask("allocate")
    workers[0].ask("claim", task_id=task_id, owner="first")
    orders = [{"task_id": task_id, "owner": f"run-{n}", "finished": ["first"]} for n in range(PROCESSES)]
    answers = crew.at_once(workers, "claim", orders)
    assert len([answer for answer in answers if "value" in answer]) == 1
    assert (task_row(sql, task_id)["fencing_token"], task_row(sql, task_id)["attempts"]) == (2, 2)


def test_an_owner_told_of_earlier_is_no_ground_to_take_over_a_later_lease(
    ledger_url: str, crew: "Crew", sql: Sql
) -> None:
    first, second, third = crew.connected(3, url=ledger_url)
    task_id = first.ask("allocate")
    first.ask("claim", task_id=task_id, owner="first")
    second.ask("claim", task_id=task_id, owner="second", finished=["first"])
    answer = third.refused("claim", task_id=task_id, owner="third", finished=["first"])
    assert answer["error"] == "LeaseBusy"
    stale = sql.execute(
        "SELECT verdict FROM dagster_idempotent.claim_v1('weekly_digest', %s, 'third', 'first', 1, false)", [task_id]
    ).fetchone()
    assert stale == {"verdict": "busy"}
    stale = sql.execute(
        "SELECT verdict FROM dagster_idempotent.claim_v1('weekly_digest', %s, 'third', 'second', 1, false)", [task_id]
    ).fetchone()
    assert stale == {"verdict": "busy"}


def test_re_entry_keeps_token_and_count_also_after_an_expiry(
    crew: "Crew", ledger_url: str, sql: Sql, expire: Callable[[str], None]
) -> None:
    (worker,) = crew.connected(1, url=ledger_url, pipeline=SHORT)
    task_id = worker.ask("allocate")
    assert worker.ask("claim", task_id=task_id, owner="run") == {"token": 1, "attempt": 1}
    expire(task_id)
    assert worker.ask("claim", task_id=task_id, owner="run") == {"token": 1, "attempt": 1}
    row = sql.execute(
        "SELECT lease_expires_at > clock_timestamp() AS live FROM dagster_idempotent.tasks WHERE task_id = %s",
        [task_id],
    ).fetchone()
    assert row == {"live": True}


def test_re_entry_after_a_failure_leaves_the_status(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    (worker,) = crew.connected(1, url=ledger_url)
    task_id = worker.ask("allocate")
    worker.ask("claim", task_id=task_id, owner="run")
    worker.ask("fail", error="no feeds")
    assert worker.ask("claim", task_id=task_id, owner="run") == {"token": 1, "attempt": 1}
    row = task_row(sql, task_id)
    assert (row["status"], row["error"]) == ("failed", "no feeds")


def test_a_failed_task_is_another_runs_only_after_the_lease(
    crew: "Crew", ledger_url: str, expire: Callable[[str], None]
) -> None:
    first, second = crew.connected(2, url=ledger_url, pipeline=SHORT)
    task_id = first.ask("allocate")
    first.ask("claim", task_id=task_id, owner="first")
    first.ask("fail")
    assert second.refused("claim", task_id=task_id, owner="second")["error"] == "LeaseBusy"
    expire(task_id)
    assert second.ask("claim", task_id=task_id, owner="second") == {"token": 2, "attempt": 2}


def test_a_stale_worker_changes_nothing_and_learns_who_owns_the_task(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    stale, owner = crew.connected(2, url=ledger_url)
    task_id = stale.ask("allocate")
    stale.ask("claim", task_id=task_id, owner="stale")
    owner.ask("claim", task_id=task_id, owner="run-b", finished=["stale"])
    before = task_row(sql, task_id)
    assert stale.ask("renew") is False
    assert stale.ask("fail") is False
    for do, order in (("hold", {}), ("persist", {"title": "stale"})):
        answer = stale.refused(do, **order)
        assert answer["error"] == "LeaseLost"
        assert "run-b" in answer["text"]
        assert answer["facts"]["owner"] == "run-b"
    assert task_row(sql, task_id) == before
    assert owner.ask("persist", title="owner")["accepted_now"] is True


def test_a_stale_worker_pays_for_nothing(crew: "Crew", ledger_url: str, metered_provider: MeteredProvider) -> None:
    provider = {"base_url": metered_provider.base_url, "api_key_variable": "K"}
    stale, owner = crew.connected(2, url=ledger_url, provider=provider, environment={"K": "k"})
    task_id = stale.ask("allocate")
    stale.ask("claim", task_id=task_id, owner="stale")
    owner.ask("claim", task_id=task_id, owner="run-b", finished=["stale"])
    answer = stale.refused("call")
    assert (answer["error"], answer["facts"]["owner"]) == ("LeaseLost", "run-b")
    assert metered_provider.charges == 0


def test_two_persists_at_once_leave_the_first_output_and_one_message(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    workers = crew.connected(8, url=ledger_url)
    for number in range(5):
        task_id = workers[0].ask("allocate", subject=f"tenant-{number}")
        # All ops of a run share the lease, an orphan of a killed step too.
        crew.at_once(workers, "claim", [{"task_id": task_id, "owner": "run"}] * len(workers))
        answers = crew.at_once(workers, "persist", [{"title": f"title {n}"} for n in range(len(workers))])
        values = [answer["value"] for answer in answers]
        accepted = [value["output"]["title"] for value in values if value["accepted_now"]]
        assert len(accepted) == 1
        assert {value["output"]["title"] for value in values} == set(accepted)
        messages = sql.execute("SELECT payload FROM dagster_idempotent.outbox WHERE task_id = %s", [task_id])
        assert [message["payload"]["title"] for message in messages] == accepted


def test_a_completed_task_is_not_claimed_again(crew: "Crew", ledger_url: str) -> None:
    first, second = crew.connected(2, url=ledger_url)
    task_id = first.ask("allocate")
    first.ask("claim", task_id=task_id, owner="first")
    first.ask("persist", title="done")
    answer = second.refused("claim", task_id=task_id, owner="second", finished=["*"])
    assert (answer["error"], answer["facts"]["status"]) == ("TaskClosed", "completed")


def test_a_claim_waits_while_a_sender_is_alive(
    crew: "Crew", ledger_url: str, sql: Sql, metered_provider: MeteredProvider
) -> None:
    provider = {"base_url": metered_provider.base_url, "api_key_variable": "K", "look_up_path": "/lookup"}
    settings = {"provider": provider, "environment": {"K": "k"}}
    first, second = crew.connected(2, url=ledger_url, **settings)
    task_id = first.ask("allocate")
    first.ask("claim", task_id=task_id, owner="first")
    metered_provider.fault("hold")
    first.tell("call")
    metered_provider.wait_held(1)
    answer = second.refused("claim", task_id=task_id, owner="second", finished=["first"])
    assert answer["error"] == "LeaseBusy"
    assert "is being sent" in answer["text"]
    assert 0 < float(answer["facts"]["retry_after"]) <= 30
    assert task_row(sql, task_id)["attempts"] == 1
    metered_provider.release()
    assert "value" in first.answer()
    second.ask("claim", task_id=task_id, owner="second", finished=["first"])
    assert second.ask("call")["replayed"] is True
    assert metered_provider.charges == 1


def test_attempts_spent_make_a_dead_letter_that_nobody_claims(crew: "Crew", ledger_url: str, sql: Sql) -> None:
    (worker,) = crew.connected(1, url=ledger_url, pipeline={"max_attempts": 2})
    task_id = worker.ask("allocate")
    for number in range(2):
        worker.ask("claim", task_id=task_id, owner=f"run-{number}", finished=["*"])
        worker.ask("fail", error=f"broke {number}")
    for _ in range(2):
        answer = worker.refused("claim", task_id=task_id, owner="run-3", finished=["*"])
        assert (answer["error"], answer["facts"]["status"]) == ("TaskClosed", "dead")
        assert "broke 1" in answer["text"]
    row = task_row(sql, task_id)
    assert (row["status"], row["owner"], row["attempts"], row["fencing_token"]) == ("dead", None, 2, 3)
