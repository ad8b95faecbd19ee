"""Keys, look-ups, costs and budgets of calls by SDK clients."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest
import requests
from pydantic import BaseModel

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.errors import BudgetExceeded, ConfigurationError
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.outcome import Finding, NotFound, Succeeded
from dagster_idempotent.providers.pricing import model_cost, model_upper_bound
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.claimed_work import AnyOutput, claimed_work, exchange_of
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.conftest import MESSAGES, Desk

Frugal = Callable[..., object]


class TestProvider:
    def test_a_lost_answer_is_found_by_the_reference_that_was_sent(self, desk: Desk) -> None:
        provider = desk.provider("openai")
        before = desk.metered.charges

        def find(keys: Sequence[IdempotencyKey]) -> Finding:
            for key in keys:
                url = f"{desk.metered.base_url}/lookup?client_reference={key}"
                for found in requests.get(url, timeout=10).json()["requests"]:
                    body = requests.models.complexjson.dumps(found["response"]).encode()
                    headers = (("content-type", "application/json"),)
                    answer = HttpAnswer(status=200, headers=headers, body=body).to_store()
                    return Succeeded(answer=answer, remote_ref=found["id"])
            return NotFound(complete=True)

        desk.metered.fault("accept_then_drop")
        finding = desk.provider("openai", find=find)
        answer: Any = desk.ask("openai", provider=finding)

        assert answer.id == desk.row()["remote_ref"]
        assert desk.row()["settled_by"] == "look_up"
        assert desk.metered.charges - before == 1
        assert desk.ask("openai", provider=provider) == answer

    def test_the_cost_is_kept_and_a_mistake_in_it_does_not_lose_the_answer(self, desk: Desk) -> None:
        price = Money(amount=Decimal("0.02"), currency="USD")

        def wrong(_: HttpRequest, answer: HttpAnswer) -> Money:
            return Money(amount=Decimal(answer.headers[99][0]), currency="USD")

        desk.ask("openai", "priced", provider=desk.provider("openai", cost_of=lambda _, __: price))
        desk.ask("openai", "mistaken", provider=desk.provider("openai", cost_of=wrong))

        assert (desk.row("priced")["cost"], desk.row("priced")["currency"]) == (Decimal("0.02"), "USD")
        assert (desk.row("mistaken")["state"], desk.row("mistaken")["cost"]) == ("succeeded", None)

    def test_a_stripe_call_goes_under_the_key_of_the_ledger(self, desk: Desk) -> None:
        provider = desk.provider("stripe", settle_delay=timedelta(0))
        client = clients.stripe_client(exchange_of(desk.work, provider, "summary"), provider)

        client.v1.charges.create({"amount": 5, "currency": "usd"}, {"idempotency_key": "of-the-caller"})

        assert desk.metered.requests()[-1].client_reference == desk.row()["idempotency_key"]

    def test_a_callers_key_stays_where_the_provider_promises_nothing_of_keys(self, desk: Desk) -> None:
        provider = desk.provider("httpx2")
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)
        body = {"messages": MESSAGES}

        client.post("/chat/completions", json=body, headers={"idempotency-key": "of-the-caller"})
        assert desk.metered.requests()[-1].client_reference == "of-the-caller"

        other = clients.httpx_client(exchange_of(desk.work, provider, "other"), provider, httpx2)
        other.post("/chat/completions", json=body)
        assert desk.metered.requests()[-1].client_reference == desk.row("other")["idempotency_key"]


class TestBudget:
    @pytest.fixture
    def frugal(self, ledger: Database, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> Frugal:
        monkeypatch.setenv("K", "a-key")
        pipeline = Pipeline[BaseModel]("frugal", output=AnyOutput, budget=Budget.per_task("0.0011 USD"))

        def ask(call: str, model: str = "gpt-4o", limit: int = 50) -> object:
            provider = HttpProvider(
                OPENAI,
                base_url=metered_provider.base_url,
                api_key_variable="K",
                cost_of=model_cost("openai"),
                estimate=model_upper_bound("openai"),
            )
            with claimed_work(ledger, pipeline) as work:
                client = clients.openai_client(exchange_of(work, provider, call), provider)
                return client.chat.completions.create(model=model, messages=MESSAGES, max_completion_tokens=limit)

        return ask

    def test_a_model_without_a_price_is_refused_where_there_is_a_budget(
        self, frugal: Frugal, metered_provider: MeteredProvider
    ) -> None:
        with pytest.raises(ConfigurationError, match="upper bound"):
            frugal("summary", model="no-such-model")

        assert metered_provider.requests() == ()

    def test_the_upper_bound_is_reserved_and_the_real_cost_is_settled(
        self, frugal: Frugal, metered_provider: MeteredProvider
    ) -> None:
        for call in ("one", "two", "three"):  # each could cost 0.00076 at most and costs 0.00005
            frugal(call)
        with pytest.raises(BudgetExceeded):
            frugal("four", limit=200)

        assert metered_provider.charges == 3
