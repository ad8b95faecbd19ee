"""`doctor` over a user's definitions: what would charge twice, and what would hide that something is stuck."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import dagster as dg
import yaml

from dagster_idempotent.definitions.loading import Loaded, from_file, from_module, from_workspace
from dagster_idempotent.definitions.paid_clients import Construction, constructions, instead_of, paid_client
from dagster_idempotent.domain.period import PeriodKind, straddles
from dagster_idempotent.engine.doctor import Check, Health

KINDS = {
    "paid resources": "every paid resource that was recognised is guarded",
    "sdk retries": "no client was found that sends a paid request again by itself",
    "op retries": "no retry policy was found over an unguarded paid op",
    "weekly partitions": "every week of partitions is one ISO week",
    "io manager": "what ops hand on outlives their process",
}
_WEEK = (timedelta(days=6, hours=22), timedelta(days=7, hours=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A client made in source code, and where."""

    file: Path
    found: Construction


def examine_definitions(
    *,
    modules: Sequence[str] = (),
    files: Sequence[str] = (),
    workspaces: Sequence[Path] = (),
    dagster_home: Path | None = None,
) -> Sequence[Check]:
    """Check the definitions of code locations, and dagster.yaml where it is known; opens no connection."""
    found: list[Loaded | str] = [from_module(name) for name in modules]
    found += [from_file(name) for name in files]
    found += [each for path in workspaces for each in from_workspace(path)]
    checks = [check for each in found if isinstance(each, Loaded) for check in _location(each)]
    checks += [
        Check(name="code location", health=Health.WARNING, found=each, do="Check it by itself, with -m or -f.")
        for each in found
        if isinstance(each, str)
    ]
    spoken_of = {check.name for check in checks}
    quiet = [Check(name=kind, health=Health.OK, found=says) for kind, says in KINDS.items() if kind not in spoken_of]
    return [*checks, *quiet, _run_monitoring(dagster_home)]


def _location(loaded: Loaded) -> Iterator[Check]:
    resources = dict(loaded.definitions.resources or {})
    jobs = list(loaded.definitions.resolve_all_job_defs())
    for job in jobs:
        # Resolved: a plain object stands in a wrapper here, so that the given ones go first.
        resources = {**cast("Mapping[str, Any]", job.resource_defs), **resources}
    unguarded = {key for key, value in resources.items() if paid_client(_unwrapped(value)) is not None}
    made = list(_made_in(loaded.folder))
    for key in sorted(unguarded):
        yield from _resource(f"resource {key!r} of {loaded.name}", _unwrapped(resources[key]))
    for each in made:
        yield from _construction(each)
    yield from _op_retries(loaded, jobs, unguarded, made)
    yield from _weeks(loaded, jobs)
    for key, value in sorted(resources.items()):
        if isinstance(_unwrapped(value), dg.InMemoryIOManager) or value is dg.mem_io_manager:
            yield Check(
                name="io manager",
                health=Health.WARNING,
                found=f"resource {key!r} of {loaded.name} keeps what ops hand on in memory",
                do="Use an IO manager that stores it where every worker reads it: a re-execution from failure starts "
                "in the middle, in another process. What was paid is replayed from the ledger all the same.",
            )


def _resource(where: str, value: object) -> Iterator[Check]:
    client = paid_client(value)
    if client is not None:
        use = f"Put {client.instead} in its place and name each call: get_client(context, call=...)."
        yield _unguarded(f"{where} is {client.what}", use)
        if client.retries is None or client.retries > 0:
            times = "" if client.retries is None else f" up to {client.retries} more times"
            yield _sends_again(f"{where}: {client.what}", times, client.instead)


def _construction(each: _Made) -> Iterator[Check]:
    where, instead = f"{each.file}:{each.found.line}", instead_of(each.found.service)
    yield _unguarded(
        f"{where} calls {each.found.what}", f"Ask for {instead} as a resource and take the client from it."
    )
    if not each.found.retries_off:
        yield _sends_again(f"{where}: {each.found.what}", "", instead)


def _unguarded(what: str, do: str) -> Check:
    found = f"{what}: its requests have no task, no key and no record"
    return Check(name="paid resources", health=Health.WARNING, found=found, do=do)


def _sends_again(what: str, times: str, instead: str) -> Check:
    return Check(
        name="sdk retries",
        health=Health.FAILED,
        found=f"{what} sends again{times} by itself after a lost answer; each may be charged",
        do=f"{instead} sends once; an unguarded client needs its own retries set to 0.",
    )


