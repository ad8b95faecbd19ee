"""The paid endpoints: how a request to each is read and checked, and what it answers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import parse_qsl

from dagster_idempotent.testing.metered_provider.answers import Answer, chat_completion
from dagster_idempotent.testing.metered_provider.batches_api import batch, batch_problem
from dagster_idempotent.testing.metered_provider.charges_api import charge, charge_problem, payment_intent
from dagster_idempotent.testing.metered_provider.jobs_api import job, job_problem
from dagster_idempotent.testing.metered_provider.messages_api import message, message_events
from dagster_idempotent.testing.metered_provider.responses_api import response, response_events
from dagster_idempotent.testing.metered_provider.streams import chat_chunks

Payload = Mapping[str, object]


class Compose(Protocol):
    """Makes the answer of a request; `content` replaces what the model would have said."""

    def __call__(self, number: int, payload: Payload, *, content: str | None = None) -> Answer:
        """Answer the request that was charged as `number`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One kind of paid request; `events` turns its answer into the frames of a stream, None where it cannot stream."""

    read: Callable[[bytes], Payload | None]
    problem: Callable[[Payload], str | None]
    compose: Compose
    events: Callable[[bytes], Sequence[bytes]] | None = None
    request_id_header: str = "x-request-id"


def _json(body: bytes) -> Payload | None:
    try:
        value: object = json.loads(body)
    except ValueError:
        return None
    return cast("Payload", value) if isinstance(value, dict) else None


def _form(body: bytes) -> Payload | None:
    return dict(parse_qsl(body.decode(errors="replace"))) or None


def _needs(name: str, kind: type | tuple[type, ...], text: str) -> Callable[[Payload], str | None]:
    def problem(payload: Payload) -> str | None:
        return None if isinstance(payload.get(name), kind) else f"expected `{name}`, {text}"

    return problem


_CHAT = Endpoint(read=_json, problem=_needs("messages", list, "a list"), compose=chat_completion, events=chat_chunks)
_PATHS: Mapping[str, Endpoint] = {
    "/chat/completions": _CHAT,
    "/responses": Endpoint(
        read=_json, problem=_needs("input", (str, list), "a text or a list"), compose=response, events=response_events
    ),
    "/messages": Endpoint(
        read=_json,
        problem=_needs("messages", list, "a list"),
        compose=message,
        events=message_events,
        request_id_header="request-id",
    ),
    "/charges": Endpoint(read=_form, problem=charge_problem, compose=charge, request_id_header="request-id"),
    "/payment_intents": Endpoint(
        read=_form, problem=charge_problem, compose=payment_intent, request_id_header="request-id"
    ),
    "/jobs": Endpoint(read=_json, problem=job_problem, compose=job),
    "/batches": Endpoint(read=_json, problem=batch_problem, compose=batch),
}
# Where a redirect leads: the same endpoints at another address.
ELSEWHERE = "/v1/elsewhere"
ENDPOINTS: Mapping[str, Endpoint] = {
    f"{prefix}{path}": endpoint for prefix in ("/v1", ELSEWHERE) for path, endpoint in _PATHS.items()
}
# What is known of a request to any other path, until it is refused.
UNKNOWN = _CHAT
