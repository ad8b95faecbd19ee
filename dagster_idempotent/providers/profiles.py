"""What is known of a provider beyond HTTP, as data: each entry that leaves "in doubt" says why it may.

A profile is changed by `dataclasses.replace`: a refusal that your provider documents, a path that costs nothing.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import cast

from dagster_idempotent.providers.credentials import BEARER, CredentialPlace
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest

REFUSED_BEFORE_WORK = "HTTP defines it as a refusal of the request itself, before any work"
# 408, 409 and 429 are not among them: they may be said of a request that, or whose twin, was accepted.
HTTP_REFUSALS: Mapping[int, str] = MappingProxyType(
    dict.fromkeys((400, 401, 402, 403, 404, 405, 411, 413, 415, 422, 425), REFUSED_BEFORE_WORK)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One provider's documented behaviour.

    `refusals` maps a status to why it proves that nothing was charged. `free` matches "METHOD /path" (below the base
    URL) of requests that cost nothing. `media_types` are what a successful answer may be; empty allows anything but a
    web page. `terminal` names the events that end a stream, by name, by `type`, or by data. `key_window` is how long
    the provider documents that it honours `idempotency_header`; None where it does not.
    """

    name: str
    base_url: str | None = None
    credential: CredentialPlace = BEARER
    api_key_variable: str | None = None
    refusals: Mapping[int, str] = field(default_factory=lambda: HTTP_REFUSALS)
    free: tuple[re.Pattern[str], ...] = ()
    media_types: tuple[str, ...] = ()
    other_media: tuple[re.Pattern[str], ...] = ()
    allows_empty: bool = False
    terminal: frozenset[str] = frozenset()
    failed_events: frozenset[str] = frozenset({"error"})
    request_id_headers: tuple[str, ...] = ("x-request-id", "request-id")
    idempotency_header: str | None = None
    reference_header: str | None = None
    key_window: timedelta | None = None
    references: tuple[tuple[str, ...], ...] = (("id",),)
    text_of: Callable[[Mapping[str, object]], str | None] = field(default=lambda _: None, repr=False)

    def is_paid(self, request: HttpRequest, base_url: str | None = None) -> bool:
        """Whether a request may cost money: by its method, unless the provider documents that its path is free."""
        line = f"{request.method} {request.address(base_url)}"
        return request.paid and not any(pattern.fullmatch(line) for pattern in self.free)

    def allows_media(self, media_type: str, path: str) -> bool:
        """Whether a successful answer may be of this type."""
        if any(pattern.search(path) for pattern in self.other_media):
            return True
        if not self.media_types:
            return media_type != "text/html"  # what a proxy or a login page answers in a provider's place
        return is_json(media_type) or media_type in self.media_types

    def request_id(self, answer: HttpAnswer) -> str | None:
        """Return the provider's own id of the request, from its headers."""
        for name in self.request_id_headers:
            value = answer.header(name)
            if value:
                return value
        return None

    def reference_in(self, body: Mapping[str, object] | None) -> str | None:
        """Return what the provider calls the thing that it made: the first of `references` that is there."""
        for path in self.references:
            found = _at(body, path)
            if isinstance(found, str) and found and found.isprintable():
                return found
        return None


def is_json(media_type: str) -> bool:
    """Whether a media type is JSON."""
    return media_type == "application/json" or media_type.endswith("+json")


def _at(body: object, path: tuple[str, ...]) -> object:
    for name in path:
        body = cast("Mapping[str, object]", body).get(name) if isinstance(body, dict) else None
    return body


def _chat_text(body: Mapping[str, object]) -> str | None:
    match body:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:  # pyright: ignore[reportUnknownVariableType] - JSON
            return text
        case {"output": list(output)}:  # pyright: ignore[reportUnknownVariableType] - any JSON
            parts = [_texts(_at(item, ("content",))) for item in cast("list[object]", output)]
            return "".join(parts) or None
        case _:
            return None


def _message_text(body: Mapping[str, object]) -> str | None:
    return _texts(body.get("content")) or None


def _texts(blocks: object) -> str:
    if not isinstance(blocks, list):
        return ""
    texts = (_at(block, ("text",)) for block in cast("list[object]", blocks))
    return "".join(text for text in texts if isinstance(text, str))


def _lines(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


GENERIC = Profile(
    name="http",
    # A hint that costs nothing where it is not known; it proves nothing, so there is no key window.
    idempotency_header="Idempotency-Key",
    terminal=frozenset({"[DONE]", "message_stop"}),
)

# Said by the provider itself. A gateway that asks several providers may say it after one of them did the work: behind
# one, take it out by `replace(profile, refusals=HTTP_REFUSALS)`.
_OPENAI_LIMITS = "OpenAI documents a 429 as a request that was not taken: a limit per minute, or a quota that is spent"
_ANTHROPIC_LIMITS = "Anthropic documents a 429 as a request that was not taken: a rate limit, or a limit of spending"

OPENAI = Profile(
    name="openai",
    base_url="https://api.openai.com/v1",
    api_key_variable="OPENAI_API_KEY",
    refusals=MappingProxyType({**HTTP_REFUSALS, 429: _OPENAI_LIMITS}),
    free=_lines(
        r"POST /moderations",
        r"POST /responses/(input_tokens|[^/]+/cancel)",
        r"POST /(batches|fine_tuning/jobs|uploads|vector_stores/[^/]+/file_batches)/[^/]+/cancel",
        r"DELETE /.*",
    ),
    media_types=("application/json", "text/event-stream"),
    # Speech is bytes; transcripts may be plain text or subtitles.
    other_media=_lines(r"/audio/(speech|transcriptions|translations)$"),
    terminal=frozenset(
        {
            "[DONE]",
            "response.completed",
            "response.incomplete",
            "speech.audio.done",
            "transcript.text.done",
            "image_generation.completed",
            "image_edit.completed",
        }
    ),
    failed_events=frozenset({"error", "response.failed"}),
    reference_header="X-Client-Request-Id",
    references=(("id",), ("response", "id")),
    text_of=_chat_text,
)

ANTHROPIC = Profile(
    name="anthropic",
    base_url="https://api.anthropic.com",
    credential=CredentialPlace(header="x-api-key"),
    api_key_variable="ANTHROPIC_API_KEY",
    refusals=MappingProxyType({**HTTP_REFUSALS, 429: _ANTHROPIC_LIMITS}),
    free=_lines(r"POST /v1/messages/count_tokens", r"POST /v1/messages/batches/[^/]+/cancel", r"DELETE /.*"),
    media_types=("application/json", "text/event-stream"),
    terminal=frozenset({"message_stop"}),
    request_id_headers=("request-id", "x-request-id"),
    references=(("id",), ("message", "id")),
    text_of=_message_text,
)

STRIPE = Profile(
    name="stripe",
    base_url="https://api.stripe.com",
    api_key_variable="STRIPE_API_KEY",
    refusals=MappingProxyType(
        {**HTTP_REFUSALS, 429: "Stripe documents that its limiters answer before anything is done for a request"}
    ),
    media_types=("application/json",),
    request_id_headers=("request-id",),
    idempotency_header="Idempotency-Key",
    key_window=timedelta(hours=24),
    references=(("id",), ("error", "payment_intent", "id"), ("error", "charge"), ("error", "setup_intent", "id")),
)
