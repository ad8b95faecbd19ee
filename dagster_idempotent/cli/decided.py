"""How a decision is told: the record on stdout, one sentence on stderr."""

from dagster_idempotent.cli.output import print_facts, say
from dagster_idempotent.engine.decisions import Decision

_DONE = {
    "resolved": "Resolved.",
    "cancelled": "Cancelled: the job ended without a result. The next run of this task submits a new one.",
    "asked": "Asked. The job has not ended by that; the next poll, or this command again, says more.",
    "abandoned": "Abandoned. A replay of this call raises; `calls resend` would allow it to be sent again.",
    "resend_allowed": "Allowed: the next run of this task sends the call again, and it may be charged twice.",
    "acknowledged": "Acknowledged: seen to. Costs stay as they are booked.",
    "release": "Released: the next run may claim the task.",
    "release_budget": "Released: the next run may claim the task; it is held again where the limit is still full.",
    "redrive": "Redriven: pending, with its attempts counted from nought. Launch it again.",
    "discard": "Discarded: the task is at its end.",
    "approved": "Approved.",
    "revoked": "Revoked.",
    "frozen": "Frozen: no new paid call starts. Calls under way finish.",
    "unfrozen": "Unfrozen: paid calls may start.",
    "set": "Set.",
}


def tell(decision: Decision, *, as_json: bool) -> None:
    """Print what was decided, or in a dry run what would have been."""
    facts = {
        "action": decision.action,
        "subject": decision.subject,
        "dry_run": decision.dry_run,
        "before": dict(decision.before),
        "after": dict(decision.after),
    }
    print_facts(facts, as_json=as_json)
    say("Dry run: nothing was changed." if decision.dry_run else _DONE[decision.action])
