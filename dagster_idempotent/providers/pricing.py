"""What a model call cost, and may cost at most, by the price list of `genai-prices` (extra `prices`, offline).

An unknown model or an answer without usage costs None, which is unknown: never zero.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, cast

from dagster_idempotent.domain.money import Money
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.event_stream import events
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest

CURRENCY = "USD"
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
# What a request may hold for its cost to be bounded by its own bytes: no files, images, tools or earlier responses.
_BOUNDED = frozenset(
    {"model", "messages", "input", "instructions", "system", "stream", "stream_options", "temperature", "top_p"}
    | {"n", "seed", "stop", "stop_sequences", "response_format", "text", "metadata", "user", "store", *_LIMITS}
)
_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text", "message"})
_TEXT_FIELDS = frozenset({"type", "text", "role", "content", "name"})
_FRACTION_DIGITS = Decimal("0.000000000001")


def model_cost(provider_id: str) -> Callable[[HttpRequest, HttpAnswer], Money | None]:
    """Return a `cost_of` for `HttpProvider`, such as `model_cost("openai")`, by the usage that the answer reports."""
    prices = _genai_prices()

    def cost_of(request: HttpRequest, answer: HttpAnswer) -> Money | None:  # noqa: ARG001 - the answer names its model
        reported = _reported(answer)
        if reported is None:
            return None
        flavor = "responses" if "output" in reported else "chat" if "choices" in reported else "default"
        try:
            found = prices.extract_usage(reported, provider_id=provider_id, api_flavor=flavor)
            return _money(found.calc_price().total_price)
        except (LookupError, ValueError):
            return None

    return cost_of


def model_upper_bound(provider_id: str) -> Callable[[HttpRequest], Money | None]:
    """Return an `estimate` for `HttpProvider`: every byte a token, and all the output tokens that the request allows.

    None, so a refusal where a budget is set, for a model without a price, for a request without a limit of its output
    tokens, and for one whose cost its own bytes do not bound: images, files, tools, earlier responses.
    """
    prices = _genai_prices()

    def estimate(request: HttpRequest) -> Money | None:
        body = HttpAnswer(status=200, headers=(), body=request.body).json_object()
        limit = None if body is None else _output_limit(body)
        if body is None or limit is None or not set(body) <= _BOUNDED or not _only_text(body):
            return None
        usage = prices.Usage(input_tokens=len(request.body), output_tokens=limit)
        try:
            return _money(prices.calc_price(usage, str(body.get("model")), provider_id=provider_id).total_price)
        except (LookupError, ValueError):
            return None

    return estimate


def _output_limit(body: Mapping[str, object]) -> int | None:
    limits = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
    choices = body.get("n", 1)
    if not limits or not isinstance(choices, int):
        return None
    return max(cast("list[int]", limits)) * max(1, choices)


def _only_text(value: object) -> bool:
    if isinstance(value, list):
        return all(_only_text(item) for item in cast("list[object]", value))
    if not isinstance(value, dict):
        return True
    fields = cast("Mapping[str, object]", value)
    for name in ("messages", "input", "content", "system"):
        inner = fields.get(name)
        if isinstance(inner, list) and not all(_is_text_block(item) for item in cast("list[object]", inner)):
            return False
    return all(_only_text(item) for name, item in fields.items() if name in {"messages", "input", "content", "system"})


def _is_text_block(block: object) -> bool:
    if not isinstance(block, dict):
        return isinstance(block, str)
    fields = cast("Mapping[str, object]", block)
    return fields.get("type", "message") in _TEXT_BLOCKS and set(fields) <= _TEXT_FIELDS


def _reported(answer: HttpAnswer) -> Mapping[str, object] | None:
    """Return the answer, or what a stream says of itself, with its usage; None where there is none."""
    if not answer.is_event_stream:
        body = answer.json_object()
        return body if body is not None and body.get("usage") else None
    merged: dict[str, object] = {}
    usage: dict[str, object] = {}
    for event in events(answer.content() or b""):
        said = event.json_object() or {}
        for part in (said, said.get("message"), said.get("response")):
            if isinstance(part, dict):
                fields = cast("Mapping[str, object]", part)
                merged |= {name: fields[name] for name in ("model", "choices", "output") if fields.get(name)}
                usage |= cast("Mapping[str, object]", fields.get("usage") or {})
    return {**merged, "usage": usage} if usage else None


def _money(amount: Decimal) -> Money:
    return Money(amount=Decimal(amount).quantize(_FRACTION_DIGITS).normalize() + Decimal("0.00"), currency=CURRENCY)


def _genai_prices() -> Any:  # noqa: ANN401 - a lazily imported module
    try:
        import genai_prices  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigurationError(
            "Prices of models need genai-prices, which is not installed: `pip install 'dagster-idempotent[prices]'`.",
            field="cost_of",
        ) from error
    return genai_prices
