"""From a Dagster run to an identity: its partition, else its tick, else an explicit key; never anything else (R4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent.definitions import tags
from dagster_idempotent.domain.identity import Identity, TimeSource
from dagster_idempotent.domain.period import period_bounds, period_id_for, straddles
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.errors import ConfigurationError, IdentityConflict, InvalidIdentity, MissingIdentity

AnyPartitions = dg.PartitionsDefinition[str]
# Ends of periods that are looked at when partitions are declared.
BOUNDARIES = 54


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """What a partition or a tick says: the start of the time window, and whose it is."""

    scheduled_at: datetime
    subject: str = ""


def identity_of(
    context: dg.OpExecutionContext,
    pipeline: Pipeline[BaseModel],
    *,
    partitions_def: AnyPartitions | None = None,
    explicit_key: str = "",
    allow_straddling: bool = False,
) -> Identity:
    """Derive the identity of a run.

    Raises MissingIdentity where it carries nothing stable, IdentityConflict where its tags contradict its partition.
    """
    run_tags = context.run.tags
    partition = partition_of(context)
    if partition is not None:
        if explicit_key:
            raise IdentityConflict(
                f"This run has the partition {partition!r} and the explicit key {explicit_key!r}; one of "
                "them names the task, not both. Leave out `explicit_key` for partitioned launches.",
                found=[partition, explicit_key],
            )
        known = partitions_def or context.job_def.partitions_def
        occasion = occasion_of(known, partition)
        _check_straddling(known, partition, pipeline, allow_straddling=allow_straddling)
        identity = identity_at(pipeline, occasion)
    elif tags.RANGE_START in run_tags:
        raise MissingIdentity(
            f"This run covers the partitions {run_tags[tags.RANGE_START]!r} to {run_tags.get(tags.RANGE_END)!r} at "
            "once; each of them is a task of its own, so nothing was allocated. Start the backfill with one run per "
            "partition: leave out backfill_policy, or give BackfillPolicy.multi_run(max_partitions_per_run=1)."
        )
    elif explicit_key:
        subject = run_tags.get(tags.SUBJECT, "")
        identity = Identity(
            pipeline=pipeline.name, subject=subject, explicit_key=explicit_key, version=pipeline.version
        )
    else:
        identity = _identity_of_tick(context, pipeline)
    _cross_check(identity, run_tags)
    return identity


def partition_of(context: dg.OpExecutionContext) -> str | None:
    """Return the one partition of a run; a range of one partition is that partition."""
    run_tags = context.run.tags
    if not context.has_partition_key:
        start = run_tags.get(tags.RANGE_START)
        return start if start == run_tags.get(tags.RANGE_END) else None
    # Of a multi-partition, Dagster reads the tags of its dimensions, and people read the tag of the whole.
    key, shown = context.partition_key, run_tags.get(tags.PARTITION, context.partition_key)
    if str(key) != shown:
        raise IdentityConflict(
            f"The run's tag {tags.PARTITION} is {shown!r}, but the tags of its dimensions say {str(key)!r}. Nothing "
            "was allocated. Launch it again without editing those tags.",
            found=[shown, str(key)],
        )
    # As a text: a run of before its dimensions were renamed carries their old names.
    return str(key)


def time_source(context: dg.OpExecutionContext, identity: Identity) -> TimeSource | None:
    """Say where the time of a run's identity comes from; an explicit key has none."""
    if identity.scheduled_at is None:
        return None
    return TimeSource.TICK if partition_of(context) is None else TimeSource.PARTITION


def _identity_of_tick(context: dg.OpExecutionContext, pipeline: Pipeline[BaseModel]) -> Identity:
    run_tags = context.run.tags
    tick = run_tags.get(tags.SCHEDULED_AT) or run_tags.get(tags.TICK_TIME)
    if tick is not None:
        occasion = Occasion(scheduled_at=parse_instant(tick), subject=run_tags.get(tags.SUBJECT, ""))
        return identity_at(pipeline, occasion)
    *nodes, op = str(context.op_handle).split(".")
    config = f'{{{op}: {{config: {{explicit_key: "invoice-2026-08"}}}}}}'
    for node in reversed(nodes):
        config = f"{{{node}: {{ops: {config}}}}}"
    raise MissingIdentity(
        f"Nothing in this run says which task of pipeline {pipeline.name!r} it is: it has no partition, no schedule "
        "tick and no explicit key, and a run id or the clock would make every launch a new, paid task. Launch it on a "
        "partition; or let its schedule launch it; or give the allocate op an `explicit_key` in the run config, for "
        f"example ops: {config}."
    )


