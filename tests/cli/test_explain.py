import json
import shlex
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from dagster_idempotent.domain.money import Budget

Run = Callable[..., Any]
PLACEHOLDERS = {"NAME": "ada", "TEXT": "ticket 812"}


def follow(cli: Run, world: Any, task_id: str, choose: Callable[[list[dict[str, Any]]], dict[str, Any]]) -> str:
    """Do what `explain` says, one step at a time, until nothing is to be done; return the last status."""
    for _ in range(8):
        found = cli("explain", task_id, "--json")
        document = found.json()
        assert found.code == (3 if document["needs_operator"] else 0)
        if not document["next"]:
            return document["status"]
        step = choose(document["next"])
        words = [PLACEHOLDERS.get(word, word) for word in shlex.split(step["command"])]
        if words[0] == "dagster":
            assert words[:4] == ["dagster", "job", "backfill", "-j"]
            assert words[4:] == ["weekly_digest_job", "--partitions", "2026-08-03", "--noprompt"]
            world.run(task_id)
            continue
        if "FILE" in words:
            words[words.index("FILE")] = str(world.notes["answer"])
        done = cli(*words[1:])
        assert done.code in (0, 3), done
    pytest.fail("explain did not lead to an end")


def with_words(*words: str) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """Choose the first step whose command holds one of these words, in their order of preference."""

    def choose(steps: list[dict[str, Any]]) -> dict[str, Any]:
        for word in words:
            for step in steps:
                if word in step["command"]:
                    return step
        return steps[0]

    return choose


