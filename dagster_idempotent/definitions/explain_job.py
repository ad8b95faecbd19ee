"""The job that explains a task in the UI: what holds it, what was paid, its artifacts, and what is safe next (R38)."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from dagster_idempotent.definitions.declared import operator_jobs_here
from dagster_idempotent.definitions.operator_jobs import operator_job
from dagster_idempotent.definitions.operator_links import DECIDE, EXPLAIN, RUNS, decisions_for, look, place_of
from dagster_idempotent.definitions.resources import LedgerResource
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine import payloads
from dagster_idempotent.engine.explain import Explanation, explain
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.engine.stages import RAW
from dagster_idempotent.store import listing
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.rows import Row

SHOWN_CHARACTERS = 10_000
SHOWN_ROWS = 100


class ExplainConfig(dg.Config):
    """A task to look at; nothing is decided or changed."""

    pipeline: str = Field(default="", description="The pipeline's name; may be empty where the id fits only one.")
    task: str = Field(description="The task's id, such as 2026-W32-0, its allocation key, or a Dagster run id.")
    show: Literal["nothing", "artifact", "output"] = Field(
        default="nothing",
        description="Copy the start of the raw artifact, or of the accepted output, into this run's metadata, which "
        "pruning does not reach.",
    )


def explain_job() -> dg.JobDefinition:
    """Make the job `idempotency_explain`; it needs the resource `ledger`."""
    return operator_job(EXPLAIN, explain_task)


def explain_task(context: dg.OpExecutionContext, config: ExplainConfig, ledger: LedgerResource) -> None:
    """Say what holds a task, what was paid, where its artifacts lie, and what is safe to do next; reads only."""
    database = ledger.database()
    ref = find_task(database, config.task, pipeline=config.pipeline or None)
    known = decisions_for(database, ref.pipeline, ref.task_id, context.run, ledger.webserver_url)
    # What was asked for first: Dagster's page cuts an event off after a few rows.
    context.add_output_metadata(
        {
            "explanation": dg.MetadataValue.md(as_markdown(explain(database, ref))),
            **_shown(database, ref, config.show),
            **{name: value for name, value in known.items() if name in (DECIDE, RUNS)},
            **_tables(database, ref),
        }
    )


def as_markdown(found: Explanation) -> str:
    """Write an explanation as a page of the UI shows it."""
    cost = f" Known calls may cost at most {', '.join(map(str, found.rerun_cost))}." if found.rerun_cost else ""
    steps = [f"{n}. If {step.when}:\n\n   `{step.command}`" for n, step in enumerate(found.next, 1)]
    parts = [
        f"**{found.task} is {found.status}.** {found.headline}",
        *([f"Held by {found.holder}."] if found.holder else []),
        "**Evidence**",
        "\n".join(f"- {' '.join(line.split())}" for line in found.evidence),
        f"**Running it again**\n\n{found.rerun}{cost}",
        f"**Next**\n\n{chr(10).join(steps) if steps else 'Nothing is to be done.'}",
    ]
    return "\n\n".join(parts)


def link_to(
    kept: Literal["artifact", "output"], pipeline: str, task_id: TaskId, run: dg.DagsterRun, webserver: str | None
) -> dg.MetadataValue[str | None]:
    """Return the link that shows what is kept of a task, or the command where this code location has no such job."""
    place = place_of(run, webserver)
    ref = TaskRef(pipeline=pipeline, task_id=task_id)
    choice = look(ref, show=kept)
    if place is None or choice.job not in operator_jobs_here():
        return dg.MetadataValue.text(f"dagster-idempotent tasks {kept} {ref}")
    return dg.MetadataValue.url(place.link(choice))


def _tables(database: Database, ref: TaskRef) -> Mapping[str, Any]:
    calls = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, limit=SHOWN_ROWS))
    found = {
        "calls": [
            {
                "call": row["call_key"],
                "submission": row["submission"],
                "state": row["state"],
                "cost": "" if row["cost"] is None else f"{row['cost']:f} {row['currency']}",
                "remote_reference": row["remote_ref"] or "",
            }
            for row in calls
        ],
        "artifacts": [
            {
                "name": row["name"],
                "media_type": row["media_type"],
                "bytes": row["size"],
                "sha256": row["sha256"],
                "where": _where(row),
            }
            for row in database.run(lambda c: listing.artifacts(c, ref))
        ],
    }
    return {name: dg.MetadataValue.table([dg.TableRecord(row) for row in rows]) for name, rows in found.items() if rows}


def _where(row: Row) -> str:
    if row["uri"]:
        return str(row["uri"])
    return f"pruned {row['pruned_at']:%Y-%m-%d}" if row["pruned_at"] else "the ledger"


def _shown(database: Database, ref: TaskRef, what: str) -> Mapping[str, Any]:
    match what:
        case "artifact":
            shown = payloads.artifact(database, ref, RAW)
        case "output":
            shown = payloads.output(database, ref)
        case _:
            return {}
    try:
        text = shown.read().decode("utf-8")
    except UnicodeDecodeError:
        return {shown.name: f"{shown.size:,} bytes of {shown.media_type}, which are no text."}
    rest = f"\n… {len(text) - SHOWN_CHARACTERS:,} characters more" if len(text) > SHOWN_CHARACTERS else ""
    # Indented, so that nothing within the text ends the block.
    block = "\n".join(f"    {line}" for line in f"{text[:SHOWN_CHARACTERS]}{rest}".splitlines())
    return {shown.name: dg.MetadataValue.md(block), "shown_sha256": shown.sha256}
