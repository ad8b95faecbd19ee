import json
from decimal import Decimal

import pytest

from dagster_idempotent.domain.money import Money
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.pricing import model_cost, model_upper_bound

JSON = (("content-type", "application/json"),)
EVENTS = (("content-type", "text/event-stream"),)
CHAT_USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


def request(**fields: object) -> HttpRequest:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, **fields}
    kept = {name: value for name, value in body.items() if value is not None}
    return HttpRequest(method="POST", url="https://api.example/x", body=json.dumps(kept).encode())


def answer(body: object) -> HttpAnswer:
    return HttpAnswer(status=200, headers=JSON, body=json.dumps(body).encode())


def stream(*said: object) -> HttpAnswer:
    frames = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in said)
    return HttpAnswer(status=200, headers=EVENTS, body=frames + b"data: [DONE]\n\n")


class TestCost:
    def test_a_chat_completion_costs_what_its_usage_says(self) -> None:
        found = model_cost("openai")(request(), answer({"model": "gpt-4o", "choices": [], "usage": CHAT_USAGE}))

        # 2.50 and 10.00 dollars for a million tokens
        assert found == Money(amount=Decimal("0.0035"), currency="USD")

    def test_a_response_costs_what_its_usage_says(self) -> None:
        usage = {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 0}}

        assert model_cost("openai")(request(), answer({"model": "gpt-4o", "output": [], "usage": usage})) == Money(
            amount=Decimal("0.0035"), currency="USD"
        )

    def test_a_stream_costs_what_its_last_usage_says(self) -> None:
        chunk = {"id": "c", "model": "gpt-4o", "choices": [{"delta": {"content": "hi"}}], "usage": None}
        last = {"id": "c", "model": "gpt-4o", "choices": [], "usage": CHAT_USAGE}

        assert model_cost("openai")(request(), stream(chunk, last)) == Money(amount=Decimal("0.0035"), currency="USD")

    def test_the_usage_that_begins_a_message_stream_is_only_a_placeholder(self) -> None:
        placeholder = {"input_tokens": 1000, "output_tokens": 1}
        start = {"type": "message_start", "message": {"model": "claude-sonnet-4-0", "usage": placeholder}}
        end = {"type": "message_delta", "usage": {"output_tokens": 100}}
        whole = {
            "model": "claude-sonnet-4-0",
            "content": [],
            "usage": {"input_tokens": 1000, "output_tokens": 100},
        }

        streamed = model_cost("anthropic")(request(), stream(start, end))

        assert streamed == model_cost("anthropic")(request(), answer(whole))
        assert streamed is not None

    @pytest.mark.parametrize(
        "body",
        [
            {"model": "gpt-4o", "choices": []},
            {"model": "no-such-model", "choices": [], "usage": CHAT_USAGE},
            {"choices": [], "usage": CHAT_USAGE},
            {"model": "gpt-4o", "choices": [], "usage": "many"},
            [],
        ],
    )
    def test_what_is_not_known_is_not_zero(self, body: object) -> None:
        assert model_cost("openai")(request(), answer(body)) is None

    def test_a_stream_without_usage_has_an_unknown_cost(self) -> None:
        assert model_cost("openai")(request(), stream({"model": "gpt-4o", "choices": []})) is None


class TestUpperBound:
    def test_a_request_with_a_limit_is_bounded_by_its_bytes_and_its_limit(self) -> None:
        asked = request()
        found = model_upper_bound("openai")(asked)

        assert found is not None
        assert found.amount == len(asked.body) * Decimal("0.0000025") + 100 * Decimal("0.00001")

    def test_each_choice_counts(self) -> None:
        one, three = (model_upper_bound("openai")(request(n=n)) for n in (1, 3))

        assert one is not None
        assert three is not None
        assert three.amount - one.amount == 200 * Decimal("0.00001")

    @pytest.mark.parametrize(
        "fields",
        [
            {"max_tokens": None},
            {"model": "no-such-model"},
            {"tools": [{"type": "web_search"}]},
            {"previous_response_id": "resp_1"},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]},
        ],
    )
    def test_what_its_own_bytes_do_not_bound_has_no_bound(self, fields: dict[str, object]) -> None:
        assert model_upper_bound("openai")(request(**fields)) is None

    def test_a_body_that_is_no_json_has_no_bound(self) -> None:
        asked = HttpRequest(method="POST", url="https://api.example/x", body=b"amount=5")

        assert model_upper_bound("openai")(asked) is None