def test_an_answer_found_in_the_console_ends_a_hold_with_one_charge(cli: Run, world: Any, tmp_path: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    found = cli("explain", task_id)
    assert found.code == 3
    assert "It is held" in found.out
    key = world.query("SELECT idempotency_key AS key FROM dagster_idempotent.submissions")[0]["key"]
    assert key in found.out
    record = world.console(key)[0]
    world.notes["answer"] = tmp_path / "answer.json"
    world.notes["answer"].write_text(json.dumps(record["response"]))
    assert follow(cli, world, task_id, with_words("--as succeeded", "dagster job")) == "completed"
    assert world.metered.charges == 1


def test_a_request_that_never_arrived_is_sent_once_after_the_operators_word(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.never_arrived())
    assert follow(cli, world, task_id, with_words("--as not_sent", "dagster job")) == "completed"
    assert world.metered.charges == 1


def test_before_the_settle_delay_not_sent_is_neither_advised_nor_accepted(cli: Run, world: Any) -> None:
    task_id = world.doubtful()
    document = cli("explain", task_id, "--json").json()
    assert not [step for step in document["next"] if "not_sent" in step["command"]]
    who = ("--actor", "ada", "--reason", "ticket 812", "--evidence", "not in the console")
    done = cli("calls", "resolve", task_id, "summary", "--as", "not_sent", *who)
    assert (done.code, done.out) == (1, "")
    assert "may still land" in done.err
    assert world.status(task_id) == "held"


def test_a_provider_that_can_be_asked_settles_the_hold(cli: Run, world: Any, monkeypatch: Any, tmp_path: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    # The service offers a look-up after all; whoever runs the command has it configured.
    world.look_up = True
    module = tmp_path / "my_project.py"
    module.write_text(
        "from datetime import timedelta\n"
        "from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider\n"
        f"provider = ChatCompletionsProvider(base_url={world.metered.base_url!r}, look_up_path='/lookup',\n"
        "    api_key_variable='METERED_PROVIDER_KEY', settle_delay=timedelta(0))\n"
    )
    monkeypatch.chdir(tmp_path)
    done = cli("calls", "reconcile", task_id, "-m", "my_project:provider", "--json")
    assert (done.code, done.json()[0]["settled"]) == (0, True)
    assert follow(cli, world, task_id, with_words("dagster job")) == "completed"
    assert world.metered.charges == 1


def test_sending_again_knowingly_charges_twice_and_is_counted_apart(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    refused = cli("calls", "resend", task_id, "summary", "--actor", "ada", "--reason", "urgent")
    assert refused.code == 2
    assert "may charge twice" in refused.err
    assert follow(cli, world, task_id, with_words("calls resend", "dagster job")) == "completed"
    assert world.metered.charges == 2
    total = cli("costs", "--json").json()[0]
    assert (total["settled"], total["resent"], total["charges"]) == ("0.07", "0.02", 2)
    audit = cli("audit", "--action", "resend", "--json").json()[0]
    assert (audit["actor"], audit["reason"]) == ("ada", "ticket 812")


def test_an_abandoned_call_can_only_be_discarded_or_sent_again_by_an_operator(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    assert cli("calls", "abandon", task_id, "summary", "--actor", "ada", "--reason", "lost").code == 0
    assert world.status(task_id) == "pending"
    assert [world.run(task_id) for _ in range(2)] == ["CallAbandoned", "dead"]
    assert world.metered.charges == 1
    assert cli("costs", "--json").json()[0]["settled"] == "0.05"
    assert follow(cli, world, task_id, with_words("calls resend", "redrive", "dagster job")) == "completed"
    assert world.metered.charges == 2


def test_a_closed_spend_gate_is_opened_by_what_explain_says(cli: Run, world: Any) -> None:
    world.gate = "spend"
    task_id = world.allocate()
    assert world.run(task_id) == "TaskHeld"
    see = cli("explain", task_id, "--json").json()["next"][0]
    assert (see["decides"], see["command"]) == (False, f"dagster-idempotent tasks artifact weekly_digest/{task_id}")
    assert cli(*see["command"].split()[1:]).out == "raw"
    assert follow(cli, world, task_id, with_words("approvals approve", "dagster job")) == "completed"
    assert world.metered.charges == 1


def test_a_full_budget_is_raised_and_released_by_what_explain_says(cli: Run, world: Any) -> None:
    world.budget = Budget.per_task("0.01 USD")
    task_id = world.allocate()
    assert world.run(task_id) == "BudgetExceeded"
    steps = cli("explain", task_id, "--json").json()["next"]
    raising = next(step["command"] for step in steps if "budgets set" in step["command"])
    words = [PLACEHOLDERS.get(word, word).replace("AMOUNT", "1.00") for word in shlex.split(raising)]
    assert cli(*words[1:]).code == 0
    assert follow(cli, world, task_id, with_words("budgets release", "dagster job")) == "completed"
    assert world.metered.charges == 1


@pytest.mark.parametrize(("verb", "status", "charges"), [("redrive", "completed", 1), ("discard", "discarded", 0)])
def test_a_dead_letter_ends_by_what_explain_says(cli: Run, world: Any, verb: str, status: str, charges: int) -> None:
    world.max_attempts = 2
    task_id = world.dead()
    assert cli("dead-letters", "list", "--json").json()[0]["task_id"] == task_id
    assert follow(cli, world, task_id, with_words(f"dead-letters {verb}", "dagster job")) == status
    assert world.metered.charges == charges


def test_a_waiting_publication_is_approved_by_what_explain_says(cli: Run, world: Any) -> None:
    world.gate = "publish"
    task_id = world.allocate()
    assert world.run(task_id, channels={"email": False}) == "completed"
    document = cli("explain", task_id, "--json").json()
    assert document["needs_operator"]
    see, approve = (
        [PLACEHOLDERS.get(word, word) for word in shlex.split(step["command"])] for step in document["next"]
    )
    shown = cli(*see[1:]).out
    assert "highlights" in shown
    assert sha256(shown.encode()).hexdigest() in approve
    assert cli(*approve[1:]).code == 0
    assert cli("outbox", "list", "--json").json()[0]["state"] == "ready"


def test_a_completed_task_needs_nothing_and_would_cost_nothing(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    assert world.run(task_id) == "completed"
    found = cli("explain", "weekly_digest/2026-08-03T00:00:00Z/subject=acme")
    assert found.code == 0
    assert f"weekly_digest/{task_id} is completed" in found.out
    assert "nothing would be sent or paid" in found.out
    assert "next      nothing is to be done" in found.out


@pytest.mark.parametrize("name", ["task_id", "allocation_key", "run_id", "completed_by"])
def test_a_task_is_found_by_every_name_that_it_has(cli: Run, world: Any, name: str) -> None:
    task_id = world.allocate()
    world.run(task_id)
    text = world.query("SELECT * FROM dagster_idempotent.tasks")[0][name]
    assert cli("explain", text, "--json").json()["task_id"] == task_id


def test_an_unknown_key_names_what_exists(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    done = cli("explain", "2031-W01-0")
    assert (done.code, done.out) == (1, "")
    assert f"weekly_digest/{task_id}" in done.err
