"""Asynchronous clients: the context of the task that awaits, and tasks that are cancelled."""

import asyncio
from contextvars import ContextVar

import pytest

from dagster_idempotent.providers import clients
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.testing.claimed_work import exchange_of
from tests.integration.conftest import MESSAGES, Desk


class TestAsync:
    def test_the_exchange_runs_with_the_context_of_the_task_that_awaits_it(self, desk: Desk) -> None:
        call: ContextVar[str] = ContextVar("call", default="none")
        seen: list[str] = []
        provider = desk.provider("openai")

        def exchange(request: HttpRequest) -> HttpAnswer:
            seen.append(call.get())
            return exchange_of(desk.work, provider, call.get())(request)

        async def ask(name: str) -> object:
            call.set(name)
            async with clients.async_openai_client(exchange, provider) as client:
                return await client.chat.completions.create(model="m", messages=MESSAGES)

        async def all_of_them() -> list[object]:
            return await asyncio.gather(*(ask(f"shot-{number}") for number in range(4)))

        answers = asyncio.run(all_of_them())

        assert sorted(seen) == ["shot-0", "shot-1", "shot-2", "shot-3"]
        assert len({str(answer) for answer in answers}) == 4
        assert asyncio.run(all_of_them()) == answers

    def test_a_cancelled_task_leaves_its_answer_for_the_next(self, desk: Desk) -> None:
        provider = desk.provider("anthropic")
        before = desk.metered.charges
        desk.metered.fault("hold")

        async def ask() -> object:
            exchange = exchange_of(desk.work, provider, "summary")
            async with clients.async_anthropic_client(exchange, provider) as client:
                return await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

        async def cancelled() -> None:
            task = asyncio.create_task(ask())
            await asyncio.to_thread(desk.metered.wait_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            desk.metered.release()

        asyncio.run(cancelled())  # ends when the thread that sends is through

        assert desk.row()["state"] == "succeeded"
        assert asyncio.run(ask())
        assert desk.metered.charges - before == 1
