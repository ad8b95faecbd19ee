"""Official SDKs in an op: the resource is swapped, `call=` is added, and a lost answer is charged once (R19)."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import dagster as dg
import openai
import pytest
from pydantic import BaseModel

from dagster_idempotent import (
    AllocatorResource,
    GuardedAnthropicResource,
    GuardedOpenAIResource,
    LedgerResource,
    Pipeline,
    Task,
    call_key,
    idempotent_job,
    iso_week_partitions,
)
from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEK = "2026-08-03"
MESSAGES: Any = [{"role": "user", "content": "say something"}]
Run = Callable[[Callable[..., Any]], tuple[bool, str]]


class Answer(BaseModel):
    text: str


def by_openai(context: dg.OpExecutionContext, sdk: GuardedOpenAIResource) -> Answer:
    with sdk.get_client(context, call="summary") as client:
        assert isinstance(client, openai.OpenAI)
        completion = client.chat.completions.create(model="m", messages=MESSAGES)
    return Answer(text=completion.choices[0].message.content or "")


def by_openai_asynchronously(context: dg.OpExecutionContext, sdk: GuardedOpenAIResource) -> Answer:
    async def ask() -> str:
        async with sdk.get_async_client(context) as client:
            with call_key("summary"):
                completion = await client.chat.completions.create(model="m", messages=MESSAGES)
        return completion.choices[0].message.content or ""

    return Answer(text=asyncio.run(ask()))


def by_anthropic(context: dg.OpExecutionContext, sdk: GuardedAnthropicResource) -> Answer:
    with sdk.get_client(context, call="summary") as client:
        assert isinstance(client, anthropic.Anthropic)
        message = client.messages.create(model="m", max_tokens=100, messages=MESSAGES)
    (block,) = message.content
    return Answer(text=getattr(block, "text", ""))


def without_a_name(context: dg.OpExecutionContext, sdk: GuardedOpenAIResource) -> Answer:
    with sdk.get_client(context) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)
    return Answer(text="never")


def collect(task: Task) -> str:
    return f"documents of {task.task_id}"


@pytest.fixture
def run(folder: Path, ledger_url: str, metered_provider: MeteredProvider) -> Iterator[Run]:
    assert folder.exists()
    ledger = LedgerResource(url=ledger_url)
    with dg.instance_for_test() as instance:

        def once(transform: Callable[..., Any]) -> tuple[bool, str]:
            pipeline = Pipeline("weekly", output=Answer, sender_lease="1s", send_window="900ms")
            weeks = iso_week_partitions("2026-01-05")
            job = idempotent_job(pipeline, collect=collect, transform=transform, partitions_def=weeks)
            base = metered_provider.control_url if transform is by_anthropic else metered_provider.base_url
            kind = GuardedAnthropicResource if transform is by_anthropic else GuardedOpenAIResource
            resources = {
                "ledger": ledger,
                "allocator": AllocatorResource(ledger=ledger),
                "sdk": kind(base_url=base, api_key_variable="TEST_API_KEY"),
            }
            defs = dg.Definitions(jobs=[job], resources=resources)
            result = defs.resolve_job_def("weekly").execute_in_process(
                instance=instance, partition_key=WEEK, raise_on_error=False
            )
            if result.success:
                return True, result.output_for_node("persist").text
            (failed, *_) = [event for event in result.all_events if event.is_step_failure]
            return False, str(failed.step_failure_data.error)

        yield once


@pytest.mark.parametrize("transform", [by_openai, by_openai_asynchronously, by_anthropic])
def test_a_week_run_twice_is_charged_once_with_one_text(
    run: Run, metered_provider: MeteredProvider, transform: Callable[..., Any]
) -> None:
    first, second = run(transform), run(transform)
    assert first == second
    assert first[0]
    assert metered_provider.charges == 1


@pytest.mark.parametrize("transform", [by_openai, by_anthropic])
def test_a_lost_answer_is_one_charge_however_often_the_run_is_started(
    run: Run, metered_provider: MeteredProvider, transform: Callable[..., Any]
) -> None:
    metered_provider.fault("accept_then_drop", times=None)
    for _ in range(3):
        success, text = run(transform)
        assert not success
        assert "in_doubt" in text or "in doubt" in text
    assert metered_provider.charges == 1


def test_a_paid_request_without_a_call_key_is_refused_before_it_leaves(
    run: Run, metered_provider: MeteredProvider
) -> None:
    success, text = run(without_a_name)
    assert not success
    assert "without a call key" in text
    assert not metered_provider.requests()
