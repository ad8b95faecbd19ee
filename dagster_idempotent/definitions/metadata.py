"""What a data engineer sees of a task in Dagster: metadata of ops and failures (R38)."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_idempotent.domain.task import Task
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.engine.relay import Delivery
from dagster_idempotent.errors import IdempotentError

Metadata = dict[str, Any]
MOST_ROWS = 200
LONGEST_FACT = 2000


def of_task(task: Task, done: Mapping[str, Any] | None = None) -> Metadata:
    """Describe a task by its id, status and attempt, and what an op has done for it."""
    return {
        "task_id": task.task_id,
        # Early, since Dagster's page cuts an event off after a few rows.
        **(done or {}),
        "pipeline": task.pipeline,
        "status": str(task.status),
        "attempt": task.attempts,
        "allocation_key": task.allocation_key or "",
    }


def of_calls(results: Sequence[CallResult[Any]]) -> Metadata:
    """Describe the paid calls of an op: paid or replayed, cost, remote reference."""
    found: Metadata = {
        "calls_paid_now": sum(not result.replayed for result in results),
        "calls_replayed": sum(result.replayed for result in results),
    }
    paid_now = _totals([result for result in results if not result.replayed])
    for currency, amount in _totals(results).items():
        found[f"cost_{currency}"] = float(amount)
        found[f"cost_paid_now_{currency}"] = float(paid_now.get(currency, 0))
    if results:
        # The event log keeps every row of it; the ledger has them all.
        found["calls"] = dg.MetadataValue.table([dg.TableRecord(_row(result)) for result in results[:MOST_ROWS]])
        if len(results) > MOST_ROWS:
            found["calls_not_listed"] = len(results) - MOST_ROWS
    return found


def of_deliveries(deliveries: Sequence[Delivery]) -> Metadata:
    """Describe where the messages of a task stand."""
    return {
        f"delivery_{delivery.message.channel}": f"{delivery.message.state}: {delivery.message.receipt or '-'}"
        for delivery in deliveries
    }


def of_error(error: IdempotentError) -> Metadata:
    """Describe an error by its facts; values are shown as text, credentials are never among them."""
    return {name: _shown(value) for name, value in error.facts.items() if value not in (None, "")}


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_FACT else f"{text[:LONGEST_FACT]}…"


def _totals(results: Sequence[CallResult[Any]]) -> Mapping[str, Any]:
    totals: dict[str, Any] = {}
    for result in results:
        if result.cost is not None:
            totals[result.cost.currency] = totals.get(result.cost.currency, 0) + result.cost.amount
    return totals


def _row(result: CallResult[Any]) -> dict[str, str | int | float | bool | None]:
    return {
        "call": result.call_key,
        "submission": result.submission,
        "paid_or_replayed": "replayed" if result.replayed else "paid",
        "cost": "unknown" if result.cost is None else str(result.cost),
        "remote_reference": result.remote_ref or "",
        "settled_by": str(result.settled_by),
    }
