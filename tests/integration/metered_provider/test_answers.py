"""What the metered provider answers to those who pay."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.metered_provider.conftest import ask, chat, send


class TestAnswers:
    def test_an_answer_is_a_valid_chat_completion(self, provider: MeteredProvider) -> None:
        reply = ask(provider)

        assert reply.status == 200
        assert reply.json["object"] == "chat.completion"
        assert reply.json["model"] == "m"
        assert reply.json["id"] == reply.headers["x-request-id"]
        assert reply.json["choices"][0]["finish_reason"] == "stop"
        usage = reply.json["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def test_each_answer_carries_its_number_and_differs_from_the_last(self, provider: MeteredProvider) -> None:
        first, second = ask(provider), ask(provider)

        assert "answer 1" in first.content
        assert "answer 2" in second.content
        assert first.json["id"] != second.json["id"]

    @pytest.mark.parametrize(
        "wish",
        [
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "digest", "schema": {}}}},
            {"metadata": {"format": "json"}},
        ],
    )
    def test_an_answer_is_json_where_the_request_asks_for_json(
        self, provider: MeteredProvider, wish: dict[str, object]
    ) -> None:
        digest = json.loads(send(provider, body=chat(**wish)).content)

        assert "answer 1" in digest["title"]
        assert digest["highlights"] == ["Fresh news", "More news"]

    def test_concurrent_requests_are_each_charged_and_numbered_once(self, provider: MeteredProvider) -> None:
        together = threading.Barrier(32)

        def one(index: int) -> str:
            together.wait(30)
            return ask(provider, X_Client_Request_Id=f"caller-{index}").content

        with ThreadPoolExecutor(32) as pool:
            contents = list(pool.map(one, range(32)))

        bill = provider.bill()
        assert bill.charges == 32
        assert [line.number for line in bill.lines] == list(range(1, 33))
        assert {line.client_reference for line in bill.lines} == {f"caller-{index}" for index in range(32)}
        for number in range(1, 33):
            assert sum(f"answer {number}," in content for content in contents) == 1
