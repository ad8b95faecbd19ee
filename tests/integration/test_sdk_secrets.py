"""A credential is put only on what is sent, and only to its own origin."""

from pathlib import Path

import httpx2
import psycopg
import pytest

from dagster_idempotent.errors import CallRejected, ConfigurationError
from dagster_idempotent.providers import clients
from dagster_idempotent.testing.claimed_work import exchange_of
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.conftest import Desk, Sdk, every_sdk, never


class TestSecrets:
    @every_sdk
    def test_the_placeholder_is_replaced_only_on_what_is_sent(
        self, desk: Desk, sdk: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("METERED_PROVIDER_KEY", secret)
        with MeteredProvider.start(tmp_path, require_key="METERED_PROVIDER_KEY") as strict:
            desk.ask(sdk, provider=desk.provider(sdk, control_url=strict.control_url))
            assert strict.charges == 1

        with psycopg.connect(desk.work.database.url) as connection:
            tables = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dagster_idempotent'"
            ).fetchall()
            kept = [
                connection.execute(f"SELECT t::text FROM dagster_idempotent.{name} t").fetchall()  # noqa: S608
                for (name,) in tables
            ]
        assert "summary" in str(kept)
        assert secret not in str(kept)

    def test_a_provider_that_echoes_the_credential_does_not_get_it_into_the_ledger(
        self, desk: Desk, secret: str
    ) -> None:
        desk.metered.fault("status", status=401, body=f"wrong key {secret}")

        with pytest.raises(CallRejected) as caught:
            desk.ask("openai")

        assert secret not in str(caught.value)
        assert secret not in str(desk.row())

    @every_sdk
    def test_building_a_client_reads_no_credential(
        self, desk: Desk, sdks: dict[str, Sdk], sdk: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = desk.provider(sdk)
        monkeypatch.delenv("METERED_PROVIDER_KEY")

        with pytest.raises(pytest.fail.Exception, match="a paid request was made"):
            sdks[sdk].ask(never, provider)

    def test_a_request_to_another_origin_gets_neither_credential_nor_answer(self, desk: Desk) -> None:
        provider = desk.provider("httpx2")
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)

        for method in ("GET", "POST"):
            with pytest.raises(ConfigurationError, match=r"evil\.example"):
                client.request(method, "https://evil.example/v1/chat/completions")
