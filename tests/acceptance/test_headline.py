"""The reason for this library, measured at the provider: nine charges, or one.

"Accepted, then dropped": the provider takes the request in, charges it, and the connection is lost before the answer.
"""

from collections.abc import Callable, Iterator

import dagster as dg
import openai
import pytest
import stripe
from dagster_anthropic import AnthropicResource
from dagster_openai import OpenAIResource

from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import CallInDoubt
from dagster_idempotent.providers.clients import anthropic_client, openai_client, stripe_client
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.profiles import ANTHROPIC, OPENAI, STRIPE, Profile
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.claimed_work import claimed_work, exchange_of
from dagster_idempotent.testing.metered_provider import MeteredProvider

KEY = "METERED_PROVIDER_KEY"
TWICE_MORE = dg.RetryPolicy(max_retries=2)
MESSAGES = [{"role": "user", "content": "What happened this week?"}]
CHARGE = {"amount": 1200, "currency": "usd"}


@pytest.fixture
def losing(metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> MeteredProvider:
    """Give a provider that accepts and charges every request and never answers."""
    monkeypatch.setenv(KEY, "a-key")
    metered_provider.fault("accept_then_drop", times=None)
    return metered_provider


@pytest.fixture
def work(ledger: Database) -> Iterator[Work]:
    with claimed_work(ledger) as work:
        yield work


def run(*ops: dg.OpDefinition, **resources: object) -> None:
    """Run ops as a Dagster job that is expected to fail."""
    result = (
        dg.GraphDefinition(node_defs=list(ops), name="weekly")
        .to_job(resource_defs=resources)
        .execute_in_process(raise_on_error=False)
    )
    assert not result.success


def in_three_attempts(ask: Callable[[], object]) -> None:
    """Run `ask` as an op with the same retry policy."""

    @dg.op(retry_policy=TWICE_MORE)
    def guarded() -> None:
        with pytest.raises(CallInDoubt) as caught:
            ask()
        raise caught.value

    run(guarded)


def provider_of(profile: Profile, base_url: str) -> HttpProvider:
    return HttpProvider(profile, base_url=base_url, api_key_variable=KEY)


def test_stock_dagster_openai_is_charged_nine_times(losing: MeteredProvider) -> None:
    @dg.op(retry_policy=TWICE_MORE)
    def summarise(context: dg.OpExecutionContext, openai: OpenAIResource) -> None:
        with openai.get_client(context) as client:
            client.chat.completions.create(model="m", messages=MESSAGES)

    run(summarise, openai=OpenAIResource(api_key="a-key", base_url=losing.base_url))

    assert losing.charges == 9


def test_the_guarded_openai_client_is_charged_once(losing: MeteredProvider, work: Work) -> None:
    provider = provider_of(OPENAI, losing.base_url)

    def ask() -> object:
        client = openai_client(exchange_of(work, provider, "summary"), provider)
        return client.chat.completions.create(model="m", messages=MESSAGES)

    in_three_attempts(ask)

    assert losing.charges == 1


@pytest.mark.filterwarnings("ignore:Class `AnthropicResource` is currently in preview")
def test_stock_dagster_anthropic_is_charged_nine_times(losing: MeteredProvider) -> None:
    @dg.op(retry_policy=TWICE_MORE)
    def summarise(context: dg.OpExecutionContext, anthropic: AnthropicResource) -> None:
        with anthropic.get_client(context) as client:
            client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    run(summarise, anthropic=AnthropicResource(api_key="a-key", base_url=losing.control_url))

    assert losing.charges == 9


def test_the_guarded_anthropic_client_is_charged_once(losing: MeteredProvider, work: Work) -> None:
    provider = provider_of(ANTHROPIC, losing.control_url)

    def ask() -> object:
        client = anthropic_client(exchange_of(work, provider, "summary"), provider)
        return client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    in_three_attempts(ask)

    assert losing.charges == 1


def test_a_stock_stripe_client_makes_a_new_key_for_each_attempt_and_charges_three_times(
    losing: MeteredProvider,
) -> None:
    losing.configure(deduplicate=True)

    @dg.op(retry_policy=TWICE_MORE)
    def charge() -> None:
        client = stripe.StripeClient("a-key", base_addresses={"api": losing.control_url})
        client.v1.charges.create(CHARGE)

    run(charge)

    assert losing.charges == 3


def test_the_guarded_stripe_client_charges_once_and_settles_by_its_key(losing: MeteredProvider, work: Work) -> None:
    losing.configure(deduplicate=True)
    losing.clear_faults()
    losing.fault("accept_then_drop", times=2)
    provider = provider_of(STRIPE, losing.control_url)
    answers: list[stripe.Charge] = []

    @dg.op(retry_policy=TWICE_MORE)
    def charge() -> None:
        client = stripe_client(exchange_of(work, provider, "charge"), provider)
        answers.append(client.v1.charges.create(CHARGE))

    job = dg.GraphDefinition(node_defs=[charge], name="weekly").to_job()
    assert job.execute_in_process(raise_on_error=False).success

    assert losing.charges == 1
    assert [answer.id for answer in answers] == [losing.bill().lines[0].request_id]
    assert len(losing.requests()) == 3


def test_an_openai_client_alone_already_triples_a_charge(losing: MeteredProvider) -> None:
    client = openai.OpenAI(api_key="a-key", base_url=losing.base_url)

    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model="m", messages=MESSAGES)

    assert losing.charges == 3
