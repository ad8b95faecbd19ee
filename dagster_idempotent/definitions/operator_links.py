"""Links from what a person meets to the operator jobs, prefilled with everything but who decides and why (R39)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

import dagster as dg

from dagster_idempotent.definitions import tags
from dagster_idempotent.definitions.declared import operator_jobs_here
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import HeldFor, TaskStatus
from dagster_idempotent.engine.task_facts import shown_at_the_gate
from dagster_idempotent.store import listing
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.rows import Row

PREFIX = "idempotency"
EXPLAIN = "explain"
# Rows of metadata.
DECIDE = "decide"
RUNS = "runs of this task"
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
# Where a webserver serves a code location whose repository has the default name.
DEFAULT_REPOSITORY = "__repository__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a person may launch: the operator job, and what is already known of its config."""

    label: str
    verb: str
    config: Mapping[str, str]
    decides: bool = True

    @property
    def job(self) -> str:
        """The name of the operator job."""
        return f"{PREFIX}_{self.verb}"

    @property
    def yaml(self) -> str:
        """The run config; of a decision, actor and reason are left to be typed."""
        config = {**self.config, **({"actor": "", "reason": ""} if self.decides else {})}
        lines = "\n".join(f"      {name}: {_quoted(value)}" for name, value in config.items())
        return f"ops:\n  {self.verb}:\n    config:\n{lines}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the Launchpad of this code location is: a path on the webserver, absolute where its address is known."""

    location: str
    repository: str = DEFAULT_REPOSITORY
    webserver: str = ""

    def link(self, choice: Choice) -> str:
        """Return the link to the Launchpad of an operator job, prefilled."""
        name = self.location if self.repository == DEFAULT_REPOSITORY else f"{self.repository}@{self.location}"
        path = f"/locations/{quote(name, safe='')}/jobs/{choice.job}/playground/setup"
        # Colons and plus signs as they are: people read these links.
        return f"{self.webserver.rstrip('/')}{path}?config={quote_plus(choice.yaml, safe=':/')}"


def place_of(run: dg.DagsterRun, webserver: str | None) -> Place | None:
    """Return where the code location of a run is served; None for a run that no webserver and no daemon launched."""
    origin = run.remote_job_origin
    if origin is None:
        return None
    return Place(
        location=origin.location_name,
        repository=origin.repository_origin.repository_name,
        webserver=webserver or "",
    )


def choices(database: Database, ref: TaskRef) -> Sequence[Choice]:
    """List what a person may decide about a task as it is now; none while nothing waits for a person."""
    task = database.run(lambda c: listing.task(c, ref))
    if task is None:
        return []
    match TaskStatus(task["status"]):
        case TaskStatus.HELD:
            return _about_hold(ref, task, database)
        case TaskStatus.DEAD:
            return [
                _about_task("give its attempts back", "redrive", ref),
                _about_task("end it for good", "discard", ref),
            ]
        case TaskStatus.COMPLETED if task["gate"] == "publish" and not task["gate_open"]:
            return _approval(ref, task)
        case _:
            abandoned = database.run(
                lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, state="abandoned")
            )
            return [
                _about_call("send again, which may charge twice", "resend", ref, row["call_key"])
                for row in abandoned
                if not row["resend_allowed_by"] and task["status"] not in ("completed", "discarded")
            ]


def decisions_for(
    database: Database, pipeline: str, task_id: str, run: dg.DagsterRun, webserver: str | None
) -> dict[str, dg.MetadataValue[str | None]]:
    """Return metadata that says what a person may do about a task: links to its decisions, and the command line.

    There are links where the code location has the operator jobs, that is, where `operator_definitions` was used.
    """
    ref = TaskRef(pipeline=pipeline, task_id=TaskId(task_id))
    found: dict[str, dg.MetadataValue[str | None]] = {}
    place = place_of(run, webserver)
    lines = [
        f"- [{choice.label}]({place.link(choice)})"
        for choice in choices(database, ref)
        if place is not None and choice.job in operator_jobs_here()
    ]
    if lines:
        # One row with a window of links: as rows of their own they would be hidden below the fold of the event.
        said = f"Task {ref}. Each link opens an operator job, filled in; type your name and why, and launch it."
        found[DECIDE] = dg.MetadataValue.md("\n".join([said, "", *lines]))
    see = look(ref)
    if place is not None and see.job in operator_jobs_here():
        found["see"] = dg.MetadataValue.url(place.link(see))
    found["explain"] = dg.MetadataValue.text(f"dagster-idempotent explain {ref}")
    found[RUNS] = dg.MetadataValue.url(runs_link(ref, webserver))
    return found


def look(ref: TaskRef, *, label: str = "see what is known", show: str | None = None) -> Choice:
    """Return the link to the job that explains a task, and shows its `artifact` or its `output`."""
    config = _known(ref) if show is None else _known(ref) | {"show": show}
    return Choice(label=label, verb=EXPLAIN, config=config, decides=False)


def runs_link(ref: TaskRef, webserver: str | None) -> str:
    """Return the link to the runs page, showing the runs of one task."""
    wanted = [f"tag:{tags.PIPELINE}={ref.pipeline}", f"tag:{tags.TASK_ID}={ref.task_id}"]
    query = "&".join(f"q[{n}]={quote(each, safe=':/=')}" for n, each in enumerate(wanted))
    return f"{(webserver or '').rstrip('/')}/runs?{query}"


def _quoted(text: str) -> str:
    """Write a text for YAML, which knows no surrogates and folds what it takes for the end of a line."""
    found = json.dumps(text, ensure_ascii=False)
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", found)


def _about_hold(ref: TaskRef, task: Row, database: Database) -> Sequence[Choice]:
    match HeldFor(task["held_for"]):
        case HeldFor.IN_DOUBT:
            calls = database.run(
                lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, state="in_doubt")
            )
            # One decision for each call; a task with many of them is decided as a whole.
            keys = sorted({row["call_key"] for row in calls})
            call = keys[0] if len(keys) == 1 else ""
            return [
                _about_call(label, outcome, ref, call)
                for label, outcome in (
                    ("the provider has the answer", "succeeded"),
                    ("the provider never had the request", "not_sent"),
                    ("give up on the answer", "abandoned"),
                    ("send again, which may charge twice", "resend"),
                )
            ]
        case HeldFor.GATE:
            return [*_approval(ref, task), _about_task("end it for good", "discard", ref)]
        case HeldFor.BUDGET:
            return [
                _about_task("there is room in the budget", "release", ref),
                _about_task("end it for good", "discard", ref),
            ]


def _about_task(label: str, verb: str, ref: TaskRef) -> Choice:
    return Choice(label=label, verb=verb, config=_known(ref))


def _known(ref: TaskRef) -> dict[str, str]:
    return {"pipeline": ref.pipeline, "task": ref.task_id}


def _approval(ref: TaskRef, task: Row) -> Sequence[Choice]:
    known = _known(ref) | {"shown_sha256": str(task["shown_sha256"])}
    approve = Choice(label="approve what the hash stands for", verb="approve", config=known)
    kept = shown_at_the_gate(task)
    return [approve] if kept is None else [look(ref, label="see what the hash stands for", show=kept), approve]


def _about_call(label: str, outcome: str, ref: TaskRef, call: str) -> Choice:
    config = _known(ref)
    if call:
        config["call"] = call
    config["outcome"] = outcome
    if outcome == "succeeded":
        config["answer"] = ""
    return Choice(label=label, verb="resolve", config=config)
