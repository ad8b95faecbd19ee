"""Stripe's `POST /v1/charges` and `POST /v1/payment_intents`, as far as its SDK needs them."""

import json
import time
import uuid
from collections.abc import Mapping

from dagster_idempotent.testing.metered_provider.answers import Answer


def charge_problem(payload: Mapping[str, object]) -> str | None:
    """Return what is wrong with the form; None where nothing is."""
    if not str(payload.get("amount", "")).isdigit():
        return "expected `amount`, a whole number of the smallest unit"
    return None if payload.get("currency") else "expected `currency`"


def charge(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:
    """Answer a charge; `content` replaces its description."""
    body = _payment("ch", "charge", number, payload, content)
    return _answer({**body, "paid": True, "captured": True, "refunded": False})


def payment_intent(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:
    """Answer a payment intent; `content` replaces its description."""
    body = _payment("pi", "payment_intent", number, payload, content)
    return _answer({**body, "amount_received": body["amount"], "capture_method": "automatic"})


def _payment(
    prefix: str, kind: str, number: int, payload: Mapping[str, object], content: str | None
) -> dict[str, object]:
    return {
        "id": f"{prefix}_{uuid.uuid4().hex[:24]}",
        "object": kind,
        "amount": int(str(payload["amount"])),
        "currency": str(payload["currency"]),
        "created": int(time.time()),
        "description": content or payload.get("description") or f"payment {number}",
        "livemode": False,
        "metadata": {},
        "status": "succeeded",
    }


def _answer(body: Mapping[str, object]) -> Answer:
    return Answer(request_id=str(body["id"]), body=json.dumps(body).encode())
