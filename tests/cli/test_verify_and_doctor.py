from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "ticket 812")
# Each breaks one rule behind the back of every trigger and constraint, as a wrong restore or a hand would.
DAMAGE = {
    "artifact_hashes": "UPDATE {s}.artifacts SET body = 'war'",
    "answer_hashes": "UPDATE {s}.submissions SET response_body = 'x' WHERE response_body IS NOT NULL",
    "output_hashes": "UPDATE {s}.tasks SET output = '{{}}' WHERE output IS NOT NULL",
    "announced_outputs": "UPDATE {s}.outbox SET payload = '{{}}'",
    "sequences": "UPDATE {s}.tasks SET sequence = 7, task_id = '2026-W32-7' WHERE sequence = 1",
    "submission_numbers": "UPDATE {s}.submissions SET submission = 3",
    "decided_by_somebody": "UPDATE {s}.submissions SET settled_by = 'operator'",
    "bookings": "UPDATE {s}.submissions SET cost = 7 WHERE cost IS NOT NULL",
    "counters": "UPDATE {s}.budgets SET settled = settled + 1 WHERE scope = 'pipeline'",
    "identities": "UPDATE {s}.tasks SET subject_id = 'someone else' WHERE sequence = 0",
}


def test_a_sound_ledger_says_the_same_twice(cli: Run, world: Any) -> None:
    world.run(world.allocate("acme"), channels={"email": True})
    task_id = world.settled_down(world.doubtful("beta"))
    cli("calls", "resend", task_id, "summary", "--may-charge-twice", *WHO)
    world.run(task_id)
    first, second = cli("verify", "--json"), cli("verify", "--json")
    assert (first.code, first.out) == (0, second.out)
    document = first.json()
    assert (document["sound"], document["findings"]) == (True, [])
    assert document["totals"]["tasks"] == {"completed": 2}
    assert document["totals"]["submissions"] == {"succeeded": 2, "abandoned": 1}
    assert document["totals"]["paid"] == {"USD": "0.09"}
    assert "0 contradiction(s)" in first.err
    assert cli("verify").out.startswith("ledger_id: ")


@pytest.mark.parametrize("rule", DAMAGE)
def test_every_kind_of_damage_is_found_and_named(cli: Run, world: Any, rule: str) -> None:
    world.run(world.allocate("acme"), channels={"email": True})
    world.allocate("beta")
    with world.ledger.transaction() as connection:
        connection.execute("SET LOCAL session_replication_role = 'replica'")
        connection.execute(DAMAGE[rule].format(s="dagster_idempotent").encode())
    done = cli("verify", "--json")
    assert done.code == 1
    assert rule in {finding["rule"] for finding in done.json()["findings"]}
    assert "contradiction(s)" in done.err


def test_verify_writes_nothing(cli: Run, world: Any) -> None:
    world.run(world.allocate())
    with world.ledger.transaction() as connection:
        # A writer would need this lock too.
        connection.execute("LOCK TABLE dagster_idempotent.tasks, dagster_idempotent.audit IN EXCLUSIVE MODE")
        assert cli("verify").code == 0


def test_doctor_names_every_check_and_what_to_do(cli: Run) -> None:
    done = cli("doctor", "--json")
    assert done.code == 0
    checks = {row["check"]: row["health"] for row in done.json()}
    assert set(checks) == {
        "server", "clock", "schema", "rights", "jobs", "isolation", "durability", "connections", "standby",
    }  # fmt: skip
    assert checks["server"] == checks["schema"] == checks["rights"] == "ok"
    # A finding comes with its cure, whatever server the tests run on.
    assert all(row["do"] for row in done.json() if row["health"] != "ok")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("storage: {postgres: {postgres_url: x}}\n", 0),
        ("storage:\n  postgres:\n    postgres_url: postgresql://u@h/d\n", 1),
        ("storage:\n  postgres:\n    postgres_url: 'postgres://u@h/d'\n", 1),
        ("storage:\n  postgres:\n    postgres_url: postgresql+psycopg2://u@h/d\n", 0),
        ("storage:\n  postgres:\n    postgres_url:\n      env: PLAIN_URL\n", 1),
        (None, 0),
    ],
)
def test_doctor_finds_the_url_that_dagsters_storage_cannot_use(
    cli: Run, tmp_path: Path, text: str | None, code: int
) -> None:
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    done = cli("doctor", "--dagster-home", str(tmp_path), env={"PLAIN_URL": "postgresql://u@h/d"})
    assert done.code == code
    assert ("postgresql+psycopg2://" in done.err) == bool(code)


def test_doctor_of_an_empty_database_names_the_command(cli: Run, world: Any) -> None:
    world.ledger.run(lambda c: c.execute("DROP SCHEMA dagster_idempotent CASCADE"))
    done = cli("doctor")
    assert (done.code, "dagster-idempotent schema upgrade" in done.err) == (1, True)
