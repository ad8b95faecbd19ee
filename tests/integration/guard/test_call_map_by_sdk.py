"""A function of the caller's own, which asks by an SDK or the guard, is mapped."""

from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.engine.call_keys import named_call
from dagster_idempotent.engine.call_map import map_calls
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import CallInDoubt, CallRejected, CallsUnfinished
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.testing.claimed_work import exchange_of

if TYPE_CHECKING:
    pass
from tests.integration.guard.conftest import Bench, about, name


class TestSdk:
    def test_an_sdk_client_is_mapped_by_its_call_keys(self, bench: Bench) -> None:
        provider = HttpProvider(OPENAI, base_url=bench.metered.base_url, api_key_variable="K")
        work = bench.claim(bench.allocate())

        def ask(item: int) -> str | None:
            with clients.openai_client(exchange_of(work, provider, named_call()), provider) as client:
                completion = client.chat.completions.create(**about(item))  # pyright: ignore[reportArgumentType, reportCallIssue]
            return completion.choices[0].message.content

        bench.metered.fault("status", status=400, body_contains="item <7>")
        with work.renewed():
            with pytest.raises(CallsUnfinished) as caught:
                map_calls(range(10), key=name, ask=ask)
            assert caught.value.facts["failed"] == ("item-7",)
            assert isinstance(caught.value.leading, CallRejected)
            answers = map_calls(range(10), key=name, ask=ask)
        assert None not in answers
        assert bench.charges == 10
        assert {row["call_key"] for row in bench.rows()} == {name(item) for item in range(10)}

    def test_a_doubt_that_the_callers_function_swallows_still_holds_the_task(self, bench: Bench) -> None:
        provider, work = bench.without_look_up(), bench.claim(bench.allocate())
        guard = Guard(work, provider)

        def ask(item: int) -> str:
            try:
                return guard.call(named_call(), about(item)).value.text
            except CallInDoubt:
                return "no answer"

        bench.metered.fault("accept_then_drop", body_contains="item <3>")
        with work.renewed():
            answers = map_calls(range(6), key=name, ask=ask)
        assert answers.count("no answer") == 1
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "in_doubt")
        assert len(bench.posts) == 6
