"""An operator who does literally what `explain` says, and judges only what its conditions ask about the world outside.

The command line and the paid work are those of tests/paid_world.py.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))

from paid_world import cli, world

from dagster_idempotent.domain.outbox import DeliveryPolicy
from dagster_idempotent.engine import relay
from dagster_idempotent.errors import IdempotentError

__all__ = ["cli", "world"]

Run = Callable[..., Any]
FILLED = {"NAME": "ada", "TEXT": "ticket 812"}
READING = (["budgets", "show"], ["tasks", "artifact"], ["tasks", "output"])
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

    def ends(self, task_id: str, *, status: str = "completed", charges: int = 1) -> None:
        """Follow `explain`; then the provider's bill has a charge a task, and the ledger says the same."""
        self.world.metered.configure(lookup=True)
        assert self.follow(task_id) == status
        assert self.world.metered.charges - self.charged_before == charges
        assert self.cli("explain", task_id).code == 0
        assert self.cli("verify").code == 0

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
        reading = arguments[:2] in READING or arguments[0] == "verify"
        return not reading and result.code == 0

    def console(self, task_id: str) -> dict[str, Any] | None:
        """Find the task's request in the provider's own records."""
        keys = self.world.query(
            "SELECT idempotency_key AS key FROM dagster_idempotent.submissions WHERE task_id = %s", task_id
        )
        records = [record for row in keys for record in self.world.console(row["key"])]
        return records[0] if records else None


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
    world.metered.configure(deduplicate=False)
    world.metered.release()
