"""The asset `idempotency_ledger` and its checks: what the ledger counts, and what in it needs a person."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import dagster as dg

from dagster_idempotent.definitions import tags
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.engine.verify import verify
from dagster_idempotent.store import listing, replays, sightings
from dagster_idempotent.store.database import Database

ASSET = "idempotency_ledger"
NOTHING_IN_DOUBT = "nothing_in_doubt"
NO_DEAD_LETTERS = "no_dead_letters"
COST_WITHIN_BUDGET = "cost_within_budget"
NOTHING_CHARGED_TWICE = "nothing_charged_twice"
NO_JOB_OVERDUE = "no_job_overdue"
ONE_RESULT_PER_KEY = "one_accepted_result_per_key"
SHOWN = 100
_RED_WHILE = {
    NOTHING_IN_DOUBT: "a paid call or a message is in doubt, or a task is held",
    NO_DEAD_LETTERS: "a task is out of attempts, or a message cannot be delivered",
    COST_WITHIN_BUDGET: "more is spent or reserved than a limit allows",
    NOTHING_CHARGED_TWICE: "a look-up shows a further charge for one call",
    NO_JOB_OVERDUE: "an accepted job has not ended in the time that its provider states",
    ONE_RESULT_PER_KEY: "the ledger contradicts itself; looked at when the asset is materialized",
}
_WHAT_TO_DO = {
    NOTHING_IN_DOUBT: "Open the last run of the task and follow a link under `decide`, or ask `dagster-idempotent "
    "explain TASK`; for a message `dagster-idempotent outbox resolve`.",
    NO_DEAD_LETTERS: "Run the job idempotency_redrive or idempotency_discard; for a message `dagster-idempotent outbox "
    "resolve`.",
    COST_WITHIN_BUDGET: "Raise the limit with `dagster-idempotent budgets set`, or find out what cost so much.",
    NOTHING_CHARGED_TWICE: "Ask for a refund (`dagster-idempotent explain TASK` names both requests), then "
    "`dagster-idempotent calls acknowledge TASK CALL`.",
    NO_JOB_OVERDUE: "Look into the provider's records for the job: `dagster-idempotent explain TASK` names it and what "
    "is safe. Where such jobs take longer, say so with the provider's `expected_within`.",
    ONE_RESULT_PER_KEY: "Run `dagster-idempotent verify`.",
}
# A late job may still end well: somebody should look, and nothing is lost.
_SEVERITY = {NO_JOB_OVERDUE: dg.AssetCheckSeverity.WARN}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What needs a person, by the check that is red for it; `digest` changes when any of it does."""

    problems: dict[str, list[dict[str, Any]]]

    @property
    def digest(self) -> str:
        """A short name for this state."""
        return sha256(json.dumps(self.problems, sort_keys=True, default=str).encode()).hexdigest()[:32]


def look_at(database: Database) -> LedgerState:
    """Read what needs a person: doubts, holds, dead letters, overdrawn budgets, double charges, overdue jobs."""
    doubtful = database.run(lambda c: listing.calls(c, state="in_doubt", limit=SHOWN))
    held = database.run(lambda c: listing.tasks(c, status="held", limit=SHOWN))
    dead = database.run(lambda c: listing.tasks(c, status="dead", limit=SHOWN))
    lost = database.run(lambda c: listing.messages(c, state="in_doubt", limit=SHOWN))
    undelivered = database.run(lambda c: listing.messages(c, state="dead", limit=SHOWN))
    limits = database.run(listing.budgets)
    overdue = database.run(lambda c: listing.overdue_jobs(c, limit=SHOWN))
    twice = database.run(lambda c: sightings.charged_twice(c, limit=SHOWN))
    overdrawn = [row for row in limits if row["limit"] is not None and row["reserved"] + row["settled"] > row["limit"]]
    return LedgerState(
        problems={
            NOTHING_IN_DOUBT: [
                *(_picked(row, "pipeline", "task_id", "call_key", "submission", "idempotency_key") for row in doubtful),
                *(_picked(row, "pipeline", "task_id", "held_for") for row in held if row["held_for"] != "in_doubt"),
                *(_picked(row, "pipeline", "task_id", "channel", "error") for row in lost),
            ],
            NO_DEAD_LETTERS: [
                *(_picked(row, "pipeline", "task_id", "attempts", "error") for row in dead),
                *(_picked(row, "pipeline", "task_id", "channel", "attempts", "error") for row in undelivered),
            ],
            COST_WITHIN_BUDGET: [
                _picked(row, "pipeline", "scope", "currency", "settled", "limit") for row in overdrawn
            ],
            NOTHING_CHARGED_TWICE: [
                _picked(row, "pipeline", "task_id", "call_key", "submission", "found") for row in twice
            ],
            NO_JOB_OVERDUE: [
                _picked(row, "pipeline", "task_id", "call_key", "provider", "remote_ref", "accepted_at", "expected_by")
                for row in overdue
            ],
        }
    )


