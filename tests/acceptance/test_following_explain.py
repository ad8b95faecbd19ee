"""Whatever holds a task, doing literally what `explain` says ends it, with as many charges as tasks.

The operator here knows the provider's console, whether a Dagster run is over and what was mended; everything else,
each command with every name and hash in it, comes from `explain KEY --json`. Only who, why, the evidence and an amount
are filled in.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.outbox import DeliveryPolicy
from dagster_idempotent.engine import relay
from dagster_idempotent.errors import DeliveryNotSent, IdempotentError
from dagster_idempotent.store import leases
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew

pytestmark = pytest.mark.usefixtures("own_keys")
Run = Callable[..., Any]
FILLED = {"NAME": "ada", "TEXT": "ticket 812"}
LAUNCH = ["dagster", "job", "backfill", "-j", "weekly_digest_job", "--partitions", "2026-08-03", "--noprompt"]
MOST_STEPS = 12
MODULE = """
from datetime import timedelta
from dagster_idempotent.domain.money import Money
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
provider = ChatCompletionsProvider(base_url={url!r}, look_up_path={path!r}, api_key_variable="METERED_PROVIDER_KEY",
    settle_delay=timedelta(milliseconds=10), cost_of=lambda _: Money.parse("0.02 USD"))
"""


class Post:
    """A channel whose deliveries can be told to fail."""

    deduplicates = False

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.arrived: list[str] = []

    def deliver(self, message: Any, *, window: Any) -> str:  # noqa: ARG002 - a channel's signature
        if self.fault is not None:
            raise self.fault
        self.arrived.append(message.task_id)
        return "arrived"


@dataclass(slots=True, kw_only=True)
class Operator:
    """Does what `explain` says, and judges only what its conditions ask about the world outside."""

    cli: Run
    world: Any
    folder: Path
    charged_before: int
    wants: str = "redrive"
    done: list[str] = field(default_factory=list)
    post: Post = field(default_factory=Post)
    publishes: bool = False

    def launch(self, task_id: str) -> str:
        """Run the task as the job that `explain` names: deliver what is ready at the end."""
        status = self.world.run(task_id, channels={"post": False} if self.publishes else None)
        if self.publishes:
            try:
                relay.deliver_task(
                    self.world.ledger,
                    "weekly_digest",
                    task_id,  # type: ignore[arg-type]
                    {"post": self.post},
                    policy=DeliveryPolicy(max_attempts=1),
                )
            except (OSError, IdempotentError):
                self.done.append("a delivery failed")
        return status

    def follow(self, task_id: str) -> str:
        """Do what is to be done until nothing is; return the last status."""
        for _ in range(MOST_STEPS):
            found = self.cli("explain", task_id, "--json")
            document = found.json()
            assert found.code == (3 if document["needs_operator"] else 0)
            if not document["next"]:
                return document["status"]
            for step in document["next"]:
                words = shlex.split(step["command"])
                if self.is_right(words, step["when"], task_id) and self.do(words, task_id):
                    break
            else:
                pytest.fail(f"no condition of explain holds: {json.dumps(document, indent=1)}")
        pytest.fail(f"explain did not lead to an end: {self.done}")

    def is_right(self, words: list[str], when: str, task_id: str) -> bool:
        """Judge whether the condition of a step holds."""
        match words[:3]:
            case ["dagster-idempotent", "calls", "resolve"]:
                record = self.console(task_id)
                finished = record is not None and record["response"] is not None
                wanted = "not_sent" if record is None else "succeeded" if finished else "accepted"
                return words[words.index("--as") + 1] == wanted
            case ["dagster-idempotent", "calls", "abandon" | "resend"]:
                return False
            case ["dagster-idempotent", "dead-letters", verb]:
                return verb == self.wants
            case ["dagster-idempotent", "outbox", "resolve"]:
                wanted = "delivered" if task_id in self.post.arrived else "not_delivered"
                return words[words.index("--as") + 1] == wanted
            case ["dagster-idempotent", "budgets", "set"]:
                return "--task" in words and not any("budgets set" in done for done in self.done)
            case ["dagster-idempotent", "explain", _]:
                # Nobody waits for a run that is gone; for a request that may still land one does.
                return "at work" not in when
            case ["dagster-idempotent", "tasks", "release"]:
                return not self.world.runs_are_over
            case ["dagster", "job", _]:
                return self.world.runs_are_over or "is over" not in when
            case _:
                return True

    def do(self, words: list[str], task_id: str) -> bool:
        """Do it; return whether something may have changed."""
        self.done.append(shlex.join(words))
        if words[0] == "dagster":
            assert words == LAUNCH
            self.launch(task_id)
            return True
        if "FILE" in words:
            record = self.console(task_id)
            assert record is not None
            (self.folder / "answer.json").write_text(json.dumps(record["response"]))
        filled = FILLED | {"FILE": str(self.folder / "answer.json")}
        arguments = [filled.get(word, word).replace("AMOUNT", "1.00") for word in words[1:]]
        result = self.cli(*arguments)
        assert result.code in (0, 3), result
        if arguments[0] == "explain":
            # It said when to ask again: that time passes.
            self.world.settled_down(task_id)
            return True
        # What only reads leads to the next step; so does a look-up that proved nothing.
        reading = arguments[:2] == ["budgets", "show"] or arguments[0] == "verify"
        return not reading and result.code == 0

    def console(self, task_id: str) -> dict[str, Any] | None:
        """Find the task's request in the provider's own records."""
        keys = self.world.query(
            "SELECT idempotency_key AS key FROM dagster_idempotent.submissions WHERE task_id = %s", task_id
        )
        records = [record for row in keys for record in self.world.console(row["key"])]
        return records[0] if records else None


@pytest.fixture(scope="module")
def metered_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    """Start one provider for the module; each test counts from where it began."""
    with MeteredProvider.start(tmp_path_factory.mktemp("metered")) as provider:
        yield provider


@pytest.fixture
def own_keys(sql: Any) -> None:
    """Rotate the ledger's id: copies of one template would share keys at the provider of this module."""
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.ledger SET ledger_id = gen_random_uuid()")
    sql.execute("SET session_replication_role = origin")


