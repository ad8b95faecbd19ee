"""Setting resources up is cheap, and nothing stays behind (R36)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from pydantic import BaseModel
from real_dagster import Dagster

from dagster_idempotent import (
    AllocatorResource,
    GuardedChatCompletionsResource,
    Identity,
    LedgerResource,
    Pipeline,
    Raw,
    Task,
    idempotent_job,
)
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import DatabaseUnavailable
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

NOBODY = "postgresql://nobody:secret@127.0.0.1:1/nowhere"


class Output(BaseModel):
    text: str


def collect(task: Task) -> str:
    return task.task_id


def transform(raw: Raw, model: GuardedChatCompletionsResource) -> Output:
    assert model
    return Output(text=raw.text())


crowd = Pipeline("crowd", output=Output)


def test_definitions_load_and_resources_are_set_up_without_a_database_and_without_a_credential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    job = idempotent_job(crowd, collect=collect, transform=transform)
    ledger = LedgerResource(url=NOBODY)
    definitions = dg.Definitions(
        jobs=[job],
        resources={
            "ledger": ledger,
            "allocator": AllocatorResource(ledger=ledger),
            "model": GuardedChatCompletionsResource(),
        },
    )
    dg.Definitions.validate_loadable(definitions)
    threads = threading.active_count()
    with dg.build_resources(
        {"ledger": ledger, "allocator": AllocatorResource(ledger=ledger), "model": GuardedChatCompletionsResource()}
    ) as resources:
        assert resources.model.provider().name
    assert threading.active_count() == threads


def test_a_nested_ledger_takes_its_url_from_the_environment_when_the_run_starts(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    # code_location.py nests the ledger in the allocator, with an EnvVar as its URL.
    assert dagster.launch("weekly_digest", partition="acme|2026-08-03").status is dg.DagsterRunStatus.SUCCESS
    assert metered_provider.charges == 1


def test_after_a_run_only_daemon_threads_are_left(dagster: Dagster, folder: Path) -> None:
    assert folder.exists()
    before = {thread for thread in threading.enumerate() if not thread.daemon}
    assert dagster.launch("weekly_digest", partition="acme|2026-08-03").status is dg.DagsterRunStatus.SUCCESS
    left = {thread for thread in threading.enumerate() if not thread.daemon} - before
    assert left == set()
    assert not [thread for thread in threading.enumerate() if "heartbeat" in thread.name]


def test_thirty_claims_at_once_share_few_connections(ledger_url: str, sql: psycopg.Connection[dict[str, Any]]) -> None:
    resource = LedgerResource(url=ledger_url, max_connections=2)
    tasks = _tasks(resource, 30)
    with ThreadPoolExecutor(30) as pool:
        works = list(pool.map(lambda task: _claim(resource.database(), task), tasks))
    assert [work.attempt for work in works] == [1] * 30
    used = sql.execute(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    assert used is not None
    assert used["n"] <= 2


def test_thirty_processes_worth_of_claims_get_through_or_say_what_is_full(
    ledger_url: str, sql: psycopg.Connection[dict[str, Any]]
) -> None:
    tasks = _tasks(LedgerResource(url=ledger_url), 30)
    role = f"few_{sql.info.backend_pid}"
    sql.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3")
    sql.execute(f"GRANT ALL ON SCHEMA dagster_idempotent TO {role}")
    sql.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA dagster_idempotent TO {role}")
    try:
        url = ledger_url.replace("postgres@", f"{role}@")
        databases = [Database(url, max_connections=1) for _ in tasks]
        with ThreadPoolExecutor(30) as pool:
            works = list(pool.map(_claim_and_close, databases, tasks))
        assert [work.attempt for work in works] == [1] * 30

        # Nobody gives a connection up: the error says so, within the patience that was set.
        holders = [psycopg.connect(url) for _ in range(3)]
        with pytest.raises(DatabaseUnavailable, match=r"too many connections|did not serve us within 1 s"):
            _claim(LedgerResource(url=url, patience_seconds=1).database(), tasks[0])
        for holder in holders:
            holder.close()
    finally:
        sql.execute(f"DROP OWNED BY {role}")
        sql.execute(f"DROP ROLE {role}")


def _tasks(resource: LedgerResource, number: int) -> list[TaskId]:
    allocator = AllocatorResource(ledger=resource)
    return [
        allocator.allocate(crowd, Identity(pipeline="crowd", explicit_key=f"task {n}")).task_id for n in range(number)
    ]


def _claim(database: Database, task: TaskId) -> Any:
    owner = Owner(f"run of {task}")
    return claim(database, Heartbeat(database), crowd, task, owner, is_finished=lambda _: False)


def _claim_and_close(database: Database, task: TaskId) -> Any:
    try:
        return _claim(database, task)
    finally:
        database.close()
