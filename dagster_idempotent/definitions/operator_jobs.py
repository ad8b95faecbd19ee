"""Operator jobs: the decisions that people take in the Dagster UI, with their name and their reason (R39)."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from dagster_idempotent.definitions.declared import note_operator_job
from dagster_idempotent.definitions.operator_links import PREFIX
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.domain.backoff import duration
from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine import approvals, budgets, dead_letters, resolutions
from dagster_idempotent.engine.decisions import Decision, Who
from dagster_idempotent.engine.listing import check_pipeline, find_task
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.engine.retention import prune
from dagster_idempotent.errors import ConfigurationError, IdempotentError
from dagster_idempotent.store import listing
from dagster_idempotent.store.database import Database

# More calls than a bad night has; what is beyond is left for another run of the job.
MOST = 100_000
# Evidence about one call alone.
_OF_ONE_CALL = ("succeeded", "accepted")


class DecisionConfig(dg.Config):
    """Who decides, and why; both are kept for ever."""

    actor: str = Field(description="Your name, as the audit trail should show it.")
    reason: str = Field(description="Why: a ticket, what you saw at the provider.")
    dry_run: bool = Field(default=False, description="Show what would be decided, and write nothing.")

    def who(self) -> Who:
        """Return the decider; a link leaves both texts to be typed, and an empty one decides nothing."""
        actor, reason = self.actor.strip(), self.reason.strip()
        missing = [name for name, text in (("actor", actor), ("reason", reason)) if not text]
        if missing:
            raise dg.Failure(
                f"Empty: {', '.join(missing)}. Nothing was decided. Type your name as `actor`, and as `reason` "
                "what you saw or who asked for it; both are kept.",
                allow_retries=False,
            )
        return Who(actor=actor, reason=reason)


class TaskDecisionConfig(DecisionConfig):
    """A decision about one task."""

    pipeline: str = Field(description="The pipeline's name.")
    task: str = Field(description="The task's id, such as 2026-W32-0.")


class ResolveConfig(DecisionConfig):
    """Evidence about calls in doubt: of one task, or of every call that the filter takes in."""

    pipeline: str = Field(description="The pipeline's name.")
    task: str = Field(default="", description="One task; empty: every task that the filter takes in.")
    call: str = Field(default="", description="One call; empty: every call in doubt of the tasks.")
    period: str = Field(default="", description="Only tasks of this period, such as 2026-W32.")
    cost_up_to: str = Field(default="", description="Only calls whose reservation is at most this, such as 0.50 USD.")
    outcome: Literal["succeeded", "accepted", "not_sent", "rejected", "failed", "abandoned", "resend"] = Field(
        description="What you found. `failed` ends an accepted job that has ended without a result, or that its "
        "provider has forgotten; `abandoned` gives up on the answer; `resend` sends again and MAY CHARGE TWICE."
    )
    answer: str = Field(default="", description="For `succeeded`: the provider's answer, which later runs replay.")
    remote_reference: str = Field(default="", description="For `accepted`: the provider's reference.")
    cost: str = Field(default="", description="What it cost, such as 0.02 USD, where you know it.")


class ApproveConfig(TaskDecisionConfig):
    """An approval of what was shown."""

    shown_sha256: str = Field(description="The hash of what you looked at, as the task shows it.")
    up_to: str = Field(default="", description="The most that the task may spend, such as 5.00 USD.")


class ReleaseConfig(TaskDecisionConfig):
    """A task that a full budget holds."""

    task_limit: str = Field(default="", description="New limit of this task, such as 5.00 USD; empty: there is room.")


class PruneConfig(DecisionConfig):
    """What may go; identities, hashes and costs always stay."""

    older_than: str = Field(description="Only tasks that ended at least this long ago, such as 180d.")
    pipeline: str = Field(default="", description="One pipeline; empty: all.")


def operator_jobs() -> list[dg.JobDefinition]:
    """Make the jobs approve, resolve, release, redrive, discard and prune; each needs the resource `ledger`."""
    return [operator_job(name, body) for name, body in _BODIES.items()]


def operator_job(name: str, body: Callable[..., None]) -> dg.JobDefinition:
    """Make the job of one op, which says an error in one sentence and is never retried."""

    @wraps(body)
    def told(context: dg.OpExecutionContext, config: Any, ledger: LedgerResource) -> None:  # noqa: ANN401 - as the body has it
        try:
            body(context, config, ledger)
        except IdempotentError as error:
            raise dg.Failure(error.message, allow_retries=False) from error

    op = dg.op(name=name, description=body.__doc__)(told)
    note_operator_job(f"{PREFIX}_{name}")

    @dg.job(name=f"{PREFIX}_{name}", description=body.__doc__, tags={"dagster/max_retries": "0"})
    def job() -> None:
        op()

    return job


def approve(context: dg.OpExecutionContext, config: ApproveConfig, ledger: LedgerResource) -> None:
    """Open the spend or publish gate of a task for what was shown."""
    database = ledger.database()
    up_to = Money.parse(config.up_to, field="up_to") if config.up_to else None
    ref = find_task(database, config.task, pipeline=config.pipeline)
    shown = config.shown_sha256
    _note(context, approvals.approve(database, ref, shown=shown, up_to=up_to, who=config.who(), dry_run=config.dry_run))


def redrive(context: dg.OpExecutionContext, config: TaskDecisionConfig, ledger: LedgerResource) -> None:
    """Give a dead task its attempts back; paid answers are replayed."""
    database = ledger.database()
    ref = find_task(database, config.task, pipeline=config.pipeline)
    _note(context, dead_letters.redrive(database, ref, who=config.who(), dry_run=config.dry_run))


def discard(context: dg.OpExecutionContext, config: TaskDecisionConfig, ledger: LedgerResource) -> None:
    """End a dead or held task for good; refused while the outcome of one of its calls is not known."""
    database = ledger.database()
    ref = find_task(database, config.task, pipeline=config.pipeline)
    _note(context, dead_letters.discard(database, ref, who=config.who(), dry_run=config.dry_run))


def release(context: dg.OpExecutionContext, config: ReleaseConfig, ledger: LedgerResource) -> None:
    """Let a task go on that a full budget holds; it is held again where the limit is still too low."""
    database = ledger.database()
    ref = find_task(database, config.task, pipeline=config.pipeline)
    who = config.who()
    if config.task_limit:
        # Refused as a whole: a limit that is raised for nothing would let the next call spend it.
        dead_letters.release_budget_hold(database, ref, who=who, dry_run=True)
        limit = _task_limit(database, ref, config.task_limit)
        currency, scope = limit.currency, f"task:{ref.task_id}"
        _note(
            context,
            budgets.set_limit(
                database, ref.pipeline, scope, currency=currency, limit=limit.amount, who=who, dry_run=config.dry_run
            ),
        )
    _note(context, dead_letters.release_budget_hold(database, ref, who=who, dry_run=config.dry_run))


def _task_limit(database: Database, ref: listing.TaskRef, text: str) -> Money:
    """Read a task's new limit; raises ConfigurationError where its calls are counted in another currency."""
    limit = Money.parse(text, field="task_limit")
    task = database.run(lambda c: listing.task(c, ref))
    counted = None if task is None else task["currency"]
    if counted not in (None, limit.currency):
        raise ConfigurationError(
            f"task_limit is {limit}, but pipeline {ref.pipeline!r} counts in {counted}: a limit in another currency "
            f"would hold nothing back and let nothing go on. Nothing was written. Give it in {counted}.",
            field="task_limit",
        )
    return limit


