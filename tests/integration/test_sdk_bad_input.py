"""What a client cannot send is refused before anything is recorded."""

from typing import Any

import httpx2
import pytest

from dagster_idempotent.errors import ConfigurationError, InvalidPayload
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.testing.claimed_work import exchange_of
from tests.integration.conftest import Desk, never


class TestBadInput:
    def test_a_body_that_is_too_large_is_refused_before_anything_is_recorded(self, desk: Desk) -> None:
        provider = desk.provider("httpx2", max_request=1000)
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)

        with pytest.raises(InvalidPayload, match="1000"):
            client.post("/chat/completions", content=b"x" * 1001)

        assert (
            desk.work.database.run(lambda c: c.execute("SELECT 1 FROM dagster_idempotent.submissions").fetchall()) == []
        )

    def test_a_number_that_json_does_not_have_is_refused_by_its_place(self, desk: Desk) -> None:
        provider = desk.provider("httpx2")
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)
        headers = {"content-type": "application/json"}

        with pytest.raises(InvalidPayload) as caught:
            client.post("/chat/completions", content=b'{"messages": [], "temperature": NaN}', headers=headers)

        assert caught.value.facts["field"] == "/json/temperature"

    @pytest.mark.parametrize(
        ("name", "options"),
        [("verify", {"verify": False}), ("cert", {"cert": "c.pem"}), ("proxies", {"proxies": {"http": "http://p"}})],
    )
    def test_a_session_with_a_route_of_its_own_is_refused(self, desk: Desk, name: str, options: dict[str, Any]) -> None:
        provider = desk.provider("requests")
        session = clients.requests_session(never, provider)

        with pytest.raises(ConfigurationError, match=name):
            session.post(f"{provider.base_url}/chat/completions", **options)

    def test_a_credential_without_an_address_to_send_it_to_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="base_url"):
            HttpProvider(api_key_variable="K")
