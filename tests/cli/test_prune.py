from collections.abc import Callable
from hashlib import sha256
from typing import Any

import psycopg
import pytest

from dagster_idempotent.engine import effects
from dagster_idempotent.errors import PayloadPruned

Run = Callable[..., Any]
WHO = ("--actor", "cron", "--reason", "retention")


def test_pruning_drops_bodies_and_keeps_keys_hashes_and_costs(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.run(task_id, channels={"email": True})
    world.query(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', sender = gen_random_uuid(), "
        "sender_expires_at = clock_timestamp() RETURNING 1 AS x"
    )
    waiting = cli("prune", "--older-than", "0s", "--json", *WHO).json()
    assert [(row["tasks"], row["skipped"]) for row in waiting] == [(0, 1)]
    world.query(
        "UPDATE dagster_idempotent.outbox SET state = 'delivered', delivered_at = clock_timestamp() RETURNING 1 AS x"
    )
    before = cli("verify", "--json").json()["totals"]
    dry = cli("prune", "--older-than", "0s", "--dry-run", "--json", *WHO).json()
    assert [(row["tasks"], row["bodies"], row["dry_run"]) for row in dry] == [(1, 4, True)]
    assert cli("tasks", "show", task_id, "--json").json()["pruned_at"] is None
    assert cli("prune", "--older-than", "90d", "--json", *WHO).json()[0]["tasks"] == 0
    done = cli("prune", "--older-than", "0s", "--json", *WHO)
    assert (done.code, done.json()[0]["bodies"]) == (0, 4)
    assert "weekly_digest: 1 tasks" in done.err
    bodies = world.query(
        "SELECT t.output, a.body, s.response_body, s.response, o.payload, t.output_sha256, a.sha256, "
        "s.response_sha256, s.cost FROM dagster_idempotent.tasks t, "
        "dagster_idempotent.artifacts a, dagster_idempotent.submissions s, "
        "dagster_idempotent.outbox o"
    )[0]
    assert [bodies[name] for name in ("output", "body", "response_body", "response", "payload")] == [None] * 5
    assert all(bodies[name] for name in ("output_sha256", "sha256", "response_sha256", "cost"))
    assert world.allocate() == task_id
    assert world.run(task_id) == "completed"
    assert world.metered.charges == 1
    after = cli("verify", "--json").json()
    assert (after["sound"], after["totals"] | {"decisions": 0}) == (True, before | {"decisions": 0})
    assert cli("prune", "--older-than", "0s", "--json", *WHO).json()[0]["tasks"] == 0


def test_what_is_open_or_in_doubt_is_never_pruned(cli: Run, world: Any) -> None:
    world.max_attempts = 1
    world.dead("acme")
    world.doubtful("beta")
    world.allocate("gamma")
    (row,) = cli("prune", "--older-than", "0s", "--json", *WHO).json()
    assert (row["tasks"], row["skipped"]) == (0, 0)


def test_a_discarded_task_is_kept_from_its_discard_on(cli: Run, world: Any) -> None:
    world.max_attempts = 1
    task_id = world.dead()
    cli("dead-letters", "discard", task_id, "--actor", "ada", "--reason", "left")
    world.query("UPDATE dagster_idempotent.tasks SET error = error RETURNING 1 AS x")
    kept = cli("prune", "--older-than", "1h", "--json", *WHO).json()
    assert kept[0]["tasks"] == 0
    gone = cli("prune", "--older-than", "0s", "--json", *WHO).json()
    assert (gone[0]["tasks"], gone[0]["bodies"]) == (1, 1)


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_batches_of_any_size_reach_every_task_once(cli: Run, world: Any, batch: int) -> None:
    for number in range(5):
        world.run(world.allocate(f"tenant-{number}"))
    done = cli("prune", "--older-than", "0s", "--batch", str(batch), "--json", *WHO)
    assert done.json()[0]["tasks"] == 5
    assert done.err.count("weekly_digest:") == -(-5 // batch)
    audit = cli("audit", "--action", "prune", "--json").json()
    assert sum(row["after"]["tasks"] for row in audit) == 5


def test_a_task_that_somebody_holds_is_left_for_the_next_time(cli: Run, world: Any) -> None:
    held, free = world.allocate("acme"), world.allocate("beta")
    world.run(held)
    world.run(free)
    with world.ledger.transaction() as connection:
        connection.execute("SELECT FROM dagster_idempotent.tasks WHERE task_id = %s FOR UPDATE", [held])
        assert cli("prune", "--older-than", "0s", "--json", *WHO).json()[0]["tasks"] == 1
        assert world.allocate("gamma")
    assert cli("prune", "--older-than", "0s", "--json", *WHO).json()[0]["tasks"] == 1


def test_the_result_of_an_effect_goes_with_the_other_bodies_and_it_never_happens_again(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.ledger.run(lambda c: c.execute("CREATE TABLE public.balance (cents integer NOT NULL)"))

    def pay(connection: Any) -> dict[str, int]:
        connection.execute("INSERT INTO public.balance VALUES (5)")
        return {"paid": 5}

    assert effects.once(world.ledger, "weekly_digest", task_id, "pay", pay) == {"paid": 5}
    world.run(task_id)
    done = cli("prune", "--older-than", "0s", "--json", *WHO).json()
    assert (done[0]["tasks"], done[0]["bodies"]) == (1, 4)
    (row,) = world.query("SELECT result, result_sha256, pruned_at, finished_at FROM dagster_idempotent.effects")
    assert (row["result"], row["result_sha256"]) == (None, sha256(b'{"paid": 5}').hexdigest())
    with pytest.raises(PayloadPruned, match="It does not happen again"):
        effects.once(world.ledger, "weekly_digest", task_id, "pay", pay)
    with (
        pytest.raises(PayloadPruned),
        effects.transaction(world.ledger, "weekly_digest", task_id, "pay") as tx,
    ):
        pytest.fail(f"it was opened again: {tx}")
    assert world.query("SELECT * FROM public.balance") == [{"cents": 5}]
    for change in ("result = '1'", "pruned_at = NULL", "effect = 'another'"):
        with pytest.raises(psycopg.Error):
            world.query(f"UPDATE dagster_idempotent.effects SET {change} RETURNING 1 AS x")  # noqa: S608
    assert cli("prune", "--older-than", "0s", "--json", *WHO).json()[0]["tasks"] == 0
