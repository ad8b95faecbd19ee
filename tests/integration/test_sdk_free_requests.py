"""What costs nothing goes through as it is, and leaves no record."""

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import stripe

from dagster_idempotent.providers import clients
from tests.integration.conftest import Desk, never


class TestFreeRequests:
    def test_a_free_request_is_sent_each_time_and_not_recorded(self, desk: Desk) -> None:
        provider = desk.provider("openai")
        client = clients.openai_client(never, provider)
        before = len(desk.metered.requests())

        for _ in range(2):
            with pytest.raises(openai.NotFoundError):
                client.models.list()

        assert len(desk.metered.requests()) - before == 2

    @pytest.mark.parametrize(
        ("sdk", "kind"),
        [
            ("openai", openai.APIConnectionError),
            ("anthropic", anthropic.APIConnectionError),
            ("stripe", stripe.APIConnectionError),
            ("httpx", httpx.ConnectError),
            ("httpx2", httpx2.ConnectError),
            ("requests", requests.ConnectionError),
        ],
    )
    def test_a_free_request_without_an_answer_fails_as_the_sdk_words_it(
        self, desk: Desk, sdk: str, kind: type[Exception]
    ) -> None:
        provider = desk.provider(sdk, control_url="http://127.0.0.1:9")
        ask = {
            "openai": clients.openai_client(never, provider).models.list,
            "anthropic": clients.anthropic_client(never, provider).models.list,
            "stripe": lambda: clients.stripe_client(never, provider).v1.charges.retrieve("ch_1"),
            "httpx": lambda: clients.httpx_client(never, provider, httpx).get("/things"),
            "httpx2": lambda: clients.httpx_client(never, provider, httpx2).get("/things"),
            "requests": lambda: clients.requests_session(never, provider).get(f"{provider.base_url}/things"),
        }[sdk]

        with pytest.raises(kind):
            ask()
