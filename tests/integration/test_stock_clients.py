"""What stock clients do with a paid request by default: the ground of R19, measured against the installed versions."""

import contextlib
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import stripe

from dagster_idempotent.testing.metered_provider import MeteredProvider

MESSAGES: list[Any] = [{"role": "user", "content": "Fresh news"}]
BODY = {"model": "m", "messages": MESSAGES}
CHARGE: Any = {"amount": 1200, "currency": "usd"}
PATIENCE = 0.5
Ask = Callable[[MeteredProvider], object]


def by_openai(provider: MeteredProvider) -> object:
    client = openai.OpenAI(api_key="k", base_url=provider.base_url, timeout=PATIENCE)
    return client.chat.completions.create(model="m", messages=MESSAGES)


def by_anthropic(provider: MeteredProvider) -> object:
    client = anthropic.Anthropic(api_key="k", base_url=provider.control_url, timeout=PATIENCE)
    return client.messages.create(model="m", max_tokens=9, messages=MESSAGES)


def by_stripe_client(provider: MeteredProvider) -> object:
    client = stripe.StripeClient(
        "k", base_addresses={"api": provider.control_url}, http_client=stripe.RequestsClient(timeout=PATIENCE)
    )
    return client.v1.charges.create(CHARGE)


def by_httpx(module: Any) -> Ask:
    def ask(provider: MeteredProvider) -> object:
        with module.Client(timeout=PATIENCE, headers={"Authorization": "Bearer k"}) as client:
            return client.post(f"{provider.base_url}/chat/completions", json=BODY)

    return ask


def by_requests(provider: MeteredProvider) -> object:
    url = f"{provider.base_url}/chat/completions"
    return requests.post(url, json=BODY, timeout=PATIENCE, headers={"Authorization": "Bearer k"})


FAULTS: dict[str, dict[str, Any]] = {
    "read timeout": {"kind": "slow", "seconds": 1.5},
    "accepted, then dropped": {"kind": "accept_then_drop"},
    "500 after accepting": {"kind": "status", "status": 500, "charged": True},
    "429": {"kind": "status", "status": 429},
}
# POSTs that arrive for one call, in the order of FAULTS.
TABLE: dict[str, tuple[Ask, tuple[int, int, int, int]]] = {
    "openai": (by_openai, (3, 3, 3, 3)),
    "anthropic": (by_anthropic, (3, 3, 3, 3)),
    "StripeClient": (by_stripe_client, (1, 1, 1, 1)),
    "httpx": (by_httpx(httpx), (1, 1, 1, 1)),
    "httpx2": (by_httpx(httpx2), (1, 1, 1, 1)),
    "requests": (by_requests, (1, 1, 1, 1)),
}


@pytest.mark.explore
@pytest.mark.parametrize("client", list(TABLE))
def test_a_stock_client_sends_as_often_as_the_table_says(metered_provider: MeteredProvider, client: str) -> None:
    ask, expected = TABLE[client]
    found: list[int] = []
    for fault in FAULTS.values():
        before = len(metered_provider.requests())
        metered_provider.fault(times=None, **fault)
        with contextlib.suppress(Exception):
            ask(metered_provider)
        metered_provider.clear_faults()
        found.append(len(metered_provider.requests()) - before)
    assert tuple(found) == expected
