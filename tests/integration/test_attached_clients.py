"""A client that the user built is guarded with the user's settings, or refused with the reason (R19)."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai
import pytest
import requests
import stripe

from dagster_idempotent.errors import CallInDoubt, ConfigurationError
from dagster_idempotent.providers import clients
from dagster_idempotent.testing.claimed_work import exchange_of

if TYPE_CHECKING:
    from tests.integration.conftest import Desk

MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]


@pytest.fixture
def attach(desk: "Desk") -> Callable[..., Any]:
    def attached(sdk: str, client: Any) -> Any:
        provider = desk.provider(sdk)
        return clients.attach(exchange_of(desk.work, provider, "summary"), provider, client)

    return attached


def with_openai(desk: "Desk", attach: Callable[..., Any]) -> object:
    own = openai.OpenAI(api_key="mine", base_url=desk.metered.base_url, max_retries=5, organization="acme")
    client = attach("openai", own)
    assert (client.max_retries, client.organization, own.max_retries) == (0, "acme", 5)
    assert client.api_key != "mine"
    return client.chat.completions.create(model="m", messages=MESSAGES)


def with_async_openai(desk: "Desk", attach: Callable[..., Any]) -> object:
    client = attach("openai", openai.AsyncOpenAI(api_key="mine", base_url=desk.metered.base_url))
    return asyncio.run(client.chat.completions.create(model="m", messages=MESSAGES))


def with_anthropic(desk: "Desk", attach: Callable[..., Any]) -> object:
    client = attach("anthropic", anthropic.Anthropic(api_key="mine", base_url=desk.metered.control_url))
    return client.messages.create(model="m", max_tokens=9, messages=MESSAGES)


def with_requests(desk: "Desk", attach: Callable[..., Any]) -> object:
    session = requests.Session()
    session.headers["X-Team"] = "news"
    attach("requests", session)
    answer = session.post(f"{desk.metered.base_url}/chat/completions", json={"model": "m", "messages": MESSAGES})
    return answer.content


@pytest.mark.parametrize("ask", [with_openai, with_async_openai, with_anthropic, with_requests])
def test_a_client_with_retries_on_sends_once_and_replays(
    desk: "Desk", attach: Callable[..., Any], ask: Callable[..., object]
) -> None:
    before = len(desk.metered.requests())
    first = ask(desk, attach)
    assert ask(desk, attach) == first
    (request,) = desk.metered.requests()[before:]
    assert "mine" not in str(request.headers)


@pytest.mark.parametrize("ask", [with_openai, with_async_openai, with_anthropic])
def test_a_lost_answer_is_one_request(desk: "Desk", attach: Callable[..., Any], ask: Callable[..., object]) -> None:
    before = len(desk.metered.requests())
    desk.metered.fault("accept_then_drop", times=None)
    for _ in range(2):
        with pytest.raises(CallInDoubt):
            ask(desk, attach)
    assert len(desk.metered.requests()) - before == 1


def test_a_client_of_another_place_sends_nothing(desk: "Desk", attach: Callable[..., Any]) -> None:
    client = attach("openai", openai.OpenAI(api_key="mine", base_url="https://elsewhere.example/v1"))
    with pytest.raises(ConfigurationError, match=r"elsewhere\.example"):
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert "mine" not in repr(desk.metered.requests())


def mounted() -> requests.Session:
    session = requests.Session()
    session.mount("https://api.example/", requests.adapters.HTTPAdapter(max_retries=3))
    return session


@pytest.mark.parametrize(
    ("sdk", "client", "reason"),
    [
        ("openai", openai, "openai itself, the module"),
        ("stripe", stripe, "stripe itself, the module"),
        ("stripe", stripe.StripeClient("mine"), "HTTP client of its own"),
        ("httpx", httpx.Client(), "expected the guarded transport"),
        ("requests", mounted(), "an adapter of its own"),
        ("openai", type("Client", (), {"__module__": "google.genai.client"})(), "aiohttp"),
    ],
    ids=["openai-module", "stripe-module", "stripe", "httpx", "requests", "google-genai"],
)
def test_what_would_send_past_the_guard_is_refused(
    attach: Callable[..., Any], sdk: str, client: object, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        attach(sdk, client)
    assert caught.value.facts["field"] == "client"
    assert "Nothing was sent" in caught.value.message