def resolve(context: dg.OpExecutionContext, config: ResolveConfig, ledger: LedgerResource) -> None:
    """Settle calls in doubt by evidence; a whole bad night is one decision."""
    config.who()
    if config.cost:
        Money.parse(config.cost, field="cost")
    database = ledger.database()
    chosen = _doubtful(database, config)
    if not chosen:
        kind = "accepted job" if config.outcome == "failed" else "call in doubt"
        check_pipeline(database, config.pipeline)
        raise dg.Failure(f"No {kind} of pipeline {config.pipeline!r} fits the filter.", allow_retries=False)
    if len(chosen) > 1 and config.outcome in _OF_ONE_CALL:
        raise dg.Failure(
            f"What a provider answered belongs to one call, and {len(chosen)} fit the filter: {_named(chosen)}. "
            "Nothing was decided. Fill in `task` and `call`; the other outcomes may be told of many at once.",
            allow_retries=False,
        )
    refused: list[str] = []
    for ref, call in chosen:
        try:
            _resolve_one(context, database, config, ref, call)
        except IdempotentError as error:
            refused.append(error.message)
    context.add_output_metadata(
        {
            "calls": len(chosen) - len(refused),
            "dry_run": config.dry_run,
            "next": "Re-execute the run that failed, or wait for the task sensor where it is on.",
        }
    )
    if refused:
        raise dg.Failure(f"{len(refused)} of {len(chosen)} refused: {' '.join(refused[:5])}", allow_retries=False)


