"""Asking a provider about the calls of one task that are in doubt, when an operator wants to know now."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.listing import unknown_call
from dagster_idempotent.engine.reconciliation import reconcile_call
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import leases, listing, submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.submissions import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """What became of one call; `reason` says why it is still in doubt."""

    call_key: CallKey
    provider: str
    settled: bool
    reason: str


def look_up(
    database: Database, ref: TaskRef, call_key: str | None, providers: Sequence[AnyProvider], *, dry_run: bool = False
) -> list[LookedUp]:
    """Look up the calls in doubt, then release the task where nothing is left to wait for; sends nothing."""
    by_name = {provider.name: provider for provider in providers}
    unsettled = database.run(lambda c: submissions.unsettled_calls(c, ref.pipeline, ref.task_id))
    if call_key is not None:
        known = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, call_key=call_key))
        if not known:
            raise unknown_call(database, ref, call_key)
        unsettled = [each for each in unsettled if each[0] == call_key]
    found: list[LookedUp] = []
    for key, name in unsettled:
        settled, reason = False, "not asked"
        if not dry_run and name in by_name:
            call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=key)
            result = reconcile_call(database, call, by_name[name])
            settled, reason = result.settled, result.reason
        elif not dry_run:
            reason = f"it was made with provider {name!r}; given are {', '.join(map(repr, by_name))}"
        found.append(LookedUp(call_key=key, provider=name, settled=settled, reason=reason))
    if not dry_run:
        database.run(lambda c: leases.release_held(c, ref.pipeline, ref.task_id))
    return found
