"""What the guarded clients keep to themselves, refuse, and hand through, beside the matrix of faults."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import httpx2
import openai
import psycopg
import pytest
import requests
import stripe
from pydantic import BaseModel

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.errors import (
    BudgetExceeded,
    CallInDoubt,
    CallInProgress,
    CallNotSent,
    CallRejected,
    ConfigurationError,
    CredentialMissing,
    InvalidPayload,
    PayloadMismatch,
)
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.hidden_retries import refuse_hidden_retries
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.outcome import Finding, NotFound, Succeeded
from dagster_idempotent.providers.pricing import model_cost, model_upper_bound
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.claimed_work import AnyOutput, claimed_work, exchange_of
from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.integration.conftest import Desk, Sdk

Frugal = Callable[..., object]
MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]
BASES = {"openai": openai.OpenAIError, "anthropic": anthropic.AnthropicError, "stripe": stripe.StripeError}
every_sdk = pytest.mark.parametrize("sdk", ["openai", "anthropic", "stripe", "httpx", "httpx2", "requests"])


def never(_: HttpRequest) -> HttpAnswer:
    pytest.fail("a paid request was made")


class TestErrors:
    @pytest.mark.parametrize("sdk", list(BASES))
    def test_an_error_of_the_guard_is_of_its_own_class_and_of_the_sdks(self, desk: "Desk", sdk: str) -> None:
        desk.metered.fault("status", status=400)

        with pytest.raises(CallRejected) as caught:
            desk.ask(sdk)

        assert isinstance(caught.value, BASES[sdk])
        assert caught.value.call_key == "summary"  # pyright: ignore[reportAttributeAccessIssue]
        assert str(caught.value) == caught.value.message
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
        assert (type(again), str(again), again.facts) == (type(caught.value), str(caught.value), caught.value.facts)

    @every_sdk
    def test_a_request_that_never_left_says_so_and_goes_out_later(self, desk: "Desk", sdk: str) -> None:
        before = desk.metered.charges
        with pytest.raises(CallNotSent):
            desk.ask(sdk, provider=desk.provider(sdk, control_url="http://127.0.0.1:9"))

        desk.ask(sdk)

        assert desk.metered.charges - before == 1

    @every_sdk
    def test_a_missing_credential_is_named_and_nothing_is_sent(
        self, desk: "Desk", sdk: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = len(desk.metered.requests())
        monkeypatch.delenv("METERED_PROVIDER_KEY")

        with pytest.raises(CredentialMissing, match="METERED_PROVIDER_KEY"):
            desk.ask(sdk)

        assert len(desk.metered.requests()) == before
        assert desk.row()["state"] == "not_sent"

    def test_an_answer_stored_for_one_request_is_not_given_for_another(self, desk: "Desk") -> None:
        desk.ask("openai")

        with pytest.raises(PayloadMismatch) as caught:
            desk.ask("openai-stream")

        assert isinstance(caught.value, openai.OpenAIError)
        assert "/json/stream" in str(caught.value)

    def test_a_call_that_is_being_sent_names_its_sender_and_is_replayed_afterwards(self, desk: "Desk") -> None:
        before = desk.metered.charges
        desk.metered.fault("hold")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(desk.ask, "openai")
            desk.metered.wait_held()
            with pytest.raises(CallInProgress, match="test-run"):
                desk.ask("openai")
            desk.metered.release()
            answer = first.result(30)

        assert desk.ask("openai") == answer
        assert desk.metered.charges - before == 1


class TestRetries:
    @pytest.mark.parametrize("sdk", ["openai", "anthropic"])
    def test_retries_switched_on_for_one_request_still_send_once(self, desk: "Desk", sdk: str) -> None:
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
    def test_the_clients_that_are_built_here_hide_nothing(self, desk: "Desk", sdk: str) -> None:
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


class TestSecrets:
    @every_sdk
    def test_the_placeholder_is_replaced_only_on_what_is_sent(
        self, desk: "Desk", sdk: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        self, desk: "Desk", secret: str
    ) -> None:
        desk.metered.fault("status", status=401, body=f"wrong key {secret}")

        with pytest.raises(CallRejected) as caught:
            desk.ask("openai")

        assert secret not in str(caught.value)
        assert secret not in str(desk.row())

    @every_sdk
    def test_building_a_client_reads_no_credential(
        self, desk: "Desk", sdks: dict[str, "Sdk"], sdk: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = desk.provider(sdk)
        monkeypatch.delenv("METERED_PROVIDER_KEY")

        with pytest.raises(pytest.fail.Exception, match="a paid request was made"):
            sdks[sdk].ask(never, provider)

    def test_a_request_to_another_origin_gets_neither_credential_nor_answer(self, desk: "Desk") -> None:
        provider = desk.provider("httpx2")
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)

        for method in ("GET", "POST"):
            with pytest.raises(ConfigurationError, match=r"evil\.example"):
                client.request(method, "https://evil.example/v1/chat/completions")


class TestFreeRequests:
    def test_a_free_request_is_sent_each_time_and_not_recorded(self, desk: "Desk") -> None:
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
        self, desk: "Desk", sdk: str, kind: type[Exception]
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


class TestBadInput:
    def test_a_body_that_is_too_large_is_refused_before_anything_is_recorded(self, desk: "Desk") -> None:
        provider = desk.provider("httpx2", max_request=1000)
        client = clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx2)

        with pytest.raises(InvalidPayload, match="1000"):
            client.post("/chat/completions", content=b"x" * 1001)

        assert (
            desk.work.database.run(lambda c: c.execute("SELECT 1 FROM dagster_idempotent.submissions").fetchall()) == []
        )

    def test_a_number_that_json_does_not_have_is_refused_by_its_place(self, desk: "Desk") -> None:
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
    def test_a_session_with_a_route_of_its_own_is_refused(
        self, desk: "Desk", name: str, options: dict[str, Any]
    ) -> None:
        provider = desk.provider("requests")
        session = clients.requests_session(never, provider)

        with pytest.raises(ConfigurationError, match=name):
            session.post(f"{provider.base_url}/chat/completions", **options)

    def test_a_credential_without_an_address_to_send_it_to_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="base_url"):
            HttpProvider(api_key_variable="K")


class TestAsync:
    def test_the_exchange_runs_with_the_context_of_the_task_that_awaits_it(self, desk: "Desk") -> None:
        call: ContextVar[str] = ContextVar("call", default="none")
        seen: list[str] = []
        provider = desk.provider("openai")

        def exchange(request: HttpRequest) -> HttpAnswer:
            seen.append(call.get())
            return exchange_of(desk.work, provider, call.get())(request)

        async def ask(name: str) -> object:
            call.set(name)
            async with clients.async_openai_client(exchange, provider) as client:
                return await client.chat.completions.create(model="m", messages=MESSAGES)

        async def all_of_them() -> list[object]:
            return await asyncio.gather(*(ask(f"shot-{number}") for number in range(4)))

        answers = asyncio.run(all_of_them())

        assert sorted(seen) == ["shot-0", "shot-1", "shot-2", "shot-3"]
        assert len({str(answer) for answer in answers}) == 4
        assert asyncio.run(all_of_them()) == answers

    def test_a_cancelled_task_leaves_its_answer_for_the_next(self, desk: "Desk") -> None:
        provider = desk.provider("anthropic")
        before = desk.metered.charges
        desk.metered.fault("hold")

        async def ask() -> object:
            exchange = exchange_of(desk.work, provider, "summary")
            async with clients.async_anthropic_client(exchange, provider) as client:
                return await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

        async def cancelled() -> None:
            task = asyncio.create_task(ask())
            await asyncio.to_thread(desk.metered.wait_held)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            desk.metered.release()

        asyncio.run(cancelled())  # ends when the thread that sends is through

        assert desk.row()["state"] == "succeeded"
        assert asyncio.run(ask())
        assert desk.metered.charges - before == 1


class TestProvider:
    def test_a_lost_answer_is_found_by_the_reference_that_was_sent(self, desk: "Desk") -> None:
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

    def test_the_cost_is_kept_and_a_mistake_in_it_does_not_lose_the_answer(self, desk: "Desk") -> None:
        price = Money(amount=Decimal("0.02"), currency="USD")

        def wrong(_: HttpRequest, answer: HttpAnswer) -> Money:
            return Money(amount=Decimal(answer.headers[99][0]), currency="USD")

        desk.ask("openai", "priced", provider=desk.provider("openai", cost_of=lambda _, __: price))
        desk.ask("openai", "mistaken", provider=desk.provider("openai", cost_of=wrong))

        assert (desk.row("priced")["cost"], desk.row("priced")["currency"]) == (Decimal("0.02"), "USD")
        assert (desk.row("mistaken")["state"], desk.row("mistaken")["cost"]) == ("succeeded", None)

    def test_a_stripe_call_goes_under_the_key_of_the_ledger(self, desk: "Desk") -> None:
        provider = desk.provider("stripe", settle_delay=timedelta(0))
        client = clients.stripe_client(exchange_of(desk.work, provider, "summary"), provider)

        client.v1.charges.create({"amount": 5, "currency": "usd"}, {"idempotency_key": "of-the-caller"})

        assert desk.metered.requests()[-1].client_reference == desk.row()["idempotency_key"]

    def test_a_callers_key_stays_where_the_provider_promises_nothing_of_keys(self, desk: "Desk") -> None:
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