def prune_payloads(context: dg.OpExecutionContext, config: PruneConfig, ledger: LedgerResource) -> None:
    """Drop the payloads of tasks that ended long ago; a key pruned years ago still returns its task."""
    found = prune(
        ledger.database(),
        older_than=duration(config.older_than, field="older_than"),
        pipeline=config.pipeline or None,
        who=config.who(),
        dry_run=config.dry_run,
        progress=lambda done: context.log.info("%s: %s tasks, %s bytes", done.pipeline, done.tasks, done.bytes),
    )
    context.add_output_metadata({each.pipeline: f"{each.tasks} tasks, {each.bytes} bytes" for each in found})


def _named(chosen: Sequence[tuple[listing.TaskRef, str]]) -> str:
    shown = ", ".join(f"{ref} {call}" for ref, call in chosen[:5])
    return shown if len(chosen) <= 5 else f"{shown}, …"  # noqa: PLR2004 - as many as a person reads


def _doubtful(database: Database, config: ResolveConfig) -> list[tuple[listing.TaskRef, str]]:
    ref = find_task(database, config.task, pipeline=config.pipeline) if config.task else None
    highest = Money.parse(config.cost_up_to, field="cost_up_to") if config.cost_up_to else None
    # An abandoned call is sent again only where it is named; of an accepted job only its end can be told.
    states = ("accepted",) if config.outcome == "failed" else ("in_doubt",)
    if config.outcome == "resend" and ref is not None and config.call:
        states = ("in_doubt", "abandoned")
    rows = [
        row
        for state in states
        for row in database.run(
            lambda c, state=state: listing.calls(
                c,
                pipeline=config.pipeline,
                task_id=None if ref is None else ref.task_id,
                period=config.period or None,
                call_key=config.call or None,
                state=state,
                limit=MOST,
            )
        )
    ]
    chosen = [
        (listing.TaskRef(pipeline=row["pipeline"], task_id=row["task_id"]), str(row["call_key"]))
        for row in rows
        if highest is None
        or (
            row["reserved"] is not None
            and row["reserved_currency"] == highest.currency
            and row["reserved"] <= highest.amount
        )
    ]
    return list(dict.fromkeys(chosen))


def _resolve_one(
    context: dg.OpExecutionContext, database: Database, config: ResolveConfig, ref: listing.TaskRef, call: str
) -> None:
    who, cost = config.who(), Money.parse(config.cost, field="cost") if config.cost else None
    if config.outcome == "abandoned":
        _log(context, resolutions.abandon(database, ref, call, who=who, dry_run=config.dry_run))
    elif config.outcome == "resend":
        _log(context, resolutions.resend(database, ref, call, amount=cost, who=who, dry_run=config.dry_run))
    else:
        evidence = Evidence(
            proof=Proof(config.outcome),
            told=config.reason,
            answer=config.answer.encode() if config.answer else None,
            remote_ref=config.remote_reference or None,
            cost=cost,
        )
        _log(context, resolutions.resolve(database, ref, call, evidence, who=who, dry_run=config.dry_run))


def _note(context: dg.OpExecutionContext, decided: Decision) -> None:
    _log(context, decided)
    context.add_output_metadata({"decision": decided.action, "of": decided.subject, "dry_run": decided.dry_run})


def _log(context: dg.OpExecutionContext, decided: Decision) -> None:
    context.log.info("%s %s%s", decided.subject, decided.action, " (dry run)" if decided.dry_run else "")


_BODIES: Mapping[str, Callable[..., None]] = {
    "approve": approve,
    "resolve": resolve,
    "release": release,
    "redrive": redrive,
    "discard": discard,
    "prune": prune_payloads,
}
