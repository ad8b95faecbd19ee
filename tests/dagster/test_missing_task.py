"""A missing task stops before a credential is read and before a client exists (R10, R11)."""

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg
import psycopg
import pytest
from pydantic import BaseModel
from real_dagster import Dagster

from dagster_idempotent import (
    GuardedChatCompletionsResource,
    LedgerResource,
    Pipeline,
    Task,
    collect_op,
    persist_op,
    transform_op,
)
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider


class Answer(BaseModel):
    text: str


class Environment(dict[str, str]):
    """The environment, which remembers what was asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.asked.append(key)
        return super().__getitem__(key)


missing = Pipeline("missing", output=Answer)
entered: list[str] = []


def collect(task: Task) -> str:
    entered.append("collect")
    return task.task_id


def transform(context: dg.OpExecutionContext, model: GuardedChatCompletionsResource) -> Answer:
    entered.append("transform")
    return model.get_calls(context).ask("call", {"model": "m", "messages": []}, accept=Answer)


@dg.op
def a_task_id() -> str:
    return "2026-W01-7"


@dg.op
def a_candidate() -> dict[str, str]:
    return {"text": "made up"}


@dg.job
def collects() -> None:
    collect_op(missing, collect)(a_task_id())


@dg.job
def transforms() -> None:
    transform_op(missing, transform)(a_task_id())


@dg.job
def persists() -> None:
    persist_op(missing)(a_task_id(), a_candidate())


@pytest.mark.parametrize("job", [collects, transforms, persists], ids=lambda job: job.name)
def test_an_unknown_task_id_stops_every_op_before_anything_is_read_built_or_sent(
    job: dg.JobDefinition,
    ledger_url: str,
    ledger: Database,
    metered_provider: MeteredProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = Environment(os.environ)
    monkeypatch.setattr(os, "environ", environment)
    built: list[object] = []
    monkeypatch.setattr(ChatCompletionsProvider, "submit", lambda *_, **__: built.append("a request"))
    entered.clear()
    model = GuardedChatCompletionsResource(
        base_url=metered_provider.base_url, api_key_variable="TEST_API_KEY", look_up_path="/lookup"
    )
    resources = {"ledger": LedgerResource(url=ledger_url), "model": model}
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, resources=resources, raise_on_error=False)
        (failed,) = [event for event in result.all_events if event.is_step_failure]
        text = failed.step_failure_data.error_display_string
    assert "There is no task '2026-W01-7' in pipeline 'missing'. Nothing was read or sent." in text
    assert "TEST_API_KEY" not in environment.asked
    assert (built, entered, metered_provider.requests()) == ([], [], ())
    assert ledger.run(_tasks) == 0


def _tasks(connection: psycopg.Connection[dict[str, Any]]) -> int:
    row = connection.execute("SELECT count(*) AS n FROM dagster_idempotent.tasks").fetchone()
    assert row is not None
    return row["n"]


def test_steps_re_executed_for_a_task_that_is_gone_stop_before_anything_is_sent(
    dagster: Dagster, ledger: Database, metered_provider: MeteredProvider, ledger_url: str
) -> None:
    first = dagster.launch("weekly_digest", partition="acme|2026-08-03")
    with psycopg.connect(ledger_url) as connection:
        # Somebody restored an older ledger under the same Dagster.
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM dagster_idempotent.tasks")
    again = dagster.reexecute_steps(first, ["transform", "persist", "deliver"])
    assert again.status is dg.DagsterRunStatus.FAILURE
    assert "There is no task '2026-W32-0'" in dagster.failures(again)[0]
    assert metered_provider.charges == 1
    assert ledger.run(_tasks) == 0


def test_an_unset_credential_stops_no_run_before_its_task_and_costs_nothing(
    dagster: Dagster, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.delenv("TEST_API_KEY")
    first = dagster.launch("weekly_digest", partition="acme|2026-08-03")
    assert first.status is dg.DagsterRunStatus.FAILURE
    assert dagster.run(first.run_id).tags["dagster-idempotent/task_id"] == "2026-W32-0"
    (text,) = dagster.failures(first)
    assert "The environment variable TEST_API_KEY is unset or empty" in text
    assert metered_provider.requests() == ()

    monkeypatch.setenv("TEST_API_KEY", secret)
    again = dagster.reexecute(first, "FROM_FAILURE")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert metered_provider.charges == 1
