"""From a Dagster run to an identity: its partition, else its tick, else an explicit key; never anything else (R4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent.definitions import tags
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import straddles
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.errors import ConfigurationError, IdentityConflict, InvalidIdentity, MissingIdentity

AnyPartitions = dg.PartitionsDefinition[str]


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
    if context.has_partition_key:
        if explicit_key:
            raise IdentityConflict(
                f"This run has the partition {context.partition_key!r} and the explicit key {explicit_key!r}; one of "
                "them names the task, not both. Leave out `explicit_key` for partitioned launches.",
                found=[context.partition_key, explicit_key],
            )
        known = partitions_def or context.job_def.partitions_def
        occasion = occasion_of(known, context.partition_key)
        _check_straddling(known, context.partition_key, pipeline, allow_straddling=allow_straddling)
        _cross_check(occasion, run_tags, pipeline)
        return identity_at(pipeline, occasion)
    if tags.RANGE_START in run_tags:
        raise MissingIdentity(
            "This run covers a range of partitions at once; each partition is a task of its own. Start the backfill "
            "with one run per partition (the default backfill policy of this asset)."
        )
    if explicit_key:
        subject = run_tags.get(tags.SUBJECT, "")
        return Identity(pipeline=pipeline.name, subject=subject, explicit_key=explicit_key, version=pipeline.version)
    tick = run_tags.get(tags.SCHEDULED_AT) or run_tags.get(tags.TICK_TIME)
    if tick is not None:
        occasion = Occasion(scheduled_at=parse_instant(tick), subject=run_tags.get(tags.SUBJECT, ""))
        return identity_at(pipeline, occasion)
    raise MissingIdentity(
        f"Nothing in this run says which task of pipeline {pipeline.name!r} it is: it has no partition, no schedule "
        "tick and no explicit key, and a run id or the clock would make every launch a new, paid task. Launch it on a "
        "partition; or let its schedule launch it; or give the allocate op an `explicit_key` in the run config, for "
        'example ops: {allocate: {config: {explicit_key: "invoice-2026-08"}}}.'
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
            return Occasion(scheduled_at=partitions_def.time_window_for_partition_key(partition_key).start)
        case dg.MultiPartitionsDefinition() if partitions_def.has_time_window_dimension:
            time = partitions_def.time_window_dimension
            key = partitions_def.get_partition_key_from_str(partition_key)
            parts = dict(key.keys_by_dimension)
            window = partitions_def.time_window_partitions_def.time_window_for_partition_key(parts.pop(time.name))
            (subject,) = parts.values()
            return Occasion(scheduled_at=window.start, subject=subject)
        case _:
            raise MissingIdentity(
                f"Partition {partition_key!r} carries no time window, so it does not say which period its task belongs "
                "to. Use time-window partitions, or time by subject: by_subject(iso_week_partitions(...), tenants)."
            )


def tags_of(pipeline: Pipeline[BaseModel], partitions_def: AnyPartitions, partition_key: str) -> Mapping[str, str]:
    """Return the tags that a partitioned run carries: a cross-check in the op, and a search term in the UI."""
    identity = identity_at(pipeline, occasion_of(partitions_def, partition_key))
    return identity_tags(identity)


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
    """Refuse, when the code is loaded, partitions whose windows lie in two periods of the pipeline."""
    time = partitions_def
    if isinstance(time, dg.MultiPartitionsDefinition) and time.has_time_window_dimension:
        time = time.time_window_partitions_def
    if isinstance(time, dg.TimeWindowPartitionsDefinition) and not allow_straddling:
        key = time.get_partition_key_for_timestamp(time.start.timestamp())
        _check_straddling(time, key, pipeline, allow_straddling=False)


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


def _cross_check(occasion: Occasion, run_tags: Mapping[str, str], pipeline: Pipeline[BaseModel]) -> None:
    """Refuse a run whose tags, which anybody may edit in the Launchpad, contradict its partition."""
    wanted = identity_tags(identity_at(pipeline, occasion))
    for name in (tags.PIPELINE, tags.SCHEDULED_AT, tags.SUBJECT, tags.VERSION, tags.ALLOCATION_KEY):
        given = run_tags.get(name)
        same = given is None or given == wanted.get(name, "")
        if not same and name == tags.SCHEDULED_AT:
            same = parse_instant(given or "") == occasion.scheduled_at
        if not same:
            raise IdentityConflict(
                f"The run's tag {name} is {given!r}, but its partition says {wanted.get(name, '')!r}. Nothing was "
                "allocated. Launch it again without editing that tag.",
                found=[given, wanted.get(name, "")],
            )
