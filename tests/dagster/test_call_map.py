"""Many calls in a real op: what is missing is sent by the next run, what is in doubt holds the task (R14, R16)."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent import (
    AllocatorResource,
    GuardedChatCompletionsResource,
    GuardedOpenAIResource,
    GuardedProviderResource,
    JobApi,
    JsonJobApi,
    LedgerResource,
    Pipeline,
    Task,
    idempotent_job,
    iso_week_partitions,
    map_calls,
)
from dagster_idempotent.testing.metered_provider import MeteredProvider


class Labels(BaseModel):
    labels: list[str]


def key(number: int) -> str:
    return f"ticket-{number}"


def request(number: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": f"ticket <{number}>"}]}


def by_hand(context: dg.OpExecutionContext, model: GuardedChatCompletionsResource) -> Labels:
    answers = model.get_calls(context).map(range(10), key=key, request=request)
    return Labels(labels=[answer.text for answer in answers])


def by_openai(context: dg.OpExecutionContext, model: GuardedOpenAIResource) -> Labels:
    with model.get_client(context) as client:

        def ask(number: int) -> str:
            return client.chat.completions.create(**request(number)).choices[0].message.content or ""

        return Labels(labels=map_calls(range(10), key=key, ask=ask, concurrency=4))


def collect(task: Task) -> str:
    return task.task_id


@pytest.mark.parametrize("transform", [by_hand, by_openai])
def test_a_run_sends_what_the_one_before_could_not_and_holds_what_is_in_doubt(
    transform: Any, folder: Path, ledger_url: str, metered_provider: MeteredProvider
) -> None:
    assert folder.exists()
    ledger = LedgerResource(url=ledger_url)
    kind = GuardedOpenAIResource if transform is by_openai else GuardedChatCompletionsResource
    resources = {
        "ledger": ledger,
        "allocator": AllocatorResource(ledger=ledger),
        "model": kind(base_url=metered_provider.base_url, api_key_variable="TEST_API_KEY"),
    }
    pipeline = Pipeline("weekly", output=Labels)
    weeks = iso_week_partitions("2026-01-05")
    job = idempotent_job(pipeline, collect=collect, transform=transform, partitions_def=weeks)
    defs = dg.Definitions(jobs=[job], resources=resources)

    with dg.instance_for_test() as instance:

        def run(week: str) -> tuple[bool, str]:
            result = defs.resolve_job_def("weekly").execute_in_process(
                instance=instance, partition_key=week, raise_on_error=False
            )
            failed = [event for event in result.all_events if event.is_step_failure]
            return result.success, str(failed[0].step_failure_data.error) if failed else ""

        for number in range(6):
            metered_provider.fault("status", status=400, body_contains=f"ticket <{number}>")
        success, text = run("2026-08-03")
        assert not success
        assert "4 of 10 calls" in text
        assert metered_provider.charges == 4
        assert run("2026-08-03") == (True, "")
        assert metered_provider.charges == 10
        assert len(metered_provider.requests()) == 16

        metered_provider.fault("accept_then_drop", body_contains="ticket <3>")
        success, text = run("2026-08-10")
        assert not success
        assert "In doubt: ticket-3 (CallInDoubt)" in text
        success, text = run("2026-08-10")
        assert not success
        assert "is held (in_doubt)" in text
        assert metered_provider.charges == 20


class Studio(GuardedProviderResource):
    base_url: str

    def provider(self) -> JsonJobApi:
        api = JobApi(result_path="/jobs/{id}/result", poll_budget=timedelta(0))
        return JsonJobApi(api, name="studio", base_url=self.base_url, api_key_variable="TEST_API_KEY")


def films(context: dg.OpExecutionContext, model: Studio) -> Labels:
    made = model.get_calls(context).map(range(3), key=key, request=lambda number: {"prompt": str(number)})
    return Labels(labels=[film.media_type for film in made])


def test_waiting_for_many_jobs_uses_no_attempt(
    folder: Path, ledger_url: str, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.exists()
    monkeypatch.setattr("dagster_idempotent.definitions.step.MAX_WAITS", 0)
    ledger = LedgerResource(url=ledger_url)
    model = Studio(base_url=metered_provider.base_url)
    resources = {"ledger": ledger, "allocator": AllocatorResource(ledger=ledger), "model": model}
    pipeline = Pipeline("weekly", output=Labels, max_attempts=1)
    weeks = iso_week_partitions("2026-01-05")
    job = idempotent_job(pipeline, collect=collect, transform=films, partitions_def=weeks)
    defs = dg.Definitions(jobs=[job], resources=resources)
    with dg.instance_for_test() as instance, psycopg.connect(ledger_url, autocommit=True) as connection:
        # A job has ended at its third poll; each run has time for one.
        for over in (False, False, True):
            result = defs.resolve_job_def("weekly").execute_in_process(
                instance=instance, partition_key="2026-08-03", raise_on_error=False
            )
            assert result.success is over
            task = connection.execute("SELECT status, attempts FROM dagster_idempotent.tasks").fetchone()
            assert task == (("completed", 1) if over else ("pending", 0))
    assert metered_provider.charges == 3
