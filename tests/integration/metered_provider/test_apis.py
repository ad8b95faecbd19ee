"""The metered provider as stock SDKs see it: what it answers, how it streams, and how it goes wrong."""

import http.client
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import anthropic
import httpx2
import openai
import pytest
import stripe

from dagster_idempotent.testing.metered_provider import MeteredProvider

MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]


class Stock(NamedTuple):
    """Stock clients without retries."""

    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    stripe: stripe.StripeClient


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    with MeteredProvider.start(tmp_path_factory.mktemp("provider")) as started:
        yield started


@pytest.fixture
def stock(provider: MeteredProvider) -> Iterator[Stock]:
    base = provider.control_url
    with (
        openai.OpenAI(api_key="k", base_url=provider.base_url, max_retries=0) as of_openai,
        anthropic.Anthropic(api_key="k", base_url=base, max_retries=0) as of_anthropic,
    ):
        yield Stock(of_openai, of_anthropic, stripe.StripeClient("k", base_addresses={"api": base}))


def chat_stream(stock: Stock) -> list[Any]:
    return list(stock.openai.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def response_stream(stock: Stock) -> list[Any]:
    return list(stock.openai.responses.create(model="m", input="Fresh news", stream=True))


def message_stream(stock: Stock) -> list[Any]:
    return list(stock.anthropic.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True))


every_stream = pytest.mark.parametrize("stream", [chat_stream, response_stream, message_stream])
Stream = Callable[[Stock], list[Any]]


class TestAnswers:
    def test_a_response_is_text_with_usage(self, stock: Stock) -> None:
        answer = stock.openai.responses.create(model="m", input=[{"role": "user", "content": "Fresh news"}])

        assert answer.output_text.startswith("Fresh news (answer ")
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens

    def test_a_message_is_text_with_usage(self, stock: Stock) -> None:
        answer = stock.anthropic.messages.create(model="m", max_tokens=9, messages=MESSAGES)

        assert answer.content[0].type == "text"
        assert answer.content[0].text.startswith("Fresh news (answer ")
        assert answer.usage.output_tokens > 1
        assert answer._request_id == answer.id

    @pytest.mark.parametrize("kind", ["charges", "payment_intents"])
    def test_a_payment_succeeds_for_the_amount_that_was_asked_for(self, stock: Stock, kind: str) -> None:
        service: Any = getattr(stock.stripe.v1, kind)

        paid = service.create({"amount": 1200, "currency": "usd"})

        assert (paid.amount, paid.currency, paid.status) == (1200, "usd", "succeeded")

    def test_a_payment_under_the_same_key_is_made_once_where_keys_are_honoured(
        self, provider: MeteredProvider, stock: Stock
    ) -> None:
        provider.configure(deduplicate=True)
        before = provider.charges

        paid = {
            stock.stripe.v1.charges.create({"amount": 5, "currency": "usd"}, {"idempotency_key": "k-1"}).id
            for _ in range(2)
        }

        provider.configure(deduplicate=False)
        assert len(paid) == 1
        assert provider.charges - before == 1

    @pytest.mark.parametrize("form", [{"amount": 5}, {"currency": "usd"}, {"amount": "much", "currency": "usd"}])
    def test_a_payment_without_amount_or_currency_is_refused(
        self, provider: MeteredProvider, stock: Stock, form: dict[str, Any]
    ) -> None:
        before = provider.charges

        with pytest.raises(stripe.InvalidRequestError, match="expected"):
            stock.stripe.v1.charges.create(form)  # pyright: ignore[reportArgumentType]

        assert provider.charges == before


class TestStreams:
    def test_a_chat_is_streamed_in_pieces_with_the_usage_last(self, stock: Stock) -> None:
        *chunks, last = chat_stream(stock)

        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).startswith("Fresh news (answer ")
        assert last.usage.total_tokens > 0

    def test_a_response_is_streamed_in_pieces_and_whole_at_the_end(self, stock: Stock) -> None:
        streamed = response_stream(stock)

        text = "".join(event.delta for event in streamed if event.type == "response.output_text.delta")
        assert streamed[-1].type == "response.completed"
        assert streamed[-1].response.output_text == text

    def test_a_message_is_streamed_in_pieces_and_its_usage_comes_at_the_end(self, stock: Stock) -> None:
        streamed = message_stream(stock)

        assert streamed[0].message.usage.output_tokens == 1
        assert streamed[-2].usage.output_tokens > 1
        assert streamed[-1].type == "message_stop"

    @every_stream
    def test_a_stream_may_be_packed(self, provider: MeteredProvider, stock: Stock, stream: Stream) -> None:
        whole = stream(stock)
        provider.fault("gzipped")

        assert len(stream(stock)) == len(whole)

    def test_a_stream_may_stay_open_after_its_end(self, provider: MeteredProvider, stock: Stock) -> None:
        whole = chat_stream(stock)
        provider.fault("open_stream")

        # Of the stock clients only this one leaves at the end: the others would wait for the connection to close.
        assert len(chat_stream(stock)) == len(whole)

    @every_stream
    def test_a_truncated_stream_looks_like_success_to_a_stock_client(
        self, provider: MeteredProvider, stock: Stock, stream: Stream
    ) -> None:
        provider.fault("truncated_stream", events=2)

        assert len(stream(stock)) == 2

    @every_stream
    def test_a_cut_stream_breaks_off(self, provider: MeteredProvider, stock: Stock, stream: Stream) -> None:
        provider.fault("cut_stream", events=2)
        before = provider.charges

        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            stream(stock)

        assert provider.charges - before == 1

    @every_stream
    def test_a_stream_may_say_that_it_failed(self, provider: MeteredProvider, stock: Stock, stream: Stream) -> None:
        provider.fault("error_in_stream", events=2)

        with pytest.raises((openai.APIError, anthropic.APIStatusError), match="it failed half way"):
            stream(stock)


class TestFaults:
    def test_a_slow_answer_is_charged_before_it_comes(self, provider: MeteredProvider, stock: Stock) -> None:
        before = provider.charges
        provider.fault("slow", seconds=5.0)

        with pytest.raises(openai.APITimeoutError):
            stock.openai.with_options(timeout=0.2).responses.create(model="m", input="x")

        assert provider.charges - before == 1

    def test_an_error_in_a_200_is_charged(self, provider: MeteredProvider, stock: Stock) -> None:
        before = provider.charges
        provider.fault("error_in_200", message="out of luck")

        answer: Any = stock.openai.responses.create(model="m", input="x")

        assert answer.error.message == "out of luck"
        assert answer.id is None
        assert provider.charges - before == 1

    def test_an_empty_answer_is_charged(self, provider: MeteredProvider) -> None:
        before = provider.charges
        provider.fault("empty_answer", status=204)
        connection = http.client.HTTPConnection(provider.control_url.removeprefix("http://"), timeout=30)

        connection.request("POST", "/v1/messages", b'{"messages": []}', {"X-Api-Key": "k"})
        answer = connection.getresponse()

        assert (answer.status, answer.read()) == (204, b"")
        connection.close()
        assert provider.charges - before == 1

    def test_a_redirect_leads_to_the_same_endpoint_elsewhere(self, provider: MeteredProvider, stock: Stock) -> None:
        before = provider.charges
        provider.fault("redirect")

        stock.anthropic.messages.create(model="m", max_tokens=9, messages=MESSAGES)

        assert [request.path for request in provider.requests()][-2:] == ["/v1/messages", "/v1/elsewhere/messages"]
        assert provider.charges - before == 1
