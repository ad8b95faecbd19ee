from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "failover")


def test_list_counts_open_held_and_dead_tasks(cli: Run, world: Any) -> None:
    assert cli("pipelines", "list").err == "No pipeline has been registered yet.\n"
    world.run(world.allocate("acme"))
    world.doubtful("beta")
    world.allocate("gamma")
    (row,) = cli("pipelines", "list", "--json").json()
    assert {name: row[name] for name in ("tasks", "open", "held", "dead", "frozen_reason")} == {
        "tasks": 3, "open": 1, "held": 1, "dead": 0, "frozen_reason": None,
    }  # fmt: skip
    assert cli("pipelines", "list").out.splitlines()[1].split()[0] == "weekly_digest"


def test_a_frozen_pipeline_pays_for_nothing_until_it_is_unfrozen(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    dry = cli("pipelines", "freeze", "weekly_digest", "--dry-run", "--json", *WHO).json()
    assert (dry["dry_run"], dry["after"]["frozen_reason"]) == (True, "failover (ada)")
    assert cli("pipelines", "list", "--json").json()[0]["frozen_reason"] is None
    assert cli("pipelines", "freeze", "weekly_digest", *WHO).code == 0
    again = cli("pipelines", "freeze", "weekly_digest", *WHO)
    assert (again.code, "frozen already: failover (ada)" in again.err) == (1, True)
    assert world.run(task_id) == "PipelineFrozen"
    assert world.metered.charges == 0
    explained = cli("explain", task_id, "--json")
    assert explained.code == 3
    steps = [step["command"] for step in explained.json()["next"]]
    assert steps[0].startswith("dagster-idempotent verify --against-provider")
    assert steps[1].startswith("dagster-idempotent pipelines unfreeze weekly_digest")
    assert cli("pipelines", "unfreeze", "weekly_digest", *WHO).code == 0
    assert world.run(task_id) == "completed"
    assert world.metered.charges == 1
    actions = [row["action"] for row in cli("audit", "--pipeline", "weekly_digest", "--json").json()]
    assert actions == ["unfreeze", "freeze"]