def identity_at(pipeline: Pipeline[BaseModel], occasion: Occasion) -> Identity:
    """Return the identity of a pipeline at an occasion."""
    return Identity(
        pipeline=pipeline.name,
        subject=occasion.subject,
        scheduled_at=occasion.scheduled_at,
        version=pipeline.version,
    )


def occasion_of(partitions_def: AnyPartitions | None, partition_key: str) -> Occasion:
    """Read time and subject from a partition key; raises MissingIdentity where the partitions carry no time."""
    match partitions_def:
        case dg.TimeWindowPartitionsDefinition():
            return Occasion(scheduled_at=_start_of(partitions_def, partition_key))
        case dg.MultiPartitionsDefinition() if partitions_def.has_time_window_dimension:
            found = dimensions_of(partitions_def)
            if partition_key.count("|") != 1:
                raise _no_partition(partition_key, f"{found.subject_name} and {found.time_name}, joined by a |")
            parts = dict(partitions_def.get_partition_key_from_str(partition_key).keys_by_dimension)
            start = _start_of(found.time, parts[found.time_name])
            return Occasion(scheduled_at=start, subject=parts[found.subject_name])
        case _:
            raise MissingIdentity(
                f"Partition {partition_key!r} carries no time window, so it does not say which period its task belongs "
                "to. Use time-window partitions, or time by subject: by_subject(iso_week_partitions(...), tenants)."
            )


def _start_of(time: dg.TimeWindowPartitionsDefinition, key: str) -> datetime:
    """Return when a partition starts; Dagster takes a time between two starts for the later one."""
    try:
        start = time.time_window_for_partition_key(key).start
    except (ValueError, OverflowError):
        start = None
    if start is None or time.get_partition_key_for_timestamp(start.timestamp()) != key:
        raise _no_partition(key, f"the start of a window of {time.cron_schedule!r}, written as {time.fmt}")
    return start


def _no_partition(key: str, expected: str) -> InvalidIdentity:
    return InvalidIdentity(
        f"{key!r} is no partition here: expected {expected}. Nothing was allocated. Launch one of the partitions that "
        "the UI offers.",
        field="partition",
    )


def tags_of(pipeline: Pipeline[BaseModel], partitions_def: AnyPartitions, partition_key: str) -> Mapping[str, str]:
    """Return the tags that a partitioned run carries: a cross-check in the op, and a search term in the UI.

    A partition that cannot be a task gets none: its run says why. Raising here would lose the whole tick.
    """
    try:
        return identity_tags(identity_at(pipeline, occasion_of(partitions_def, partition_key)))
    except ConfigurationError:
        return {}


def identity_tags(identity: Identity) -> Mapping[str, str]:
    """Return an identity as visible tags."""
    found = {tags.PIPELINE: identity.pipeline, tags.ALLOCATION_KEY: identity.allocation_key}
    if identity.scheduled_at is not None:
        found[tags.SCHEDULED_AT] = identity.scheduled_at.isoformat()
    if identity.subject:
        found[tags.SUBJECT] = identity.subject
    if identity.version:
        found[tags.VERSION] = identity.version
    return found


