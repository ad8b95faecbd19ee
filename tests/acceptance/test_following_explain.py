"""Whatever holds a task, doing literally what `explain` says ends it, with as many charges as tasks.

The operator here knows the provider's console, whether a Dagster run is over and what was mended; everything else,
each command with every name and hash in it, comes from `explain KEY --json`. Only who, why, the evidence and an amount
are filled in.
"""

import shlex
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.domain.money import Budget
from dagster_idempotent.errors import DeliveryNotSent, IdempotentError
from dagster_idempotent.store import leases
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.acceptance.conftest import Operator
    from tests.conftest import Crew

pytestmark = pytest.mark.usefixtures("own_keys")


@pytest.fixture(scope="module")
def metered_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    """Start one provider for the module; each test counts from where it began."""
    with MeteredProvider.start(tmp_path_factory.mktemp("metered")) as provider:
        yield provider


@pytest.fixture(params=["doubtful", "never_arrived"])
def lost(request: pytest.FixtureRequest) -> str:
    """Name what became of the request whose answer nobody got."""
    return request.param


@pytest.mark.look_up
def test_in_doubt_where_the_provider_can_be_asked(operator: "Operator", lost: str) -> None:
    operator.ends(getattr(operator.world, lost)())
    assert any("calls reconcile" in done for done in operator.done)


def test_in_doubt_where_only_the_console_knows(operator: "Operator", lost: str) -> None:
    operator.ends(getattr(operator.world, lost)())
    assert any("calls resolve" in done for done in operator.done)


@pytest.mark.look_up
def test_in_doubt_in_a_frozen_pipeline(operator: "Operator", lost: str) -> None:
    task_id = getattr(operator.world, lost)()
    assert operator.cli("pipelines", "freeze", "weekly_digest", "--actor", "a", "--reason", "failover").code == 0
    operator.ends(task_id)
    assert "verify --against-provider" in operator.done[0]


def test_in_doubt_where_the_provider_honours_keys_and_a_freeze_came_between(operator: "Operator", lost: str) -> None:
    operator.world.key_window = timedelta(hours=1)
    operator.world.metered.configure(deduplicate=True)
    task_id = getattr(operator.world, lost)()
    assert operator.cli("pipelines", "freeze", "weekly_digest", "--actor", "a", "--reason", "failover").code == 0
    assert operator.launch(task_id) == "PipelineFrozen"
    operator.ends(task_id)
    verbs = [done.split()[1] for done in operator.done]
    assert verbs == ["verify", "pipelines", "job"]


def test_held_by_a_freeze(operator: "Operator") -> None:
    task_id = operator.world.allocate()
    assert operator.cli("pipelines", "freeze", "weekly_digest", "--actor", "a", "--reason", "failover").code == 0
    assert operator.launch(task_id) == "PipelineFrozen"
    operator.ends(task_id)


def test_in_doubt_at_the_last_attempt(operator: "Operator", lost: str) -> None:
    operator.world.max_attempts = 1
    operator.ends(getattr(operator.world, lost)())
    assert any("redrive" in done for done in operator.done)


def test_held_at_the_spend_gate(operator: "Operator") -> None:
    operator.world.gate = "spend"
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "TaskHeld"
    operator.ends(task_id)


def test_over_budget(operator: "Operator") -> None:
    operator.world.budget = Budget.per_task("0.01 USD")
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "BudgetExceeded"
    operator.ends(task_id)


def test_over_two_budgets_at_once_each_is_named_with_what_is_left(operator: "Operator") -> None:
    operator.world.budget = Budget(per_task="1.00 USD", per_period="0.04 USD")
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "BudgetExceeded"
    steps = operator.cli("explain", task_id, "--json").json()["next"]
    raising = [step for step in steps if "budgets set" in step["command"]]
    assert [shlex.split(step["command"])[4:7] for step in raising] == [
        ["AMOUNT USD", "--task", task_id],
        ["AMOUNT USD", "--period", "2026-W32"],
    ]
    assert "0.04 of 0.04 USD are left" in raising[1]["when"]


def test_a_publication_that_waits_for_its_approval(operator: "Operator") -> None:
    operator.world.gate, operator.publishes = "publish", True
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "completed"
    assert operator.post.arrived == []
    operator.ends(task_id)
    assert operator.post.arrived == [task_id]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_message_in_doubt(operator: "Operator", arrived: bool) -> None:
    operator.publishes, operator.post.fault = True, OSError("the answer was lost")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    operator.post.fault = None
    if arrived:
        operator.post.arrived.append(task_id)
    operator.ends(task_id)
    assert operator.post.arrived == [task_id]


def test_a_message_that_is_dead(operator: "Operator") -> None:
    operator.publishes, operator.post.fault = True, DeliveryNotSent("no route")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    rows = operator.cli("outbox", "list", "--json").json()
    assert [row["state"] for row in rows] == ["dead"]
    operator.post.fault = None
    operator.ends(task_id)
    assert operator.post.arrived == [task_id]


