"""A client that would send by itself is refused, and one that is asked to still sends once."""

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import stripe

from dagster_idempotent.errors import CallInDoubt, ConfigurationError
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.hidden_retries import refuse_hidden_retries
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.testing.claimed_work import exchange_of
from tests.integration.conftest import MESSAGES, Desk, every_sdk, never


class TestRetries:
    @pytest.mark.parametrize("sdk", ["openai", "anthropic"])
    def test_retries_switched_on_for_one_request_still_send_once(self, desk: Desk, sdk: str) -> None:
        before = len(desk.metered.requests())
        desk.metered.fault("accept_then_drop", times=None)
        provider = desk.provider(sdk)
        exchange = exchange_of(desk.work, provider, "summary")

        def ask() -> object:
            if sdk == "openai":
                persistent = clients.openai_client(exchange, provider).with_options(max_retries=3)
                return persistent.chat.completions.create(model="m", messages=MESSAGES)
            stubborn = clients.anthropic_client(exchange, provider).with_options(max_retries=3)
            return stubborn.messages.create(model="m", max_tokens=9, messages=MESSAGES)

        with pytest.raises(CallInDoubt):
            ask()

        assert len(desk.metered.requests()) - before == 1

    @every_sdk
    def test_the_clients_that_are_built_here_hide_nothing(self, desk: Desk, sdk: str) -> None:
        provider = desk.provider(sdk)
        built = {
            "openai": [lambda: clients.openai_client(never, provider)],
            "anthropic": [lambda: clients.anthropic_client(never, provider)],
            "stripe": [lambda: clients.stripe_client(never, provider)],
            "httpx": [lambda: clients.httpx_client(never, provider, httpx)],
            "httpx2": [lambda: clients.httpx_client(never, provider, httpx2)],
            "requests": [lambda: clients.requests_session(never, provider)],
        }
        for build in built[sdk]:
            refuse_hidden_retries(build())

    @pytest.mark.parametrize(
        ("client", "reason"),
        [
            (openai, "the module"),
            (openai.OpenAI(api_key="k"), "max_retries=2"),
            (openai.OpenAI(api_key="k", max_retries=0), "expected the guarded transport"),
            (openai.AsyncOpenAI(api_key="k", max_retries=0), "expected the guarded transport"),
            (anthropic.Anthropic(api_key="k"), "max_retries=2"),
            (stripe.StripeClient("k"), "HTTP client of its own"),
            (stripe.StripeClient("k", max_network_retries=2), "max_network_retries"),
            (httpx.Client(), "HTTPTransport"),
            (httpx2.AsyncClient(), "AsyncHTTPTransport"),
            (requests.Session(), "an adapter of its own"),
            (type("Client", (), {"__module__": "google.genai.client"})(), "aiohttp"),
            (object(), "not one that this library knows"),
        ],
    )
    def test_a_client_that_would_send_past_the_guard_is_refused_with_the_reason(
        self, client: object, reason: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=reason):
            refuse_hidden_retries(client)

    @pytest.mark.parametrize("option", ["max_retries", "http_client", "api_key", "base_url", "follow_redirects"])
    def test_an_option_that_the_guard_decides_is_refused(self, option: str) -> None:
        with pytest.raises(ConfigurationError, match=option):
            clients.openai_client(never, HttpProvider(OPENAI), **{option: None})
