"""Freezing: no new paid call of a pipeline starts until an operator says so."""

from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.engine.listing import check_pipeline
from dagster_idempotent.store import decisions
from dagster_idempotent.store.database import Database


def freeze(database: Database, pipeline: str, *, who: Who, dry_run: bool = False) -> Decision:
    """Stop every new paid call; intents that were under way have committed when this returns, or refuses."""
    try:
        return _freeze(database, pipeline, f"{who.reason} ({who.actor})", who=who, dry_run=dry_run)
    finally:
        if not dry_run:
            database.run(lambda c: decisions.wait_for_intents(c, pipeline))


def unfreeze(database: Database, pipeline: str, *, who: Who, dry_run: bool = False) -> Decision:
    """Let paid calls start again."""
    return _freeze(database, pipeline, None, who=who, dry_run=dry_run)


def _freeze(database: Database, pipeline: str, why: str | None, *, who: Who, dry_run: bool) -> Decision:
    check_pipeline(database, pipeline)
    return decide(
        database,
        lambda c: decisions.freeze(c, pipeline, why=why, who=who),
        subject=pipeline,
        accepted="unfrozen" if why is None else "frozen",
        refusals={
            "missing": "there is no such pipeline.",
            "changed": "it is not frozen." if why is None else "it is frozen already: {before[frozen_reason]}.",
        },
        dry_run=dry_run,
    )
