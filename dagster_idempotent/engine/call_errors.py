"""What the guard says when it refuses or cannot go on with a call."""

from dagster_idempotent.domain.submission import Submission
from dagster_idempotent.errors import CallAbandoned, CallInProgress, CallNotSent
from dagster_idempotent.store.submissions import Call


def not_known(call: Call, row: Submission) -> CallNotSent:
    """Say that the provider, asked afterwards, does not know a request that left."""
    return CallNotSent(
        f"Call {call.call_key!r} of task {call.task_id} left and its answer was lost; {row.error}. It was not charged.",
        task_id=call.task_id,
        call_key=call.call_key,
        submission=row.submission,
    )


def in_progress(call: Call, row: Submission) -> CallInProgress:
    """Say by whom a call is being sent."""
    seconds = max(0.0, row.sender_expires_in.total_seconds())
    return CallInProgress(
        f"Call {call.call_key!r} of task {call.task_id} is being sent by Dagster run {row.owner} (submission "
        f"{row.submission}); that sender is known to live for {seconds:.0f} s more. Nothing was sent by this run.",
        task_id=call.task_id,
        call_key=call.call_key,
        submission=row.submission,
        owner=row.owner,
        retry_after=seconds,
    )


def abandoned(call: Call, row: Submission) -> CallAbandoned:
    """Say that only an operator goes on with an abandoned call."""
    return CallAbandoned(
        f"An operator abandoned call {call.call_key!r} of task {call.task_id} (submission {row.submission}). It is "
        "sent again only by an operator who accepts that it may charge twice.",
        task_id=call.task_id,
        call_key=call.call_key,
        submission=row.submission,
    )
