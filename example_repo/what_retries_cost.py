"""What a lost answer costs under an ordinary retry policy: stock clients and guarded ones, by the provider's own bill.

Run it with `python -m example_repo.what_retries_cost`; it prints the table of docs/explanation/what-retries-cost.md.
The provider accepts each request, charges it, and drops the connection before the answer.
"""

# The stock resources of Dagster's community are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import stripe
from dagster_anthropic import AnthropicResource
from dagster_openai import OpenAIResource
from pydantic import BaseModel

from dagster_idempotent import (
    AllocatorResource,
    GuardedAnthropicResource,
    GuardedOpenAIResource,
    GuardedStripeResource,
    LedgerResource,
    Pipeline,
    Task,
    embedded,
    idempotent_job,
    iso_week_partitions,
)
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

KEY = "METERED_PROVIDER_KEY"
WEEK = "2026-08-03"
TWICE_MORE = dg.RetryPolicy(max_retries=2)
MESSAGES: Any = [{"role": "user", "content": "What happened this week?"}]
CHARGE: Any = {"amount": 1200, "currency": "usd"}


class Answer(BaseModel):
    """Whatever the provider said."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One client: how often its answers are lost (None: always), and a run of each kind against a provider."""

    client: str
    losses: int | None
    stock: Callable[[MeteredProvider], dg.JobDefinition]
    guarded: Callable[[MeteredProvider, LedgerResource], dg.JobDefinition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What reached the provider in one Dagster run, and what it charged."""

    requests: int
    charges: int


def stock_openai(provider: MeteredProvider) -> dg.JobDefinition:
    """Ask by dagster-openai."""

    @dg.op
    def summarise(context: dg.OpExecutionContext, openai: OpenAIResource) -> None:
        with openai.get_client(context) as client:
            client.chat.completions.create(model="m", messages=MESSAGES)

    return _stock(summarise, openai=OpenAIResource(api_key="a-key", base_url=provider.base_url))


def stock_anthropic(provider: MeteredProvider) -> dg.JobDefinition:
    """Ask by dagster-anthropic."""

    @dg.op
    def summarise(context: dg.OpExecutionContext, anthropic: AnthropicResource) -> None:
        with anthropic.get_client(context) as client:
            client.messages.create(model="m", max_tokens=9, messages=MESSAGES)

    return _stock(summarise, anthropic=AnthropicResource(api_key="a-key", base_url=provider.control_url))


def stock_stripe(provider: MeteredProvider) -> dg.JobDefinition:
    """Charge by the stripe client, which makes a new idempotency key for every attempt."""

    @dg.op
    def charge() -> None:
        stripe.StripeClient("a-key", base_addresses={"api": provider.control_url}).v1.charges.create(CHARGE)

    return _stock(charge)


def guarded_openai(provider: MeteredProvider, ledger: LedgerResource) -> dg.JobDefinition:
    """Ask by the guarded resource: another resource, and `call=`."""

    def summarise(context: dg.OpExecutionContext, openai: GuardedOpenAIResource) -> Answer:
        with openai.get_client(context, call="summary") as client:
            completion = client.chat.completions.create(model="m", messages=MESSAGES)
        return Answer(text=completion.choices[0].message.content or "")

    openai = GuardedOpenAIResource(base_url=provider.base_url, api_key_variable=KEY)
    return _guarded("openai", summarise, ledger, openai=openai)


def guarded_anthropic(provider: MeteredProvider, ledger: LedgerResource) -> dg.JobDefinition:
    """Ask by the guarded resource."""

    def summarise(context: dg.OpExecutionContext, anthropic: GuardedAnthropicResource) -> Answer:
        with anthropic.get_client(context, call="summary") as client:
            message = client.messages.create(model="m", max_tokens=9, messages=MESSAGES)
        return Answer(text=str(message.content))

    anthropic = GuardedAnthropicResource(base_url=provider.control_url, api_key_variable=KEY)
    return _guarded("anthropic", summarise, ledger, anthropic=anthropic)


def guarded_stripe(provider: MeteredProvider, ledger: LedgerResource) -> dg.JobDefinition:
    """Charge by the guarded resource, whose key is the same for every attempt of one call."""

    def charge(context: dg.OpExecutionContext, payments: GuardedStripeResource) -> Answer:
        with payments.get_client(context, call="charge") as client:
            return Answer(text=client.v1.charges.create(CHARGE).id)

    payments = GuardedStripeResource(base_url=provider.control_url, api_key_variable=KEY)
    return _guarded("stripe", charge, ledger, payments=payments)


CASES = (
    Case(client="OpenAI", losses=None, stock=stock_openai, guarded=guarded_openai),
    Case(client="Anthropic", losses=None, stock=stock_anthropic, guarded=guarded_anthropic),
    # A provider that honours keys answers in the end: its first two answers are lost.
    Case(client="Stripe", losses=2, stock=stock_stripe, guarded=guarded_stripe),
)


def measure(ledger: LedgerResource, folder: Path) -> list[tuple[Case, Count, Count]]:
    """Run every case, stock and guarded, each against a provider with a bill of its own."""
    with ExitStack() as stack:

        def losing(case: Case, kind: str) -> MeteredProvider:
            provider = stack.enter_context(MeteredProvider.start(folder / f"{case.client}-{kind}"))
            provider.configure(deduplicate=True)
            provider.fault("accept_then_drop", times=case.losses)
            return provider

        stock = [(provider, case.stock(provider)) for case in CASES for provider in [losing(case, "stock")]]
        guarded = [
            (provider, case.guarded(provider, ledger)) for case in CASES for provider in [losing(case, "guarded")]
        ]
        # At once: a call in doubt waits before it asks again, and so do the stock clients.
        with ThreadPoolExecutor(2 * len(CASES)) as pool:
            counts = list(pool.map(_count, stock + guarded))
        return list(zip(CASES, counts[: len(CASES)], counts[len(CASES) :], strict=True))


def table(rows: list[tuple[Case, Count, Count]]) -> str:
    """Return the figures as the page shows them."""
    lines = [
        "| client | stock: requests | stock: charges | guarded: requests | guarded: charges |",
        "|---|---|---|---|---|",
        *(
            f"| {case.client} | {stock.requests} | {stock.charges} | {guarded.requests} | {guarded.charges} |"
            for case, stock, guarded in rows
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    os.environ[KEY] = "a-key"
    with tempfile.TemporaryDirectory(prefix="dagster-idempotent-") as name:
        folder = Path(name)
        server = embedded.start(folder / "postgres", durable=False)
        try:
            database = Database(server.url)
            schema.upgrade(database)
            database.close()
            sys.stdout.write(f"{table(measure(LedgerResource(url=server.url), folder))}\n")
        finally:
            embedded.remove(folder / "postgres")


def collect(task: Task) -> str:
    """Collect what is summarised: here only a name."""
    return task.task_id


def _count(started: tuple[MeteredProvider, dg.JobDefinition]) -> Count:
    provider, job = started
    job.execute_in_process(partition_key=WEEK if job.partitions_def else None, raise_on_error=False)
    return Count(requests=len(provider.requests()), charges=provider.charges)


def _stock(op: dg.OpDefinition, **resources: object) -> dg.JobDefinition:
    graph = dg.GraphDefinition(node_defs=[op], name="weekly")
    return graph.to_job(resource_defs=resources, op_retry_policy=TWICE_MORE)


def _guarded(
    name: str, transform: Callable[..., Answer], ledger: LedgerResource, **resources: object
) -> dg.JobDefinition:
    return idempotent_job(
        Pipeline(name, output=Answer),
        collect=collect,
        transform=transform,
        partitions_def=iso_week_partitions("2026-01-05"),
        op_retry_policy=TWICE_MORE,
        resource_defs={"ledger": ledger, "allocator": AllocatorResource(ledger=ledger), **resources},
    )


if __name__ == "__main__":
    main()
