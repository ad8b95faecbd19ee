from collections.abc import Callable
from hashlib import sha256
from typing import Any

from dagster_idempotent.domain.money import Budget

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "read it")


def test_an_approval_is_for_what_was_shown(cli: Run, world: Any) -> None:
    world.gate = "spend"
    task_id = world.allocate()
    assert world.run(task_id) == "TaskHeld"
    assert world.metered.charges == 0
    (waiting,) = cli("approvals", "list", "--json").json()
    assert (waiting["state"], waiting["shown_sha256"]) == ("waiting", sha256(b"raw").hexdigest())
    other = cli("approvals", "approve", task_id, "--shown", "0" * 64, *WHO)
    assert (other.code, waiting["shown_sha256"] in other.err) == (1, True)
    assert world.run(task_id) == "TaskHeld"
    words = ("approvals", "approve", task_id, "--shown", waiting["shown_sha256"], *WHO)
    assert cli(*words, "--dry-run").code == 0
    assert world.status(task_id) == "held"
    no_budget = cli(*words, "--up-to", "1.00 USD")
    assert (no_budget.code, "pipeline's budget" in no_budget.err) == (1, True)
    assert cli(*words).code == 0
    assert world.status(task_id) == "pending"
    assert world.run(task_id) == "completed"
    assert world.metered.charges == 1
    assert cli(*words).err.startswith(f"Error: weekly_digest/{task_id}: its gate is open already.")


def test_a_revoked_approval_closes_the_gate_for_new_calls(cli: Run, world: Any) -> None:
    world.gate = "spend"
    task_id = world.allocate()
    (waiting,) = cli("approvals", "list", "--json").json()
    assert cli("approvals", "approve", task_id, "--shown", waiting["shown_sha256"], *WHO).code == 0
    (given,) = cli("approvals", "list", "--json").json()
    assert (given["actor"], given["reason"], given["state"]) == ("ada", "read it", "approved")
    assert cli("approvals", "revoke", str(given["id"]), *WHO).code == 0
    assert cli("approvals", "revoke", str(given["id"]), *WHO).code == 1
    assert world.run(task_id) == "TaskHeld"
    assert world.metered.charges == 0


def test_an_approved_amount_is_a_limit_that_no_call_passes(cli: Run, world: Any) -> None:
    world.gate = "spend"
    world.budget = Budget.per_task("9.00 USD")
    task_id = world.allocate()
    assert world.run(task_id) == "TaskHeld"
    (waiting,) = cli("approvals", "list", "--json").json()
    words = ("approvals", "approve", task_id, "--shown", waiting["shown_sha256"], *WHO)
    assert cli(*words, "--up-to", "0.01 EUR").code == 1
    assert cli(*words, "--up-to", "0.01 USD").code == 0
    assert world.run(task_id) == "BudgetExceeded"
    assert world.metered.charges == 0


def test_a_publication_waits_for_the_hash_of_its_output(cli: Run, world: Any) -> None:
    world.gate = "publish"
    task_id = world.allocate()
    early = cli("approvals", "approve", task_id, "--shown", "0" * 64, *WHO)
    assert (early.code, "nothing to publish yet" in early.err) == (1, True)
    world.run(task_id, channels={"email": False})
    (waiting,) = cli("approvals", "list", "--json").json()
    assert waiting["shown_sha256"] == cli("tasks", "show", task_id, "--json").json()["output_sha256"]
    assert cli("approvals", "approve", task_id, "--shown", waiting["shown_sha256"], *WHO).code == 0
    (message,) = cli("outbox", "list", "--json").json()
    assert message["state"] == "ready"


def test_a_pipeline_without_a_gate_takes_no_approval(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    done = cli("approvals", "approve", task_id, "--shown", "0" * 64, *WHO)
    assert (done.code, "asks for no approval" in done.err) == (1, True)
    assert cli("approvals", "list").err == "Nothing waits for an approval, and none was given.\n"
