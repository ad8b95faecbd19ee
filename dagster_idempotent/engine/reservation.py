"""What is reserved before a call is sent: its upper bound, in the currency of the budget, within the limit per call."""

from typing import Any

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.protocol import Provider


def upper_bound(pipeline: Pipeline[Any], provider: Provider[Any, Any], request: object) -> Money | None:
    """Return what a call may cost at most, None where nobody can say and no budget asks.

    Raises ConfigurationError where a budget is set and the bound is unknown, of another currency, or above its limit
    for one call.
    """
    reserve = provider.estimate(request)
    if reserve is not None:
        reserve.non_negative(field="upper_bound")
    if pipeline.currency is None:
        return reserve
    if reserve is None:
        raise ConfigurationError(
            f"Pipeline {pipeline.name!r} has a budget, but provider {provider.name!r} cannot say what this request may "
            "cost at most. Nothing was sent. Give the provider an upper bound.",
            field="upper_bound",
        )
    if reserve.currency != pipeline.currency:
        raise ConfigurationError(
            f"The budget of pipeline {pipeline.name!r} is in {pipeline.currency}, the request is priced in "
            f"{reserve.currency}. Amounts of different currencies are never compared; nothing was sent.",
            field="budget",
        )
    limit = None if pipeline.budget is None else pipeline.budget.call
    if limit is not None and reserve > limit:
        raise ConfigurationError(
            f"The request may cost up to {reserve}; the budget of pipeline {pipeline.name!r} allows {limit} for one "
            "call. Nothing was sent. Ask for less, or raise `per_call`.",
            field="per_call",
        )
    return reserve
