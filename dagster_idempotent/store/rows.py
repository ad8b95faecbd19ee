"""Database rows as records of the domain."""

from typing import Any
from uuid import UUID

from dagster_idempotent.domain.fingerprint import Fingerprint
from dagster_idempotent.domain.outbox import Message, MessageState
from dagster_idempotent.domain.submission import SettledBy, Submission, SubmissionState
from dagster_idempotent.domain.task import HeldFor, Task, TaskStatus

Row = dict[str, Any]


def task_of(row: Row) -> Task:
    """Build a task from a row that holds all columns of `tasks`."""
    return Task(
        pipeline=row["pipeline"],
        task_id=row["task_id"],
        period_id=row["period_id"],
        sequence=row["sequence"],
        subject=row["subject_id"],
        scheduled_at=row["scheduled_at"],
        version=row["version"],
        allocation_key=row["allocation_key"],
        run_id=row["run_id"],
        status=TaskStatus(row["status"]),
        owner=row["owner"],
        lease_expires_at=row["lease_expires_at"],
        fencing_token=row["fencing_token"],
        attempts=row["attempts"],
        held_for=None if row["held_for"] is None else HeldFor(row["held_for"]),
        error=row["error"],
        output=row["output"],
        output_sha256=row["output_sha256"],
        completed_by=row["completed_by"],
        completed_at=row["completed_at"],
    )


def submission_of(row: Row) -> Submission:
    """Build a submission from a row of the statement `read_call`."""
    return Submission(
        submission=row["submission"],
        state=SubmissionState(row["state"]),
        sender=UUID(str(row["sender"])),
        sender_expires_in=row["sender_expires_in"],
        settles_in=row["settles_in"],
        sends=row["sends"],
        owner=row["owner"],
        provider=row["provider"],
        fingerprint=Fingerprint(
            version=row["fingerprint_version"], digest=row["fingerprint"], fields=row["fingerprint_fields"]
        ),
        idempotency_key=row["idempotency_key"],
        key_no=row["key_no"],
        remote_ref=row["remote_ref"],
        response=row["response"],
        response_body=None if row["response_body"] is None else bytes(row["response_body"]),
        response_sha256=row["response_sha256"],
        cost=row["cost"],
        currency=row["currency"],
        late=row["late"],
        settled_by=None if row["settled_by"] is None else SettledBy(row["settled_by"]),
        error=row["error"],
        intended_at=row["intended_at"],
        settled_at=row["settled_at"],
        resend_allowed=row["resend_allowed"],
        response_uri=row["response_uri"],
        response_size=row["response_size"],
    )


def message_of(row: Row) -> Message:
    """Build a message from a row that holds all columns of `outbox` and `sender_expires_in`."""
    return Message(
        pipeline=row["pipeline"],
        task_id=row["task_id"],
        channel=row["channel"],
        payload=row["payload"],
        state=MessageState(row["state"]),
        deduplicates=row["deduplicates"],
        attempts=row["attempts"],
        sender_expires_in=row["sender_expires_in"],
        receipt=row["receipt"],
        error=row["error"],
    )