def _made_in(folder: Path) -> Iterator[_Made]:
    """Read the loaded modules below a folder; installed packages are not the user's code."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if not path.is_relative_to(folder) or "site-packages" in path.parts:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            yield from (_Made(file=path, found=found) for found in constructions(source))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue


def _op_retries(
    loaded: Loaded, jobs: Sequence[dg.JobDefinition], unguarded: set[str], made: Sequence[_Made]
) -> Iterator[Check]:
    seen: set[str] = set()
    for job in jobs:
        job_policy = job.op_retry_policy
        for op, policy in _ops(job.graph):
            retried = policy or job_policy
            why = _pays(op, unguarded, made)
            if retried is None or not retried.max_retries or why is None or op.name in seen:
                continue
            seen.add(op.name)
            yield Check(
                name="op retries",
                health=Health.FAILED,
                found=f"op {op.name!r} of {loaded.name} pays by {why}, and its RetryPolicy runs it up to "
                f"{retried.max_retries} more times: a lost answer is paid for again",
                do="Guard what it pays by, and the policy is harmless: a retry replays. Or take the policy away.",
            )


def _ops(graph: dg.GraphDefinition) -> Iterator[tuple[dg.OpDefinition, dg.RetryPolicy | None]]:
    for node in graph.nodes:
        definition = node.definition
        if isinstance(definition, dg.OpDefinition):
            yield definition, node.retry_policy or definition.retry_policy
        elif isinstance(definition, dg.GraphDefinition):
            yield from _ops(definition)


def _pays(op: dg.OpDefinition, unguarded: set[str], made: Sequence[_Made]) -> str | None:
    """Name what an op pays by, past the guard."""
    keys = sorted(op.required_resource_keys & unguarded)
    if keys:
        return f"the unguarded resource {keys[0]!r}"
    function = getattr(op.compute_fn, "decorated_fn", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    file = Path(code.co_filename).resolve()
    inside = [each for each in made if each.file == file and code.co_firstlineno <= each.found.line <= last]
    return inside[0].found.what if inside else None


def _weeks(loaded: Loaded, jobs: Sequence[dg.JobDefinition]) -> Iterator[Check]:
    owners: list[tuple[str, object]] = [(f"job {job.name!r}", job.partitions_def) for job in jobs]
    owners += [
        (f"asset {each.key.to_user_string()!r}", each.partitions_def)
        for each in loaded.definitions.assets or []
        if isinstance(each, dg.AssetsDefinition) and len(list(each.keys)) == 1
    ]
    for owner, partitions in owners:
        for weekly in _times(partitions):
            window = weekly.time_window_for_partition_key(weekly.get_first_partition_key() or "")
            zone = ZoneInfo(weekly.timezone or "UTC")
            if _WEEK[0] <= window.end - window.start <= _WEEK[1] and straddles(
                window.start, window.end, PeriodKind.ISO_WEEK, zone
            ):
                yield Check(
                    name="weekly partitions",
                    health=Health.WARNING,
                    found=f"{owner} of {loaded.name}: a week starts on {window.start:%A} and lies in two ISO weeks",
                    do="Use iso_week_partitions, or WeeklyPartitionsDefinition(day_offset=1): a task belongs to one "
                    "period. Other keys are other tasks: change it before there are any.",
                )


def _times(partitions: object) -> Iterator[dg.TimeWindowPartitionsDefinition]:
    match partitions:
        case dg.TimeWindowPartitionsDefinition() if partitions.get_first_partition_key() is not None:
            yield partitions
        case dg.MultiPartitionsDefinition():
            for dimension in partitions.partitions_defs:
                yield from _times(dimension.partitions_def)
        case _:
            return


def _unwrapped(value: object) -> object:
    """Return the object that a hardcoded resource holds, else the value itself."""
    if isinstance(value, dg.ResourceDefinition):
        function = value.resource_fn
        held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        paid = [each for each in held if paid_client(each) is not None]
        return paid[0] if paid else value
    return value


def _run_monitoring(dagster_home: Path | None) -> Check:
    do = (
        "Write `run_monitoring: {enabled: true}` in dagster.yaml: otherwise a run whose host died is shown as started "
        "for ever, and its task waits until its lease expires."
    )
    if dagster_home is None:
        return Check(
            name="run monitoring",
            health=Health.WARNING,
            found="no DAGSTER_HOME is known, so dagster.yaml was not read; monitoring is off unless it says otherwise",
            do=f"Give --dagster-home. {do}",
        )
    path = dagster_home / "dagster.yaml"
    try:
        text: object = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, yaml.YAMLError) as error:
        return Check(name="run monitoring", health=Health.FAILED, found=f"{path}: {error}", do="Make it readable YAML.")
    settings = cast("dict[str, Any]", text) if isinstance(text, dict) else {}
    monitoring = settings.get("run_monitoring")
    if isinstance(monitoring, dict) and cast("dict[str, Any]", monitoring).get("enabled") is True:
        return Check(name="run monitoring", health=Health.OK, found=f"on, says {path}")
    return Check(name="run monitoring", health=Health.WARNING, found=f"off: {path} does not turn it on", do=do)