def test_a_message_that_was_given_up_needs_nobody(operator: "Operator") -> None:
    operator.publishes, operator.post.fault = True, OSError("the answer was lost")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    words = ("--as", "given_up", "--evidence", "e", "--actor", "ada", "--reason", "r")
    assert operator.cli("outbox", "resolve", task_id, "post", *words).code == 0
    operator.ends(task_id)


def test_after_a_failure_while_its_backoff_runs(operator: "Operator") -> None:
    task_id = operator.world.allocate()
    operator.world.metered.fault("status", status=422)
    assert operator.launch(task_id) == "CallRejected"
    steps = operator.cli("explain", task_id, "--json").json()["next"]
    assert "the task sensor does so after" in steps[1]["when"]
    operator.ends(task_id)


@pytest.mark.parametrize("known", [True, False], ids=["dagster knows", "dagster shows it as started"])
@pytest.mark.parametrize("lease", ["runs", "is over"])
def test_a_lease_of_an_owner_that_died_between_two_calls(operator: "Operator", known: bool, lease: str) -> None:
    world = operator.world
    world.runs_are_over = known
    task_id = world.allocate()
    world.ledger.run(lambda c: leases.claim(c, "weekly_digest", task_id, "run-dead", finished=None, backoff=False))
    if lease == "is over":
        world.query("UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() RETURNING 1 AS x")
    operator.ends(task_id)
    assert any("tasks release" in done for done in operator.done) == (not known and lease == "runs")


@pytest.fixture
def killed(operator: "Operator", crew: "Crew", ledger_url: str) -> Iterator[Callable[[str], str]]:
    """Kill a worker whose paid request lies at the provider, taken in or not."""

    def kill(fault: str) -> str:
        world = operator.world
        task_id = world.allocate()
        worker = crew.worker(
            url=ledger_url,
            task_id=task_id,
            pipeline={"max_attempts": world.max_attempts},
            provider={
                "base_url": world.metered.base_url,
                "api_key_variable": "METERED_PROVIDER_KEY",
                "look_up_path": "/lookup" if world.look_up else None,
                "settle_delay": 0.01,
            },
            environment={"METERED_PROVIDER_KEY": "sk-made-up"},
        )
        worker.ask("claim", owner="run-killed")
        world.metered.fault(fault)
        worker.tell("call", content="hello")
        world.metered.wait_held()
        worker.kill()
        if fault == "hold":
            # Taken in and answered; nobody is there to hear it.
            world.metered.release()
        return task_id

    yield kill
    operator.world.metered.release()


@pytest.mark.parametrize("attempts", [5, 1])
@pytest.mark.parametrize("fault", ["hold", "hold_before_accepting"])
def test_killed_in_the_middle_of_a_paid_call(
    operator: "Operator", killed: Callable[[str], str], fault: str, attempts: int
) -> None:
    operator.world.max_attempts = attempts
    task_id = killed(fault)
    operator.ends(task_id)


def test_released_in_doubt_at_the_last_attempt(operator: "Operator", killed: Callable[[str], str]) -> None:
    operator.world.max_attempts = 1
    task_id = operator.world.settled_down(killed("hold"))
    assert operator.cli("tasks", "release", task_id, "--actor", "ada", "--reason", "its node is gone").code == 0
    assert operator.launch(task_id) == "TaskHeld"
    with pytest.raises(IdempotentError, match=r"is held \(in_doubt\): .* No paid call starts"):
        operator.world.claim(task_id)
    operator.ends(task_id)


def test_a_poison_pill_that_was_mended(operator: "Operator") -> None:
    operator.world.max_attempts, operator.world.poisonous = 2, True
    task_id = operator.world.allocate()
    while operator.world.status(task_id) != "dead":
        operator.launch(task_id)
    operator.world.poisonous = False
    operator.ends(task_id)


def test_a_poison_pill_at_its_last_attempt_before_anybody_declared_it_dead(operator: "Operator") -> None:
    operator.world.max_attempts, operator.world.poisonous = 1, True
    task_id = operator.world.allocate()
    operator.launch(task_id)
    assert operator.world.status(task_id) == "failed"
    operator.world.poisonous = False
    operator.ends(task_id)


def test_a_poison_pill_that_nobody_needs(operator: "Operator") -> None:
    operator.world.max_attempts, operator.wants = 2, "discard"
    operator.ends(operator.world.dead(), status="discarded", charges=0)


def test_not_worth_a_retry_since_another_payload_was_refused(operator: "Operator") -> None:
    operator.world.poisonous = True
    task_id = operator.world.allocate()
    operator.launch(task_id)
    assert operator.world.run(task_id, prompt="something else") == "PayloadMismatch"
    operator.world.poisonous = False
    document = operator.cli("explain", task_id, "--json").json()
    assert "a dead letter" in document["rerun"]["would"]
    operator.ends(task_id)
