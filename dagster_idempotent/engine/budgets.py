"""Limits that an operator sets for one counter: a pipeline's, a period's or a task's (R18)."""

from decimal import Decimal

from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.engine.listing import check_pipeline
from dagster_idempotent.store import decisions
from dagster_idempotent.store.database import Database


def set_limit(
    database: Database,
    pipeline: str,
    scope: str,
    *,
    currency: str,
    limit: Decimal | None,
    who: Who,
    dry_run: bool = False,
) -> Decision:
    """Set the limit of `pipeline`, `period:…` or `task:…`; None lifts it. A limit below what is spent stops intents."""
    check_pipeline(database, pipeline)
    return decide(
        database,
        lambda c: decisions.set_limit(c, pipeline, scope, currency=currency, limit=limit, who=who),
        subject=f"{pipeline} {scope}",
        accepted="set",
        refusals={"missing": "there is no task of that period or id. `dagster-idempotent tasks list` shows them."},
        dry_run=dry_run,
    )
