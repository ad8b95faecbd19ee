"""Dead letters, and the administrative exits of a task: release, redrive, discard (R30)."""

from dagster_idempotent.engine.decisions import Decision, Who, decide
from dagster_idempotent.store import decisions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef

_SENDING = "a paid call is on its way until {after[until]}. Wait for its outcome."


def redrive(database: Database, ref: TaskRef, *, who: Who, dry_run: bool = False) -> Decision:
    """Make a dead task pending again, its attempts counted from nought; paid answers are replayed."""
    refusals = {
        "changed": "the task is {before[status]}; only a dead one is redriven.",
        "sending": _SENDING,
    }
    return _move(database, ref, "redrive", refusals, who=who, dry_run=dry_run)


def discard(database: Database, ref: TaskRef, *, who: Who, dry_run: bool = False) -> Decision:
    """End a dead or held task for good; refused while the outcome of one of its calls is not known."""
    refusals = {
        "changed": "the task is {before[status]}; only a dead or held one is discarded.",
        "sending": _SENDING,
        "unsettled": "the outcome of {after[calls]} is not known, and a discard would hide a charge. Resolve or "
        "abandon it first.",
    }
    return _move(database, ref, "discard", refusals, who=who, dry_run=dry_run)


def release_lease(database: Database, ref: TaskRef, *, who: Who, dry_run: bool = False) -> Decision:
    """Take the lease from a run that will not come back; whatever it still writes is refused by its old token."""
    refusals = {
        "changed": "the task is {before[status]}: no run holds a lease on it.",
        "sending": _SENDING,
    }
    return _move(database, ref, "release", refusals, who=who, dry_run=dry_run)


def release_budget_hold(database: Database, ref: TaskRef, *, who: Who, dry_run: bool = False) -> Decision:
    """Let a task go on that was held because a limit was full; it is held again where the limit still is."""
    refusals = {
        "changed": "the task is {before[status]} (held for: {before[held_for]}), not held for its budget.",
        "sending": _SENDING,
    }
    return _move(database, ref, "release_budget", refusals, who=who, dry_run=dry_run)


def _move(
    database: Database, ref: TaskRef, action: str, refusals: dict[str, str], *, who: Who, dry_run: bool
) -> Decision:
    decided = decide(
        database,
        lambda c: decisions.move_task(c, ref.pipeline, ref.task_id, action=action, who=who),
        subject=str(ref),
        accepted="done",
        refusals={"missing": "there is no such task.", **refusals},
        dry_run=dry_run,
    )
    return Decision(action=action, subject=decided.subject, before=decided.before, after=decided.after, dry_run=dry_run)