@pytest.fixture
def operator(
    cli: Run, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    name = f"providers_{abs(hash(request.node.name))}"
    path = "/lookup" if request.node.get_closest_marker("look_up") else None
    world.look_up = path is not None
    # Not answering while the call is made, or its run would settle it by itself.
    world.metered.configure(lookup=False)
    (tmp_path / f"{name}.py").write_text(MODULE.format(url=world.metered.base_url, path=path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_IDEMPOTENT_PROVIDERS", f"{name}:provider")
    yield Operator(cli=cli, world=world, folder=tmp_path, charged_before=world.metered.charges)
    world.metered.clear_faults()
    world.metered.release()


def ends(operator: Operator, task_id: str, *, status: str = "completed", charges: int = 1) -> None:
    """Follow `explain`; then the provider's bill has a charge a task, and the ledger says the same."""
    operator.world.metered.configure(lookup=True)
    assert operator.follow(task_id) == status
    assert operator.world.metered.charges - operator.charged_before == charges
    assert operator.cli("explain", task_id).code == 0
    assert operator.cli("verify").code == 0


@pytest.fixture(params=["doubtful", "never_arrived"])
def lost(request: pytest.FixtureRequest) -> str:
    """Name what became of the request whose answer nobody got."""
    return request.param


@pytest.mark.look_up
def test_in_doubt_where_the_provider_can_be_asked(operator: Operator, lost: str) -> None:
    ends(operator, getattr(operator.world, lost)())
    assert any("calls reconcile" in done for done in operator.done)


def test_in_doubt_where_only_the_console_knows(operator: Operator, lost: str) -> None:
    ends(operator, getattr(operator.world, lost)())
    assert any("calls resolve" in done for done in operator.done)


@pytest.mark.look_up
def test_in_doubt_in_a_frozen_pipeline(operator: Operator, lost: str) -> None:
    task_id = getattr(operator.world, lost)()
    assert operator.cli("pipelines", "freeze", "weekly_digest", "--actor", "a", "--reason", "failover").code == 0
    ends(operator, task_id)
    assert "verify --against-provider" in operator.done[0]


def test_held_by_a_freeze(operator: Operator) -> None:
    task_id = operator.world.allocate()
    assert operator.cli("pipelines", "freeze", "weekly_digest", "--actor", "a", "--reason", "failover").code == 0
    assert operator.launch(task_id) == "PipelineFrozen"
    ends(operator, task_id)


def test_in_doubt_at_the_last_attempt(operator: Operator, lost: str) -> None:
    operator.world.max_attempts = 1
    ends(operator, getattr(operator.world, lost)())
    assert any("redrive" in done for done in operator.done)


def test_held_at_the_spend_gate(operator: Operator) -> None:
    operator.world.gate = "spend"
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "TaskHeld"
    ends(operator, task_id)


def test_over_budget(operator: Operator) -> None:
    operator.world.budget = Budget.per_task("0.01 USD")
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "BudgetExceeded"
    ends(operator, task_id)


def test_over_two_budgets_at_once_each_is_named_with_what_is_left(operator: Operator) -> None:
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


def test_a_publication_that_waits_for_its_approval(operator: Operator) -> None:
    operator.world.gate, operator.publishes = "publish", True
    task_id = operator.world.allocate()
    assert operator.launch(task_id) == "completed"
    assert operator.post.arrived == []
    ends(operator, task_id)
    assert operator.post.arrived == [task_id]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_message_in_doubt(operator: Operator, arrived: bool) -> None:
    operator.publishes, operator.post.fault = True, OSError("the answer was lost")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    operator.post.fault = None
    if arrived:
        operator.post.arrived.append(task_id)
    ends(operator, task_id)
    assert operator.post.arrived == [task_id]


def test_a_message_that_is_dead(operator: Operator) -> None:
    operator.publishes, operator.post.fault = True, DeliveryNotSent("no route")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    rows = operator.cli("outbox", "list", "--json").json()
    assert [row["state"] for row in rows] == ["dead"]
    operator.post.fault = None
    ends(operator, task_id)
    assert operator.post.arrived == [task_id]


def test_a_message_that_was_given_up_needs_nobody(operator: Operator) -> None:
    operator.publishes, operator.post.fault = True, OSError("the answer was lost")
    task_id = operator.world.allocate()
    operator.launch(task_id)
    words = ("--as", "given_up", "--evidence", "e", "--actor", "ada", "--reason", "r")
    assert operator.cli("outbox", "resolve", task_id, "post", *words).code == 0
    ends(operator, task_id)


def test_after_a_failure_while_its_backoff_runs(operator: Operator) -> None:
    task_id = operator.world.allocate()
    operator.world.metered.fault("status", status=422)
    assert operator.launch(task_id) == "CallRejected"
    steps = operator.cli("explain", task_id, "--json").json()["next"]
    assert "the task sensor does so after" in steps[1]["when"]
    ends(operator, task_id)


@pytest.mark.parametrize("known", [True, False], ids=["dagster knows", "dagster shows it as started"])
@pytest.mark.parametrize("lease", ["runs", "is over"])
def test_a_lease_of_an_owner_that_died_between_two_calls(operator: Operator, known: bool, lease: str) -> None:
    world = operator.world
    world.runs_are_over = known
    task_id = world.allocate()
    world.ledger.run(lambda c: leases.claim(c, "weekly_digest", task_id, "run-dead", finished=None, backoff=False))
    if lease == "is over":
        world.query("UPDATE dagster_idempotent.tasks SET lease_expires_at = clock_timestamp() RETURNING 1 AS x")
    ends(operator, task_id)
    assert any("tasks release" in done for done in operator.done) == (not known and lease == "runs")


@pytest.fixture
def killed(operator: Operator, crew: "Crew", ledger_url: str) -> Iterator[Callable[[str], str]]:
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
    operator: Operator, killed: Callable[[str], str], fault: str, attempts: int
) -> None:
    operator.world.max_attempts = attempts
    task_id = killed(fault)
    ends(operator, task_id)


def test_released_in_doubt_at_the_last_attempt(operator: Operator, killed: Callable[[str], str]) -> None:
    operator.world.max_attempts = 1
    task_id = operator.world.settled_down(killed("hold"))
    assert operator.cli("tasks", "release", task_id, "--actor", "ada", "--reason", "its node is gone").code == 0
    assert operator.launch(task_id) == "TaskHeld"
    with pytest.raises(IdempotentError, match=r"is held \(in_doubt\): .* No paid call starts"):
        operator.world.claim(task_id)
    ends(operator, task_id)


def test_a_poison_pill_that_was_mended(operator: Operator) -> None:
    operator.world.max_attempts, operator.world.poisonous = 2, True
    task_id = operator.world.allocate()
    while operator.world.status(task_id) != "dead":
        operator.launch(task_id)
    operator.world.poisonous = False
    ends(operator, task_id)


def test_a_poison_pill_at_its_last_attempt_before_anybody_declared_it_dead(operator: Operator) -> None:
    operator.world.max_attempts, operator.world.poisonous = 1, True
    task_id = operator.world.allocate()
    operator.launch(task_id)
    assert operator.world.status(task_id) == "failed"
    operator.world.poisonous = False
    ends(operator, task_id)


def test_a_poison_pill_that_nobody_needs(operator: Operator) -> None:
    operator.world.max_attempts, operator.wants = 2, "discard"
    ends(operator, operator.world.dead(), status="discarded", charges=0)


def test_not_worth_a_retry_since_another_payload_was_refused(operator: Operator) -> None:
    operator.world.poisonous = True
    task_id = operator.world.allocate()
    operator.launch(task_id)
    assert operator.world.run(task_id, prompt="something else") == "PayloadMismatch"
    operator.world.poisonous = False
    document = operator.cli("explain", task_id, "--json").json()
    assert "a dead letter" in document["rerun"]["would"]
    ends(operator, task_id)
