import csv
import io
from collections.abc import Callable
from typing import Any

from dagster_idempotent.domain.money import Budget

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "longer input")


def test_costs_are_exact_by_task_period_pipeline_and_provider(cli: Run, world: Any) -> None:
    assert cli("costs").err == "Nothing was booked.\n"
    first, second = world.allocate("acme"), world.doubtful("beta")
    world.run(first)
    by = {name: cli("costs", "--by", name, "--json").json() for name in ("task", "period", "pipeline", "provider")}
    assert [(row["name"], row["settled"], row["reserved"]) for row in by["task"]] == [
        (f"weekly_digest/{first}", "0.02", "0.00"),
        (f"weekly_digest/{second}", "0", "0.05"),
    ]
    assert [row["name"] for row in by["period"] + by["pipeline"] + by["provider"]] == [
        "weekly_digest/2026-W32", "weekly_digest", "chat_completions",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(cli("costs", "--csv").out)))
    assert (rows[0]["settled"], rows[0]["charges"], rows[0]["currency"]) == ("0.02", "1", "USD")
    assert cli("costs", "--period", "2026-W33", "--json").json() == []


def test_an_answer_without_a_known_cost_is_said_to_be_missing(cli: Run, world: Any) -> None:
    world.run(world.allocate())
    world.query("UPDATE dagster_idempotent.submissions SET cost = NULL, currency = NULL RETURNING 1 AS x")
    assert "1 paid answer(s) have no known cost" in cli("costs").err


def test_a_limit_is_shown_set_lifted_and_kept(cli: Run, world: Any) -> None:
    world.budget = Budget.per_task("0.01 USD")
    task_id = world.allocate()
    assert world.run(task_id) == "BudgetExceeded"
    (row,) = cli("budgets", "show", "--scope", f"task:{task_id}", "--json").json()
    assert (row["limit"], row["left"], row["settled"]) == ("0.01", "0.01", "0")
    words = ("budgets", "set", "weekly_digest", "1.00 USD", "--task", task_id, *WHO)
    assert cli(*words, "--dry-run").code == 0
    assert cli("budgets", "show", "--scope", f"task:{task_id}", "--json").json()[0]["limit"] == "0.01"
    done = cli(*words, "--json").json()
    assert (done["before"]["limit"], done["after"]["limit"]) == (0.01, 1.0)
    early = cli("budgets", "release", task_id, *WHO)
    assert early.code == 0
    assert cli("budgets", "release", task_id, *WHO).code == 1
    assert world.run(task_id) == "completed"
    lifted = cli("budgets", "set", "weekly_digest", "none USD", "--task", task_id, "--json", *WHO).json()
    assert lifted["after"]["limit"] is None
    unknown = cli("budgets", "set", "weekly_digest", "1.00 USD", "--period", "2031-W01", *WHO)
    assert (unknown.code, "no task of that period" in unknown.err) == (1, True)
    both = cli("budgets", "set", "weekly_digest", "1.00 USD", "--period", "2026-W32", "--task", task_id, *WHO)
    assert both.code == 2
    assert [row["action"] for row in cli("audit", "--task", task_id, "--json").json()] == [
        "set_limit", "release_budget", "set_limit",
    ]  # fmt: skip


def test_a_pipeline_limit_stops_the_next_intent(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    assert cli("budgets", "set", "weekly_digest", "0.00 USD", *WHO).code == 0
    assert world.run(task_id) == "BudgetExceeded"
    assert world.metered.charges == 0
    assert cli("budgets", "show").out.splitlines()[1].split()[:2] == ["weekly_digest", "pipeline"]