def parse_instant(text: str) -> datetime:
    """Read an instant from a tag; raises InvalidIdentity where it is no ISO time with a zone."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidIdentity(
            f"The tag {tags.SCHEDULED_AT} is {text!r}, expected an ISO time with a zone such as "
            "2026-08-03T09:00:00+00:00.",
            field="scheduled_at",
        )
    return instant.astimezone(UTC)


def check_partitions(
    pipeline: Pipeline[BaseModel], partitions_def: AnyPartitions | None, *, allow_straddling: bool
) -> None:
    """Refuse, when the code is loaded, partitions that are no tasks of the pipeline's periods."""
    match partitions_def:
        case None:
            return
        case dg.TimeWindowPartitionsDefinition():
            time, subjects = partitions_def, None
        case dg.MultiPartitionsDefinition():
            dimensions = dimensions_of(partitions_def)
            time, subjects = dimensions.time, dimensions.subjects
        case _:
            raise _no_time(type(partitions_def).__name__)
    if isinstance(subjects, dg.StaticPartitionsDefinition):
        _check_subjects(pipeline, time, subjects.get_partition_keys())
    if not allow_straddling:
        _check_boundaries(pipeline, time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The two dimensions of time by subject, whatever they are called."""

    time_name: str
    time: dg.TimeWindowPartitionsDefinition
    subject_name: str
    subjects: AnyPartitions


def dimensions_of(partitions_def: dg.MultiPartitionsDefinition) -> Dimensions:
    """Tell time and subject apart; raises ConfigurationError where there is not one of each."""
    kinds = {dimension.name: dimension.partitions_def for dimension in partitions_def.partitions_defs}
    times = {name: kind for name, kind in kinds.items() if isinstance(kind, dg.TimeWindowPartitionsDefinition)}
    others = {name: kind for name, kind in kinds.items() if name not in times}
    if len(times) != 1 or len(others) != 1:
        raise _no_time(" and ".join(type(kind).__name__ for kind in kinds.values()))
    ((time_name, time),) = times.items()
    ((subject_name, subjects),) = others.items()
    return Dimensions(time_name=time_name, time=time, subject_name=subject_name, subjects=subjects)


def _no_time(found: str) -> ConfigurationError:
    return ConfigurationError(
        f"The partitions are {found}; a task needs exactly one time window, and at most one subject beside it. Use "
        "time-window partitions, or time by subject: by_subject(iso_week_partitions(...), tenants).",
        field="partitions_def",
    )


def _check_subjects(
    pipeline: Pipeline[BaseModel], time: dg.TimeWindowPartitionsDefinition, names: Sequence[str]
) -> None:
    """Refuse names that no identity allows, or that are one identity; Dagster refuses those that hold a `|`."""
    known: dict[str, str] = {}
    for name in names:
        identity = identity_at(pipeline, Occasion(scheduled_at=time.start, subject=name))
        other = known.setdefault(identity.subject, name)
        if other != name:
            raise InvalidIdentity(
                f"Subjects {other!a} and {name!a} are one text in Unicode form NFC, so they would share "
                "their tasks. Keep one of them.",
                field="subject",
            )


def _check_boundaries(pipeline: Pipeline[BaseModel], time: dg.TimeWindowPartitionsDefinition) -> None:
    """Look at the windows around the first periods' ends; they are enough to see a year of weeks with its clocks."""
    instant = time.start
    for _ in range(BOUNDARIES):
        period = period_id_for(instant, pipeline.period, pipeline.timezone)
        _, end = period_bounds(period, pipeline.period, pipeline.timezone)
        last = end - timedelta(microseconds=1)
        _check_straddling(
            time, time.get_partition_key_for_timestamp(last.timestamp()), pipeline, allow_straddling=False
        )
        instant = end


def _check_straddling(
    partitions_def: AnyPartitions | None, key: str, pipeline: Pipeline[BaseModel], *, allow_straddling: bool
) -> None:
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition | dg.MultiPartitionsDefinition):
        window = partitions_def.time_window_for_partition_key(key)
        lies_in_two = straddles(window.start, window.end, pipeline.period, pipeline.timezone)
        if lies_in_two and not allow_straddling:
            raise ConfigurationError(
                f"Partition {key!r} runs from {window.start} to {window.end}, which lies in two periods "
                f"({pipeline.period}, {pipeline.timezone_name}) of pipeline {pipeline.name!r}: people would look for "
                "its task in either. Weekly partitions should start on Monday, in the pipeline's zone (use "
                "iso_week_partitions); or pass allow_straddling=True: the window's start then decides.",
                field="partitions_def",
            )


def _cross_check(identity: Identity, run_tags: Mapping[str, str]) -> None:
    """Refuse a run whose tags, which anybody may edit in the Launchpad, contradict what else it says."""
    wanted = identity_tags(identity)
    for name in (tags.PIPELINE, tags.SCHEDULED_AT, tags.SUBJECT, tags.VERSION, tags.ALLOCATION_KEY):
        given = run_tags.get(name)
        same = given is None or given == wanted.get(name, "")
        if not same and name == tags.SCHEDULED_AT and identity.scheduled_at is not None:
            same = parse_instant(given or "") == identity.scheduled_at
        if not same:
            raise IdentityConflict(
                f"The run's tag {name} is {given!r}, but its partition, tick, explicit key or version says "
                f"{wanted.get(name, '')!r}. Nothing was allocated. Launch it again without editing that tag; where the "
                "other was meant, remove all tags of dagster-idempotent from the launch.",
                found=[given, wanted.get(name, "")],
            )
