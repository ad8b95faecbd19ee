"""A replay gives the SDK the stored bytes: its object is equal, and of the same type, down to the last field (R16).

Whole answers and stream chunks, synchronous and asynchronous, raw responses too.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import stripe
from pydantic import BaseModel

from dagster_idempotent.providers import clients
from dagster_idempotent.testing.claimed_work import exchange_of

if TYPE_CHECKING:
    from tests.integration.conftest import Desk

MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]
CHARGE: Any = {"amount": 1200, "currency": "usd"}
Ask = Callable[..., object]


def openai_chat(exchange: Any, provider: Any) -> object:
    return clients.openai_client(exchange, provider).chat.completions.create(model="m", messages=MESSAGES)


def openai_chat_stream(exchange: Any, provider: Any) -> object:
    client = clients.openai_client(exchange, provider)
    return list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def openai_responses(exchange: Any, provider: Any) -> object:
    return clients.openai_client(exchange, provider).responses.create(model="m", input="Fresh news")


def openai_responses_stream(exchange: Any, provider: Any) -> object:
    return list(clients.openai_client(exchange, provider).responses.create(model="m", input="Fresh news", stream=True))


def openai_raw(exchange: Any, provider: Any) -> object:
    client = clients.openai_client(exchange, provider)
    raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    return raw.status_code, list(raw.headers.multi_items()), raw.content, raw.parse()


def async_openai_chat(exchange: Any, provider: Any) -> object:
    client = clients.async_openai_client(exchange, provider)
    return asyncio.run(client.chat.completions.create(model="m", messages=MESSAGES))


def async_openai_responses_stream(exchange: Any, provider: Any) -> object:
    async def ask() -> list[object]:
        async with clients.async_openai_client(exchange, provider) as client:
            stream = await client.responses.create(model="m", input="Fresh news", stream=True)
            return [event async for event in stream]

    return asyncio.run(ask())


def anthropic_message(exchange: Any, provider: Any) -> object:
    return clients.anthropic_client(exchange, provider).messages.create(model="m", max_tokens=9, messages=MESSAGES)


def anthropic_stream(exchange: Any, provider: Any) -> object:
    client = clients.anthropic_client(exchange, provider)
    return list(client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True))


def async_anthropic_stream(exchange: Any, provider: Any) -> object:
    async def ask() -> list[object]:
        async with clients.async_anthropic_client(exchange, provider) as client:
            stream = await client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True)
            return [event async for event in stream]

    return asyncio.run(ask())


def stripe_charge(exchange: Any, provider: Any) -> object:
    return clients.stripe_client(exchange, provider).v1.charges.create(CHARGE)


def async_stripe_intent(exchange: Any, provider: Any) -> object:
    return asyncio.run(clients.stripe_client(exchange, provider).v1.payment_intents.create_async(CHARGE))


def by_httpx(module: Any) -> Ask:
    def ask(exchange: Any, provider: Any) -> object:
        with clients.httpx_client(exchange, provider, module) as client:
            found = client.post("/chat/completions", json={"model": "m", "messages": MESSAGES})
            return (
                found.status_code,
                found.reason_phrase,
                found.http_version,
                found.headers,
                found.content,
                found.json(),
            )

    return ask


def by_requests(exchange: Any, provider: Any) -> object:
    with clients.requests_session(exchange, provider) as session:
        found = session.post(f"{provider.base_url}/chat/completions", json={"model": "m", "messages": MESSAGES})
        return found.status_code, found.reason, found.headers, found.content, found.json()


CASES: dict[str, tuple[str, Ask, type]] = {
    "openai chat": ("openai", openai_chat, openai.types.chat.ChatCompletion),
    "openai chat stream": ("openai", openai_chat_stream, openai.types.chat.ChatCompletionChunk),
    "openai responses": ("openai", openai_responses, openai.types.responses.Response),
    "openai responses stream": ("openai", openai_responses_stream, BaseModel),
    "openai raw response": ("openai", openai_raw, tuple),
    "async openai chat": ("openai", async_openai_chat, openai.types.chat.ChatCompletion),
    "async openai responses stream": ("openai", async_openai_responses_stream, BaseModel),
    "anthropic": ("anthropic", anthropic_message, anthropic.types.Message),
    "anthropic stream": ("anthropic", anthropic_stream, BaseModel),
    "async anthropic stream": ("anthropic", async_anthropic_stream, BaseModel),
    "stripe": ("stripe", stripe_charge, stripe.Charge),
    "async stripe": ("stripe", async_stripe_intent, stripe.PaymentIntent),
    "httpx": ("httpx", by_httpx(httpx), tuple),
    "httpx2": ("httpx2", by_httpx(httpx2), tuple),
    "requests": ("requests", by_requests, tuple),
}


def shape(value: object) -> object:
    """Return the types all the way down, so that equal values of other types are told apart."""
    if isinstance(value, BaseModel):
        return type(value), {name: shape(each) for name, each in value}
    if isinstance(value, stripe.StripeObject):
        return type(value), {name: shape(value[name]) for name in value.to_dict()}
    if isinstance(value, dict):
        return type(value), {name: shape(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [shape(each) for each in value]
    return type(value)


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_first_answer_and_its_replay_are_equal_objects(desk: "Desk", case: str, *, gzipped: bool) -> None:
    sdk, ask, kind = CASES[case]
    if gzipped:
        desk.metered.fault("gzipped")
    before = len(desk.metered.requests())

    def once() -> object:
        provider = desk.provider(sdk)

        return ask(exchange_of(desk.work, provider, "summary"), provider)

    first, replayed = once(), once()

    assert first == replayed
    assert shape(first) == shape(replayed)
    items = first if isinstance(first, list) else [first]
    assert items
    assert all(isinstance(item, kind) for item in items)
    assert len(desk.metered.requests()) - before == 1
