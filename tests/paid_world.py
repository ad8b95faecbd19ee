"""A command line run as its users run it, and paid work made through the guard for it to look at."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from dagster_idempotent.cli import main
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Owner, TaskStatus
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.allocator import Allocator, get_task
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import IdempotentError, TaskClosed
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

KEY = "METERED_PROVIDER_KEY"
CONSOLE = {"Authorization": "Bearer sk-made-up"}
MONDAY = datetime(2026, 8, 3, tzinfo=UTC)


class Digest(BaseModel):
    title: str
    highlights: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(slots=True, kw_only=True)
class World:
    """A pipeline whose tasks make one paid call, `summary`, at the metered provider."""

    ledger: Database
    metered: MeteredProvider
    gate: Any = None
    budget: Budget | None = None
    max_attempts: int = 5
    look_up: bool = False
    settle_delay: timedelta = timedelta(milliseconds=10)
    key_window: timedelta | None = None
    runs: int = 0
    runs_are_over: bool = True
    poisonous: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def pipeline(self) -> Pipeline[Any]:
        return Pipeline(
            "weekly_digest",
            output=Digest,
            approval=self.gate,
            budget=self.budget,
            max_attempts=self.max_attempts,
        )

    @property
    def provider(self) -> ChatCompletionsProvider:
        return ChatCompletionsProvider(
            base_url=self.metered.base_url,
            api_key_variable=KEY,
            look_up_path="/lookup" if self.look_up else None,
            settle_delay=self.settle_delay,
            key_window=self.key_window,
            cost_of=lambda _: Money.parse("0.02 USD"),
            upper_bound=Money.parse("0.05 USD"),
        )

    def allocate(self, subject: str = "acme") -> str:
        identity = Identity(pipeline="weekly_digest", subject=subject, scheduled_at=MONDAY)
        launch = {"job": "weekly_digest_job", "partition_key": "2026-08-03", "ops": {}}
        return Allocator(self.ledger).allocate(self.pipeline, identity, launch=launch).task_id

    def claim(self, task_id: str) -> Work:
        """Claim a task for a new Dagster run."""
        self.runs += 1
        return claim(
            self.ledger,
            Heartbeat(self.ledger),
            self.pipeline,
            TaskId(task_id),
            Owner(f"run-{self.runs}"),
            is_finished=lambda _: self.runs_are_over,
            providers=[self.provider],
        )

    def run(self, task_id: str, *, prompt: str = "hello", channels: dict[str, bool] | None = None) -> str:
        """Run the task as a Dagster run would; return its status, or the kind of error that stopped it."""
        request = {
            "model": "m",
            "messages": [{"role": "user", "content": prompt}],
            "response_format": {"type": "json_object"},
        }
        try:
            work = self.claim(task_id)
            with work.renewed():
                try:
                    stages.collect(work, lambda: b"raw")
                    digest = Calls(work, self.provider).ask("summary", request, accept=Digest)
                    self.go_on_after_paying()
                    stages.persist(work, digest, dagster_run_id=work.lease.owner, channels=channels or {})
                except IdempotentError as error:
                    # As the op does it.
                    work.fail_with(error)
                    raise
        except TaskClosed:
            pass
        except IdempotentError as error:
            return type(error).__name__
        return self.status(task_id)

    def go_on_after_paying(self) -> None:
        if self.poisonous:
            raise IdempotentError("the code after the paid call is broken")

    def doubtful(self, subject: str = "acme") -> str:
        """Make a task whose call was accepted and charged, and whose answer was lost."""
        task_id = self.allocate(subject)
        self.metered.fault("accept_then_drop")
        assert self.run(task_id) == "CallInDoubt"
        return task_id

    def never_arrived(self, subject: str = "acme") -> str:
        """Make a task whose call was dropped before the provider took it in."""
        task_id = self.allocate(subject)
        self.metered.fault("drop_before_accepting")
        assert self.run(task_id) == "CallInDoubt"
        return task_id

    def settled_down(self, task_id: str) -> str:
        """Let so much time pass for the calls of a task that no request can land any more; return the task."""
        self.query(
            "UPDATE dagster_idempotent.submissions SET sender_expires_at = clock_timestamp() - interval '1 hour' "
            "WHERE task_id = %s RETURNING 1 AS x",
            task_id,
        )
        return task_id

    def dead(self, subject: str = "acme") -> str:
        """Make a task whose attempts are spent."""
        task_id = self.allocate(subject)
        self.metered.fault("status", times=None, status=422)
        while self.status(task_id) != "dead":
            self.run(task_id)
        self.metered.clear_faults()
        return task_id

    def status(self, task_id: str) -> str:
        status: TaskStatus = get_task(self.ledger, "weekly_digest", task_id).status  # type: ignore[arg-type]
        return str(status)

    def query(self, text: Any, *parameters: object) -> list[dict[str, Any]]:
        return self.ledger.run(lambda c: c.execute(text, parameters).fetchall())

    def console(self, idempotency_key: str) -> list[dict[str, Any]]:
        """What the provider's own console shows of a key, whatever it offers to programs."""
        self.metered.configure(lookup=True)
        answer = httpx.get(
            f"{self.metered.base_url}/lookup",
            params={"client_reference": idempotency_key},
            headers=CONSOLE,
        )
        return answer.json()["requests"]


@pytest.fixture
def world(ledger: Database, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv(KEY, "sk-made-up")
    return World(ledger=ledger, metered=metered_provider)


Run = Callable[..., Transcript]


@pytest.fixture
def cli(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the test's own ledger."""
    parts = conninfo_to_dict(ledger_url)
    monkeypatch.setenv("DAGSTER_IDEMPOTENT_POSTGRES_URL", f"postgresql:///?{urlencode(parts)}")

    def run(*arguments: str, env: dict[str, str] | None = None, given: bytes | None = None) -> Transcript:
        result = CliRunner().invoke(main, list(arguments), env=env, input=given, prog_name="dagster-idempotent")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Transcript(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run