def evaluations(state: LedgerState) -> Sequence[dg.AssetCheckEvaluation]:
    """Return the state as evaluations of the asset's checks, for a sensor to report."""
    return [
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey(ASSET),
            check_name=check,
            passed=not rows,
            metadata=_metadata(check, rows),
            severity=_SEVERITY.get(check, dg.AssetCheckSeverity.ERROR),
        )
        for check, rows in state.problems.items()
    ]


def ledger_asset() -> dg.AssetsDefinition:
    """Make the asset `idempotency_ledger`: numbers to plot, tables to read, and the checks."""

    @dg.asset(
        name=ASSET,
        description="What needs a person stands under Checks, kept up to date by the sensor idempotency_attention. "
        "Materialize it for what the ledger counts: tasks, charges, replays and what they saved, cost by period and "
        "currency.",
        kinds={"postgres"},
        check_specs=[
            dg.AssetCheckSpec(check, asset=ASSET, description=f"Red while {_RED_WHILE[check]}. {text}")
            for check, text in _WHAT_TO_DO.items()
        ],
    )
    def idempotency_ledger(context: dg.AssetExecutionContext, ledger: LedgerResource) -> dg.MaterializeResult:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType] - as Dagster reads it
        database = ledger.database()
        state = look_at(database)
        findings = verify(database).findings
        results = [
            dg.AssetCheckResult(
                check_name=check,
                passed=not rows,
                metadata=_metadata(check, rows),
                severity=_SEVERITY.get(check, dg.AssetCheckSeverity.ERROR),
            )
            for check, rows in state.problems.items()
        ]
        broken: list[dict[str, Any]] = [
            {"rule": finding.rule, "of": finding.subject, "found": finding.found} for finding in findings[:SHOWN]
        ]
        results.append(
            dg.AssetCheckResult(
                check_name=ONE_RESULT_PER_KEY, passed=not broken, metadata=_metadata(ONE_RESULT_PER_KEY, broken)
            )
        )
        return dg.MaterializeResult(metadata=_numbers(database, context.instance), check_results=results)

    return idempotency_ledger


def _numbers(database: Database, instance: dg.DagsterInstance) -> dict[str, Any]:
    pipelines = database.run(listing.pipelines)
    costs = database.run(lambda c: listing.costs(c, by="pipeline"))
    by_period = database.run(lambda c: listing.costs(c, by="period"))
    runs = sum(instance.get_runs_count(dg.RunsFilter(tags={tags.PIPELINE: row["pipeline"]})) for row in pipelines)
    found: dict[str, Any] = {
        "tasks": sum(row["tasks"] for row in pipelines),
        "open": sum(row["open"] for row in pipelines),
        "held": sum(row["held"] for row in pipelines),
        "dead": sum(row["dead"] for row in pipelines),
        "charges": sum(row["charges"] for row in costs),
        "replays_saved": database.run(replays.total),
        "runs": runs,
        "runs_beyond_the_first": max(0, runs - sum(row["tasks"] for row in pipelines)),
    }
    for currency in sorted({row["currency"] for row in costs}):
        rows = [row for row in costs if row["currency"] == currency]
        found[f"cost_{currency}"] = float(sum(row["settled"] for row in rows))
        found[f"saved_{currency}"] = float(sum(row["saved"] for row in rows))
    if by_period:
        columns = ("name", "currency", "settled", "charges", "replays", "saved")
        newest = sorted(by_period, key=lambda row: row["name"].rpartition("/")[2], reverse=True)[:SHOWN]
        found["cost_by_period"] = _table([_picked(row, *columns) for row in newest])
    if pipelines:
        found["pipelines"] = _table([_picked(row, "pipeline", "tasks", "open", "held", "dead") for row in pipelines])
    return found


def _metadata(check: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"found": len(rows)}
    if rows:
        found |= {"rows": _table(rows), "what_to_do": _WHAT_TO_DO[check]}
    return found


def _table(rows: Sequence[dict[str, Any]]) -> dg.TableMetadataValue:
    names = list(dict.fromkeys(name for row in rows for name in row))
    schema = dg.TableSchema([dg.TableColumn(name) for name in names])
    records = [dg.TableRecord({name: str(row.get(name, "")) for name in names}) for row in rows]
    return dg.MetadataValue.table(records, schema)


def _picked(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}
