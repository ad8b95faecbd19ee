"""SDK clients over the real guard, each in one word: build it, ask one paid question, get a comparable answer."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

import httpx
import httpx2
import psycopg
import pytest

from dagster_idempotent.engine.work import Work
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.guarded_exchange import Exchange
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.profiles import ANTHROPIC, GENERIC, OPENAI, STRIPE, Profile
from dagster_idempotent.providers.single_send import Route
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.claimed_work import claimed_work, exchange_of
from dagster_idempotent.testing.metered_provider import MeteredProvider

KEY = "METERED_PROVIDER_KEY"
SECRET = "sk-very-secret-key"  # noqa: S105 - a made-up one
MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]
_numbers = itertools.count()
Ask = Callable[[Exchange, HttpProvider], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdk:
    """How one official client asks one paid question."""

    profile: Profile
    ask: Ask
    below: str = ""
    streams: bool = False


def _openai(*, stream: bool) -> Ask:
    def ask(exchange: Exchange, provider: HttpProvider) -> object:
        with clients.openai_client(exchange, provider) as client:
            answer = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
            return list(answer) if stream else answer

    return ask


def _openai_responses(*, stream: bool) -> Ask:
    def ask(exchange: Exchange, provider: HttpProvider) -> object:
        with clients.openai_client(exchange, provider) as client:
            answer = client.responses.create(model="m", input="Fresh news", stream=stream)
            return list(answer) if stream else answer

    return ask


def _async_openai(exchange: Exchange, provider: HttpProvider) -> object:
    async def ask() -> object:
        async with clients.async_openai_client(exchange, provider) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return [chunk async for chunk in stream]

    return asyncio.run(ask())


def _anthropic(*, stream: bool) -> Ask:
    def ask(exchange: Exchange, provider: HttpProvider) -> object:
        with clients.anthropic_client(exchange, provider) as client:
            answer = client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=stream)
            return list(answer) if stream else answer

    return ask


def _async_anthropic(exchange: Exchange, provider: HttpProvider) -> object:
    async def ask() -> object:
        async with clients.async_anthropic_client(exchange, provider) as client:
            return await client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    return asyncio.run(ask())


def _stripe(exchange: Exchange, provider: HttpProvider) -> object:
    client = clients.stripe_client(exchange, provider)
    return client.v1.payment_intents.create({"amount": 1200, "currency": "usd"}).to_dict()


def _async_stripe(exchange: Exchange, provider: HttpProvider) -> object:
    client = clients.stripe_client(exchange, provider)
    return asyncio.run(client.v1.charges.create_async({"amount": 1200, "currency": "usd"})).to_dict()


def _httpx(module: ModuleType, *, stream: bool = False) -> Ask:
    def ask(exchange: Exchange, provider: HttpProvider) -> object:
        with clients.httpx_client(exchange, provider, module) as client:
            body = {"model": "m", "messages": MESSAGES, "stream": stream}
            answer = client.post("/chat/completions", json=body)
            return answer.status_code, answer.headers, answer.content

    return ask


def _async_httpx(exchange: Exchange, provider: HttpProvider) -> object:
    async def ask() -> object:
        async with clients.async_httpx_client(exchange, provider, httpx2) as client:
            answer = await client.post("/chat/completions", json={"model": "m", "messages": MESSAGES})
            return answer.status_code, answer.headers, answer.content

    return asyncio.run(ask())


def _requests(exchange: Exchange, provider: HttpProvider) -> object:
    with clients.requests_session(exchange, provider) as session:
        answer = session.post(f"{provider.base_url}/chat/completions", json={"model": "m", "messages": MESSAGES})
        return answer.status_code, answer.headers, answer.content


SDKS = {
    "openai": Sdk(profile=OPENAI, below="/v1", ask=_openai(stream=False)),
    "openai-stream": Sdk(profile=OPENAI, below="/v1", ask=_openai(stream=True), streams=True),
    "openai-responses": Sdk(profile=OPENAI, below="/v1", ask=_openai_responses(stream=False)),
    "openai-responses-stream": Sdk(profile=OPENAI, below="/v1", ask=_openai_responses(stream=True), streams=True),
    "openai-async-stream": Sdk(profile=OPENAI, below="/v1", ask=_async_openai, streams=True),
    "anthropic": Sdk(profile=ANTHROPIC, ask=_anthropic(stream=False)),
    "anthropic-stream": Sdk(profile=ANTHROPIC, ask=_anthropic(stream=True), streams=True),
    "anthropic-async": Sdk(profile=ANTHROPIC, ask=_async_anthropic),
    "stripe": Sdk(profile=STRIPE, ask=_stripe),
    "stripe-async": Sdk(profile=STRIPE, ask=_async_stripe),
    "httpx": Sdk(profile=GENERIC, below="/v1", ask=_httpx(httpx)),
    "httpx-stream": Sdk(profile=GENERIC, below="/v1", ask=_httpx(httpx, stream=True), streams=True),
    "httpx2": Sdk(profile=GENERIC, below="/v1", ask=_httpx(httpx2)),
    "httpx2-async": Sdk(profile=GENERIC, below="/v1", ask=_async_httpx),
    "requests": Sdk(profile=GENERIC, below="/v1", ask=_requests),
}

every_sdk = pytest.mark.parametrize("sdk", ["openai", "anthropic", "stripe", "httpx", "httpx2", "requests"])


def never(_: HttpRequest) -> HttpAnswer:
    pytest.fail("a paid request was made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One claimed task, and SDKs that ask in its name."""

    work: Work
    metered: MeteredProvider

    def provider(self, sdk: str, *, control_url: str | None = None, **settings: Any) -> HttpProvider:
        known = SDKS[sdk]
        return HttpProvider(
            known.profile,
            base_url=f"{control_url or self.metered.control_url}{known.below}",
            api_key_variable=KEY,
            **{"route": Route(read_timeout=timedelta(seconds=20)), **settings},
        )

    def ask(self, sdk: str, call: str = "summary", provider: HttpProvider | None = None) -> object:
        """Ask by a new client, as a retried step would."""
        by = provider or self.provider(sdk)
        return SDKS[sdk].ask(exchange_of(self.work, by, call), by)

    def row(self, call: str = "summary") -> dict[str, Any]:
        """Return the last submission of a call as the ledger has it."""
        with psycopg.connect(self.work.database.url, row_factory=psycopg.rows.dict_row) as connection:
            query = "SELECT * FROM dagster_idempotent.submissions WHERE call_key = %s ORDER BY submission DESC LIMIT 1"
            found = connection.execute(query, (call,)).fetchone()
        assert found is not None
        return found


@pytest.fixture(scope="session")
def sdks() -> dict[str, Sdk]:
    return SDKS


@pytest.fixture(scope="session")
def secret() -> str:
    return SECRET


@pytest.fixture(scope="module")
def shared_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    with MeteredProvider.start(tmp_path_factory.mktemp("provider"), price="0.02") as provider:
        yield provider


@pytest.fixture
def desk(ledger: Database, shared_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setenv(KEY, SECRET)
    shared_provider.clear_faults()
    # Ledgers are copies of one, so they derive the same keys: a task of its own keeps tests apart at the provider.
    with claimed_work(ledger, subject=f"desk-{next(_numbers)}") as work:
        yield Desk(work=work, metered=shared_provider)
