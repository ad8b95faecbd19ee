"""Approvals: a named person opens a gate for what was shown, by its hash, up to an amount (R20)."""

from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.store import decisions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef


def approve(
    database: Database, ref: TaskRef, *, shown: str, up_to: Money | None = None, who: Who, dry_run: bool = False
) -> Decision:
    """Open the gate of a task for the thing whose SHA-256 is `shown`; `up_to` becomes the task's budget limit."""
    return decide(
        database,
        lambda c: decisions.approve(c, ref.pipeline, ref.task_id, shown=shown, up_to=up_to, who=who),
        subject=str(ref),
        accepted="approved",
        refusals={
            "missing": "there is no such task.",
            "no_gate": "its pipeline asks for no approval.",
            "not_ready": "the task is {before[status]}: there is nothing to publish yet.",
            "changed": "what is there now has the hash {after[shown_sha256]}, not the one given. Look at it again.",
            "already": "its gate is open already.",
            "no_budget": "an amount is kept by the pipeline's budget, which is in {after[currency]}. Give the amount "
            "in that currency, or none.",
        },
        dry_run=dry_run,
    )


def revoke(database: Database, approval: int, *, who: Who, dry_run: bool = False) -> Decision:
    """Take an approval back; what it set free already stays free."""
    return decide(
        database,
        lambda c: decisions.revoke(c, approval, who=who),
        subject=f"approval {approval}",
        accepted="revoked",
        refusals={
            "missing": "there is no such approval; `dagster-idempotent approvals list` shows them.",
            "changed": "it was revoked at {before[revoked_at]}.",
        },
        dry_run=dry_run,
    )
