"""From a task that is due to the run that works on it; each launch is checked by itself, before Dagster sees it (R31).

One request that Dagster cannot take, such as for a partition that is gone, would fail the tick with all the others.
"""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import dagster as dg

from dagster_idempotent.definitions import tags
from dagster_idempotent.definitions.declared import Declared, Declaring
from dagster_idempotent.definitions.keys import AnyPartitions
from dagster_idempotent.definitions.partitions import partition_at
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.engine.sweeping import DueTask

# A run that nobody has heard of for so long went down with its host; one in the queue is only waiting.
LOST_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Why a task is not launched now; `stuck` where only a person can change that."""

    reason: str
    stuck: bool = True


def is_home(definition: Declaring, launch: Mapping[str, Any]) -> bool:
    """Whether a task was launched first as this definition."""
    assets = launch.get("assets") or ()
    if isinstance(definition, dg.JobDefinition):
        return not assets and launch.get("job") == definition.name
    return bool({key.to_user_string() for key in definition.keys} & set(assets))


def launch_of(
    instance: dg.DagsterInstance, definition: Declaring, declared: Declared, task: DueTask
) -> dg.RunRequest | Left:
    """Return the run that works on a task as its first launch did, or why there is none now."""
    pipeline = declared.pipeline
    if task.version != pipeline.version:
        return Left(
            reason=f"it is of version {task.version!r}, and a launch now would be another task, of {pipeline.version!r}"
        )
    if task.owner is not None:
        last = instance.get_run_by_id(task.owner)
        if last is not None and last.status is dg.DagsterRunStatus.CANCELED:
            return Left(reason=f"run {last.run_id} was terminated by a person; re-execute it to go on")
    partition = _partition_of(definition, task)
    if isinstance(partition, Left):
        return partition
    if partition is not None and not _exists(instance, definition.partitions_def, partition):
        return Left(reason=f"{definition_name(definition)} has no partition {partition!r} any more")
    config = _config_of(definition, task)
    if isinstance(config, Left):
        return config
    attempt = f"{pipeline.name}/{task.task_id}:{task.token}"
    number = _number_of(instance, declared, attempt)
    if isinstance(number, Left):
        return number
    launch: Mapping[str, Any] = task.launch or _identity_tags(task)
    return dg.RunRequest(
        run_key=attempt if number == 0 else f"{attempt}.{number}",
        partition_key=partition,
        run_config=config,
        tags={
            **launch.get("tags", {}),
            tags.AUTOMATIC: "true",
            tags.ATTEMPT: attempt,
            tags.TASK_ID: task.task_id,
        },
        asset_selection=None if isinstance(definition, dg.JobDefinition) else list(definition.keys),
    )


def definition_name(definition: Declaring) -> str:
    """Name a job or an asset."""
    if isinstance(definition, dg.JobDefinition):
        return definition.name
    return "_".join(sorted(key.to_python_identifier() for key in definition.keys))


def _partition_of(definition: Declaring, task: DueTask) -> str | Left | None:
    """Return the partition of the first launch; a task that was not launched by Dagster has that of its time."""
    partitions: AnyPartitions | None = definition.partitions_def
    if task.launch is not None:
        known: str | None = task.launch.get("partition_key")
        if known is not None and partitions is None:
            return Left(reason=f"it is of partition {known!r}, and {definition_name(definition)} has none")
        return known
    if task.allocation_key is None:
        return Left(reason="it was imported without an identity: no launch leads to it")
    if partitions is None or task.scheduled_at is None:
        return None
    found = partition_at(partitions, task.scheduled_at, task.subject)
    return found or Left(reason=f"{definition_name(definition)} has no partition that starts at {task.scheduled_at}")


def _exists(instance: dg.DagsterInstance, partitions: AnyPartitions | None, key: str) -> bool:
    if partitions is None:
        return False
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return partitions.has_partition_key(key)


def _identity_tags(task: DueTask) -> Mapping[str, Any]:
    """Return what an unpartitioned launch carries of a task that Dagster did not launch first."""
    found = {tags.SUBJECT: task.subject} if task.subject else {}
    if task.scheduled_at is not None:
        found[tags.SCHEDULED_AT] = task.scheduled_at.isoformat()
    return {"tags": found}


def _config_of(definition: Declaring, task: DueTask) -> Mapping[str, Any] | Left:
    """Return the config of the first launch, as this definition takes it: an asset's ops lie one level deeper."""
    if task.launch is None:
        key = "" if task.allocation_key is None else Identity.from_allocation_key(task.allocation_key).explicit_key
        ops: Mapping[str, Any] = {"allocate": {"config": {"explicit_key": key}}} if key else {}
    else:
        ops = task.launch.get("ops") or {}
        for asset in task.launch.get("assets") or ():
            ops = cast("Mapping[str, Any]", ops.get(asset, {}).get("ops", {}))
    if not ops:
        return {}
    if isinstance(definition, dg.JobDefinition):
        job, config = definition, {"ops": dict(ops)}
    else:
        node = definition.node_def
        job = dg.GraphDefinition(name=f"{node.name}_alone", node_defs=[node]).to_job()
        config = {"ops": {node.name: {"ops": dict(ops)}}}
    try:
        dg.validate_run_config(job, config)
    except dg.DagsterInvalidConfigError as error:
        return Left(reason=f"{definition_name(definition)} does not take the config of its first launch: {error}")
    return config


def _number_of(instance: dg.DagsterInstance, declared: Declared, attempt: str) -> int | Left:
    """Count the launches of one attempt that ended before they had claimed the task; they cost nothing but time.

    Dagster starts one run for each key of a sensor, for ever: a launch that failed in an outage needs another key.
    """
    records = instance.get_run_records(dg.RunsFilter(tags={tags.ATTEMPT: attempt}))
    now = datetime.now(UTC)
    for record in records:
        run = record.dagster_run
        heard_of = now - record.update_timestamp.replace(tzinfo=UTC) < LOST_AFTER
        if not run.is_finished and (heard_of or run.status is dg.DagsterRunStatus.QUEUED):
            return Left(reason=f"run {run.run_id} is on its way", stuck=False)
    if not records:
        return 0
    latest = max(record.update_timestamp.replace(tzinfo=UTC) for record in records)
    due = latest + declared.pipeline.backoff.longest(len(records))
    if now < due:
        reason = f"{len(records)} launch(es) ended before they began with it; the next is due at {due.isoformat()}"
        return Left(reason=reason, stuck=False)
    return len(records)
