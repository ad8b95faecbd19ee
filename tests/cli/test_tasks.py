from collections.abc import Callable
from typing import Any

from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import claim

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "its node is gone")


def test_list_prints_a_plain_table_and_json(cli: Run, world: Any) -> None:
    assert cli("tasks", "list").err == "No task fits.\n"
    done_task, open_task = world.allocate("acme"), world.allocate("beta")
    world.run(done_task)
    table = cli("tasks", "list").out.splitlines()
    assert table[0].split() == [
        "pipeline", "task_id", "subject", "status", "held_for", "attempts", "unsettled", "owner", "created_at",
    ]  # fmt: skip
    assert [line.split()[1] for line in table[1:]] == [open_task, done_task]
    rows = cli("tasks", "list", "--status", "pending", "--json").json()
    assert [row["task_id"] for row in rows] == [open_task]
    assert (
        cli("tasks", "list", "--subject", "acme", "--period", "2026-W32", "--json").json()[0]["status"] == "completed"
    )


def test_show_prints_the_task_its_artifacts_calls_and_messages(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.run(task_id, channels={"email": False})
    document = cli("tasks", "show", task_id, "--json").json()
    assert document["status"] == "completed"
    assert [artifact["name"] for artifact in document["artifacts"]] == ["raw"]
    assert [(call["call_key"], call["state"], call["cost"]) for call in document["calls"]] == [
        ("summary", "succeeded", "0.02")
    ]
    assert [message["state"] for message in document["messages"]] == ["ready"]
    text = cli("tasks", "show", task_id)
    assert text.code == 0
    assert all(f"\n{title}:\n" in text.out for title in ("artifacts", "calls", "messages"))
    # A payload is nothing for a terminal: only hashes are shown.
    assert "highlights" not in text.out


def test_release_takes_the_lease_away_and_the_old_run_loses(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    work = claim(
        world.ledger, Heartbeat(world.ledger), world.pipeline, task_id, Owner("gone"), is_finished=lambda _: False
    )
    dry = cli("tasks", "release", task_id, "--dry-run", "--json", *WHO).json()
    assert (dry["dry_run"], dry["after"]["status"]) == (True, "pending")
    assert world.status(task_id) == "running"
    assert cli("audit", "--json").json() == []
    done = cli("tasks", "release", task_id, "--json", *WHO).json()
    assert done["before"] | done["after"] == done["before"] | {
        "status": "pending", "owner": None, "fencing_token": 2,
    }  # fmt: skip
    assert not work.fail("too late")
    (audit,) = cli("audit", "--json").json()
    assert (audit["actor"], audit["action"], audit["reason"]) == ("ada", "release", "its node is gone")
    assert (audit["before"]["owner"], audit["after"]["owner"]) == ("gone", None)
    again = cli("tasks", "release", task_id, *WHO)
    assert (again.code, "is pending" in again.err) == (1, True)


def test_release_waits_for_a_call_on_its_way(cli: Run, world: Any) -> None:
    task_id = world.doubtful()
    # A live sender, as another process would show it.
    world.query(
        "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, fencing_token = 9 "
        "RETURNING task_id"
    )
    world.query(
        "UPDATE dagster_idempotent.tasks SET status = 'running', owner = 'o', fencing_token = 10 RETURNING 1 AS x"
    )
    cli("calls", "abandon", world.settled_down(task_id), "summary", *WHO)
    world.query(
        "INSERT INTO dagster_idempotent.submissions (pipeline, task_id, call_key, submission, state, sender, "
        "sender_expires_at, owner, fencing_token, provider, fingerprint, fingerprint_version, fingerprint_fields, "
        "idempotency_key, key_no, lookup, settle_delay) SELECT pipeline, task_id, 'other', 1, 'intended', sender, "
        "clock_timestamp() + interval '1 hour', owner, fencing_token, provider, fingerprint, fingerprint_version, "
        "fingerprint_fields, idempotency_key, key_no, lookup, settle_delay FROM dagster_idempotent.submissions "
        "RETURNING 1 AS x"
    )
    done = cli("tasks", "release", task_id, *WHO)
    assert (done.code, "a paid call is on its way" in done.err) == (1, True)
    assert world.status(task_id) == "running"


def test_an_id_that_fits_two_pipelines_asks_which(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.query(
        "INSERT INTO dagster_idempotent.pipelines SELECT (jsonb_populate_record(p, "
        '\'{"pipeline": "other"}\')).* FROM dagster_idempotent.pipelines p RETURNING 1 AS x'
    )
    world.query(
        "INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id) "
        "SELECT 'other', task_id, period_id, sequence, allocation_key, run_id FROM dagster_idempotent.tasks "
        "RETURNING 1 AS x"
    )
    done = cli("tasks", "show", task_id)
    assert done.code == 1
    assert f"other/{task_id}, weekly_digest/{task_id}" in done.err
    assert cli("tasks", "show", f"other/{task_id}", "--json").json()["pipeline"] == "other"
    assert cli("tasks", "show", task_id, "--pipeline", "other", "--json").json()["pipeline"] == "other"
