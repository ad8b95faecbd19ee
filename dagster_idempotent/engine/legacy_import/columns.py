"""The rows that an old record becomes, as the ledger's import function takes them."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from dagster_idempotent.domain.legacy import LegacyApproval
from dagster_idempotent.domain.legacy_plan import Plan, PlannedCall
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.store.legacy import ImportedTask

PREFIX = "legacy/"


def imported_task(
    plan: Plan, pipeline: str, metadata: Mapping[str, str | None], *, sizes: Mapping[str, int]
) -> ImportedTask:
    """Return the rows of a record; `metadata` says who imports it from where, `sizes` are of its checked files."""
    record, identity = plan.record, plan.identity
    completed = plan.status is TaskStatus.COMPLETED
    output_sha256 = sha256(record.output.encode()).hexdigest() if completed else None
    shown = output_sha256 or plan.record_sha256
    columns: dict[str, Any] = {
        "pipeline": pipeline,
        "period_id": plan.period_id,
        "subject_id": record.state.subject if identity is None else identity.subject,
        "scheduled_at": None
        if identity is None or identity.scheduled_at is None
        else identity.scheduled_at.isoformat(),
        "version": record.state.version if identity is None else identity.version,
        "allocation_key": None if identity is None else identity.allocation_key,
        "run_id": None if identity is None else identity.run_id,
        "origin": "unrelated" if plan.unrelated else "imported",
        "status": plan.status,
        "held_for": plan.held_for,
        "completed_at": None if not completed or plan.completed_at is None else plan.completed_at.isoformat(),
        "output_sha256": output_sha256,
        "import_metadata": {**metadata, "record_sha256": plan.record_sha256},
        "calls": [_call(call, plan.record_sha256) for call in plan.calls],
        "approvals": [_approval(approval, shown) for approval in record.state.approvals],
        "artifacts": [*_documents(record.documents), *_files(plan, sizes)],
    }
    return ImportedTask(
        columns=columns, output=record.output if completed else None, bodies=list(record.documents.values())
    )


def _call(call: PlannedCall, record_sha256: str) -> dict[str, object]:
    return {
        "call_key": call.call_key,
        "submission": call.submission,
        "state": call.state,
        "provider": call.provider,
        "remote_ref": call.remote_ref,
        "cost": None if call.cost is None else str(call.cost.amount),
        "currency": None if call.cost is None else call.cost.currency,
        "intended_at": None if call.sent_at is None else call.sent_at.isoformat(),
        "settled_at": None if call.finished_at is None else call.finished_at.isoformat(),
        # No request is the same as this one: a later call of that name is refused, never sent (R17).
        "fingerprint": f"legacy:{sha256(call.excerpt.encode()).hexdigest()}",
        "idempotency_key": f"legacy:{record_sha256}:{call.call_key}:{call.submission}",
        "body": call.excerpt,
    }


def _approval(approval: LegacyApproval, shown: str) -> dict[str, object]:
    return {
        "gate": approval.gate,
        "actor": approval.who,
        "reason": approval.reason,
        "amount_cap": None if approval.amount is None else str(approval.amount.amount),
        "currency": None if approval.amount is None else approval.amount.currency,
        "shown_sha256": approval.shown_sha256 or shown,
        "created_at": approval.when.isoformat(),
    }


def _documents(documents: Mapping[str, bytes]) -> list[dict[str, object]]:
    return [
        {
            "name": f"{PREFIX}{name}",
            "sha256": sha256(body).hexdigest(),
            "size": len(body),
            "media_type": "application/json" if name.endswith(".json") else "application/octet-stream",
            # PostgreSQL counts from 1.
            "document": number,
        }
        for number, (name, body) in enumerate(documents.items(), start=1)
    ]


def _files(plan: Plan, sizes: Mapping[str, int]) -> list[dict[str, object]]:
    # Relative to the record's directory, wherever that is moved to.
    return [
        {
            "name": f"{PREFIX}{file.path}",
            "sha256": file.sha256,
            "size": sizes[file.path],
            "media_type": file.media_type,
            "uri": f"legacy:{file.path}",
        }
        for file in plan.record.state.media
        if file.path in sizes
    ]
