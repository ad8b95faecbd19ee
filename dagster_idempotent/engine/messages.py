"""An operator's word about an outbox message that is in doubt or dead (R32)."""

from enum import StrEnum

from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.errors import IdempotentError
from dagster_idempotent.store import decisions, listing
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef


class Found(StrEnum):
    """What an operator found where the message should have arrived."""

    DELIVERED = "delivered"
    NOT_DELIVERED = "not_delivered"
    GIVEN_UP = "given_up"


_STATES = {Found.DELIVERED: "delivered", Found.NOT_DELIVERED: "ready", Found.GIVEN_UP: "dead"}


def resolve(
    database: Database,
    ref: TaskRef,
    channel: str,
    found: Found,
    *,
    evidence: str,
    who: Who,
    dry_run: bool = False,
) -> Decision:
    """Write delivered, make the message ready again (it was not delivered), or give up on it."""
    rows = database.run(lambda c: listing.messages(c, pipeline=ref.pipeline, task_id=ref.task_id, delivered=True))
    channels = [row["channel"] for row in rows]
    if channel not in channels:
        there = f"it has {', '.join(channels)}" if channels else "it has no messages"
        raise IdempotentError(f"Task {ref} has no message for channel {channel!r}; {there}.", found=channels)
    return decide(
        database,
        lambda c: decisions.resolve_message(
            c, ref.pipeline, ref.task_id, channel, state=_STATES[found], evidence=evidence, who=who
        ),
        subject=f"{ref} {channel}",
        accepted="resolved",
        refusals={
            "missing": "there is no such message.",
            "sending": "a relay is delivering it until {after[until]}. Wait for its outcome.",
            "changed": "it is {before[state]}: there is nothing to resolve.",
        },
        dry_run=dry_run,
    )
