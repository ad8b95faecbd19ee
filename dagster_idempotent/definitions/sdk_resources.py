"""Official SDKs as Dagster resources: the interface of dagster-openai and dagster-anthropic, paid once per call.

Each takes the *name* of the variable with its credential and reads it when a request leaves, never at set-up.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from dagster_idempotent.definitions.resources import GuardedProviderResource, price
from dagster_idempotent.domain.backoff import duration
from dagster_idempotent.engine.call_keys import named_call
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.work import current_work
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.guarded_exchange import Exchange
from dagster_idempotent.providers.http_provider import MAX_ANSWER_IN_FILES, HttpProvider
from dagster_idempotent.providers.pricing import model_cost, model_upper_bound
from dagster_idempotent.providers.profiles import ANTHROPIC, GENERIC, OPENAI, STRIPE, Profile
from dagster_idempotent.providers.single_send import Route

if TYPE_CHECKING:
    import anthropic
    import httpx
    import openai
    import requests
    import stripe


class GuardedSdkResource(GuardedProviderResource):
    """What the SDK resources share: one HTTP provider, and the exchange that runs each request through the guard."""

    base_url: str | None = Field(default=None, description="Address of the API; default: the official one.")
    api_key_variable: str | None = Field(
        default=None, description="Name of the environment variable with the key; read only when a request leaves."
    )
    account: str = Field(default="", description="Which account is charged; part of a request's identity.")
    settle_delay: str = Field(
        default="10m", description="How long a request may take to land after its sender ended, such as 10m."
    )
    read_timeout: str = Field(default="10m", description="How long to wait for an answer, such as 10m.")
    upper_bound: str | None = Field(
        default=None, description="What one call may cost at most, such as 0.50 USD; reserved where there is a budget."
    )
    priced: bool = Field(
        default=False, description="Compute costs and upper bounds by the price list of the extra `prices`."
    )

    @abstractmethod
    def profile(self) -> Profile:
        """Return what is known of the API's answers."""

    def provider(self) -> HttpProvider:
        """Build the HTTP provider; reads no credential and opens no connection."""
        profile = self.profile()
        return HttpProvider(
            profile,
            base_url=self.base_url,
            api_key_variable=self.api_key_variable,
            account=self.account,
            settle_delay=duration(self.settle_delay, field="settle_delay"),
            upper_bound=price("upper_bound", self.upper_bound),
            cost_of=model_cost(profile.name) if self.priced else None,
            estimate=model_upper_bound(profile.name) if self.priced else None,
            route=Route(read_timeout=duration(self.read_timeout, field="read_timeout")),
        )

    def attach(self, context: dg.OpExecutionContext, client: Any, *, call: str | None = None) -> Any:  # noqa: ANN401 - the user's
        """Guard a client that you built yourself and return what to use in its place, without retries of its own.

        Raises ConfigurationError for a client that would send past the guard, such as a module or google-genai.
        """
        exchange, provider = self.exchange(context, call)
        return clients.attach(exchange, provider, client)

    def exchange(self, context: dg.OpExecutionContext, call: str | None) -> tuple[Exchange, HttpProvider]:  # noqa: ARG002 - as get_client
        """Return the guard of this op's task, as the adapters of SDKs take it, and the provider behind it."""
        provider, work = self.provider(), current_work()
        if work.large is not None:
            provider.max_answer = MAX_ANSWER_IN_FILES
        calls: Calls[Any, Any] = Calls(work, provider)
        return lambda request: calls.call(named_call(call), request), provider


class GuardedOpenAIResource(GuardedSdkResource):
    """`openai.OpenAI`, guarded; in place of dagster-openai's OpenAIResource."""

    def profile(self) -> Profile:
        """Return what is known of OpenAI's answers."""
        return OPENAI

    @contextmanager
    def get_client(self, context: dg.OpExecutionContext, *, call: str | None = None) -> Generator["openai.OpenAI"]:
        """Give a client whose paid requests are the call `call`, or that of the surrounding `call_key` block."""
        with clients.openai_client(*self.exchange(context, call)) as client:
            yield client

    @asynccontextmanager
    async def get_async_client(
        self, context: dg.OpExecutionContext, *, call: str | None = None
    ) -> AsyncGenerator["openai.AsyncOpenAI"]:
        """Give an asynchronous client; enter it within the op's own thread, as by `asyncio.run`."""
        async with clients.async_openai_client(*self.exchange(context, call)) as client:
            yield client


class GuardedAnthropicResource(GuardedSdkResource):
    """`anthropic.Anthropic`, guarded; in place of dagster-anthropic's AnthropicResource."""

    def profile(self) -> Profile:
        """Return what is known of Anthropic's answers."""
        return ANTHROPIC

    @contextmanager
    def get_client(
        self, context: dg.OpExecutionContext, *, call: str | None = None
    ) -> Generator["anthropic.Anthropic"]:
        """Give a client whose paid requests are the call `call`, or that of the surrounding `call_key` block."""
        with clients.anthropic_client(*self.exchange(context, call)) as client:
            yield client

    @asynccontextmanager
    async def get_async_client(
        self, context: dg.OpExecutionContext, *, call: str | None = None
    ) -> AsyncGenerator["anthropic.AsyncAnthropic"]:
        """Give an asynchronous client; enter it within the op's own thread, as by `asyncio.run`."""
        async with clients.async_anthropic_client(*self.exchange(context, call)) as client:
            yield client


class GuardedStripeResource(GuardedSdkResource):
    """`stripe.StripeClient`, guarded: our idempotency keys, honoured by Stripe for 24 hours."""

    def profile(self) -> Profile:
        """Return what is known of Stripe's answers."""
        return STRIPE

    @contextmanager
    def get_client(
        self, context: dg.OpExecutionContext, *, call: str | None = None
    ) -> Generator["stripe.StripeClient"]:
        """Give a client whose charges are the call `call`, or that of the surrounding `call_key` block."""
        yield clients.stripe_client(*self.exchange(context, call))


class GuardedHttpResource(GuardedSdkResource):
    """Any HTTP API by httpx, httpx2 or requests, guarded; POST, PUT, PATCH and DELETE are paid, GET is free."""

    def profile(self) -> Profile:
        """Return the rules of HTTP alone: in doubt unless proved otherwise."""
        return GENERIC

    @contextmanager
    def get_client(self, context: dg.OpExecutionContext, *, call: str | None = None) -> Generator["httpx.Client"]:
        """Give an `httpx.Client` whose paid requests are the call `call`, or that of the `call_key` block."""
        import httpx  # noqa: PLC0415 - an optional dependency

        exchange, provider = self.exchange(context, call)
        with clients.httpx_client(exchange, provider, httpx) as client:
            yield client

    @contextmanager
    def get_session(self, context: dg.OpExecutionContext, *, call: str | None = None) -> Generator["requests.Session"]:
        """Give a `requests.Session` whose paid requests are the call `call`, or that of the `call_key` block."""
        with clients.requests_session(*self.exchange(context, call)) as session:
            yield session
