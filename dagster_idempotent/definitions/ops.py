"""Op factories: allocate, collect, transform, persist, deliver (R36)."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dagster_idempotent.definitions import metadata, tags
from dagster_idempotent.definitions.asset_channel import reporting_to
from dagster_idempotent.definitions.explain_job import link_to
from dagster_idempotent.definitions.keys import AnyPartitions, identity_of, identity_tags, partition_of, time_source
from dagster_idempotent.definitions.operator_links import decisions_for
from dagster_idempotent.definitions.resources import AllocatorResource, GuardedProviderResource, LedgerResource
from dagster_idempotent.definitions.signatures import Body, UserFunction, make_op, read_function
from dagster_idempotent.definitions.step import replaying, restore_retries, stop, working_on
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.outbox import Message, MessageState
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import AnyPipeline
from dagster_idempotent.domain.task import Task, TaskStatus
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.relay import Channel, deliver_task
from dagster_idempotent.engine.replays import count_task_replayed
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import IdempotentError
from dagster_idempotent.providers.protocol import AnyProvider

Channels = Mapping[str, Channel]
ANYTHING = dg.Out()
LEDGER = {"ledger": LedgerResource}
# What says which task an unpartitioned launch is; a launch that repeats it needs them.
_LAUNCH_TAGS = (tags.SCHEDULED_AT, tags.SUBJECT, tags.VERSION)


class AllocateConfig(dg.Config):
    """What a launch without a partition and without a tick has to say."""

    explicit_key: str = Field(
        default="",
        description="Names the task of a launch without partition and schedule tick; the same key, the same task.",
    )


def allocate_op(
    pipeline: AnyPipeline,
    *,
    name: str = "allocate",
    partitions_def: AnyPartitions | None = None,
    allow_straddling: bool = False,
) -> dg.OpDefinition:
    """Make the op that finds or creates the task of a run; the only one that ever creates a task (R10)."""

    def allocate(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> str:
        restore_retries(context)
        config: AllocateConfig = given["config"]
        allocator: AllocatorResource = given["allocator"]
        try:
            identity = identity_of(
                context,
                pipeline,
                partitions_def=partitions_def,
                explicit_key=config.explicit_key,
                allow_straddling=allow_straddling,
            )
            task = allocator.allocate(pipeline, identity, launch=_launch(context, identity))
        except IdempotentError as error:
            stop(context, error)
        found = {**identity_tags(identity), tags.TASK_ID: task.task_id, tags.PERIOD: task.period_id}
        context.instance.add_run_tags(context.run_id, found)
        context.add_output_metadata(metadata.of_task(task))
        return task.task_id

    return make_op(
        allocate,
        name=name,
        inputs={},
        resources={"allocator": AllocatorResource},
        config=AllocateConfig,
        out=dg.Out(str),
        description=f"Find or create the task of this run in pipeline {pipeline.name}.",
    )


def collect_op(
    pipeline: AnyPipeline, function: Body, *, name: str = "collect", providers: Mapping[str, Any] | None = None
) -> dg.OpDefinition:
    """Make the op that stores the raw artifact, once, before any paid call (R21)."""
    user = read_function(function, role="collect", offered=("task",))
    resources = {**LEDGER, **(providers or {}), **user.resources}

    def collect(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> str:
        ledger: LedgerResource = given["ledger"]
        with working_on(context, pipeline, given["task"], ledger, _providers(given)) as work:
            if isinstance(work, Task):
                raw = stages.get_raw(ledger.database(), pipeline.name, work.task_id)
                task, now = work, False
            else:
                task = work.task
                raw, now = stages.collect(work, lambda: user.call(context, {"task": task}, given))
            context.add_output_metadata(
                metadata.of_task(
                    task,
                    {
                        "collected": "now" if now else "earlier",
                        "artifact": link_to("artifact", pipeline.name, task.task_id, context.run, ledger.webserver_url),
                        "sha256": raw.sha256,
                        "bytes": raw.size,
                        **({} if raw.uri is None else {"artifact_uri": dg.PathMetadataValue(raw.uri)}),
                    },
                )
            )
            return task.task_id

    return make_op(
        collect,
        name=name,
        inputs={"task": str},
        resources=resources,
        config=user.config,
        out=dg.Out(str),
        description=function.__doc__ or "Collect the raw artifact; a stored one is never collected again.",
    )


def transform_op(
    pipeline: AnyPipeline,
    function: Body,
    *,
    name: str = "transform",
    providers: Mapping[str, Any] | None = None,
    inputs: Mapping[str, type] | None = None,
    returns_candidate: bool = False,
) -> dg.OpDefinition:
    """Make the op in which paid calls are made; it stores no final state (R22).

    `inputs` names parameters that upstream ops fill, such as one element of a dynamic map, with their types. On a
    completed task the function runs on the stored answers and pays nothing. With `returns_candidate`, where its result
    goes to persist as it is, the accepted output is returned instead.
    """
    upstream = inputs or {}
    user = read_function(function, role="transform", offered=("task", "raw", *upstream))
    resources = {**LEDGER, **(providers or {}), **user.resources}

    def transform(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the candidate
        ledger: LedgerResource = given["ledger"]
        with working_on(context, pipeline, given["task"], ledger, _providers(given)) as work:
            if isinstance(work, Work):
                return _transform(context, user, work, given, upstream)
            if returns_candidate:
                count_task_replayed(ledger.database(), pipeline.name, work.task_id)
                context.add_output_metadata(
                    metadata.of_task(work, {"calls_paid_now": 0, "replayed": "the accepted output"})
                )
                return stages.stored_output(pipeline, work)
        with replaying(context, pipeline, work, ledger) as replay:
            return _transform(context, user, replay, given, upstream)

    return make_op(
        transform,
        name=name,
        inputs={"task": str, **upstream},
        resources=resources,
        config=user.config,
        out=ANYTHING,
        description=function.__doc__ or "Make the paid calls and return a candidate.",
    )


def _transform(
    context: dg.OpExecutionContext,
    user: UserFunction,
    work: Work,
    given: Mapping[str, Any],
    upstream: Mapping[str, type],
) -> Any:  # noqa: ANN401 - the candidate
    ours: dict[str, object] = {"task": work.task, **{name: given[name] for name in upstream}}
    if "raw" in user.given:
        ours["raw"] = stages.get_raw(work.database, work.lease.pipeline, work.lease.task_id)
    candidate = user.call(context, ours, given)
    context.add_output_metadata(metadata.of_task(work.task, metadata.of_calls(work.results)))
    return candidate


def persist_op(
    pipeline: AnyPipeline,
    *,
    channels: Channels | None = None,
    name: str = "persist",
    providers: Mapping[str, Any] | None = None,
) -> dg.OpDefinition:
    """Make the op that validates the candidate and commits it with its outbox rows, once (R23)."""
    deduplicates = {channel: each.deduplicates for channel, each in (channels or {}).items()}

    def persist(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> BaseModel:
        ledger: LedgerResource = given["ledger"]
        with working_on(context, pipeline, given["task"], ledger, _providers(given)) as work:
            if isinstance(work, Task):
                task, output, accepted = work, stages.stored_output(pipeline, work), "earlier"
            else:
                done = stages.persist(work, given["candidate"], dagster_run_id=context.run_id, channels=deduplicates)
                task, output, accepted = done.task, done.output, "now" if done.accepted_now else "earlier"
            context.add_output_metadata(
                metadata.of_task(
                    task,
                    {
                        "accepted": accepted,
                        "output": link_to("output", pipeline.name, task.task_id, context.run, ledger.webserver_url),
                        "accepted_by_run": task.completed_by or "",
                        "output_sha256": task.output_sha256 or "",
                    },
                )
            )
            return output

    return make_op(
        persist,
        name=name,
        inputs={"task": str, "candidate": object},
        resources={**LEDGER, **(providers or {})},
        out=ANYTHING,
        description="Validate the candidate and commit it, once, with the messages that announce it.",
    )


def deliver_op(pipeline: AnyPipeline, channels: Channels, *, name: str = "deliver") -> dg.OpDefinition:
    """Make the op that delivers a completed task's outbox messages; it claims nothing and creates nothing."""

    def deliver(context: dg.OpExecutionContext, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the accepted output
        restore_retries(context)
        ledger: LedgerResource = given["ledger"]
        try:
            task = get_task(ledger.database(), pipeline.name, TaskId(given["task"]))
            deliveries = deliver_task(
                ledger.database(), pipeline.name, task.task_id, reporting_to(channels, context.instance)
            )
        except IdempotentError as error:
            stop(context, error)
        done = metadata.of_deliveries(deliveries)
        messages = [delivery.message for delivery in deliveries]
        if any(message.state is MessageState.WAITING for message in messages):
            done |= decisions_for(ledger.database(), pipeline.name, task.task_id, context.run, ledger.webserver_url)
        context.add_output_metadata(metadata.of_task(task, done))
        _check_delivered(context, task, messages, channels)
        return given["result"]

    return make_op(
        deliver,
        name=name,
        inputs={"task": str, "result": object},
        resources=LEDGER,
        out=ANYTHING,
        description="Deliver the messages of the outbox: at most once where a channel cannot deduplicate.",
    )


def _check_delivered(context: dg.OpExecutionContext, task: Task, messages: list[Message], channels: Channels) -> None:
    stuck = [
        f"{message.channel} ({message.state}: {message.error})"
        for message in messages
        if message.state in (MessageState.IN_DOUBT, MessageState.DEAD)
    ]
    undeclared = [
        message.channel
        for message in messages
        if message.state is MessageState.READY and message.channel not in channels
    ]
    if stuck or undeclared:
        gone = [f"{name} (this code has no channel of that name)" for name in undeclared]
        way_out = (
            " Declare the channel again, or give its message up: `dagster-idempotent outbox resolve`; the channels "
            "declared after it wait for that."
        )
        raise dg.Failure(
            f"Task {task.task_id} is completed, but not every channel has its message: {', '.join([*stuck, *gone])}. A "
            f"message in doubt is not delivered again by itself: it may have arrived.{way_out if undeclared else ''}",
            allow_retries=False,
        )
    if task.status is TaskStatus.COMPLETED and any(message.state is MessageState.WAITING for message in messages):
        context.log.info("Task %s waits for an approval before it is published.", task.task_id)


def provider_parameters(function: Body) -> Mapping[str, Any]:
    """Return the guarded providers that a transform function asks for, so that every op can look up with them."""
    user = read_function(function, role="transform", offered=("task", "raw"))
    return {
        name: kind
        for name, kind in user.resources.items()
        if isinstance(kind, type) and issubclass(kind, GuardedProviderResource)
    }


def _providers(given: Mapping[str, Any]) -> list[AnyProvider]:
    return [each.provider() for each in given.values() if isinstance(each, GuardedProviderResource)]


def _launch(context: dg.OpExecutionContext, identity: Identity) -> Mapping[str, object]:
    """Return what it takes to launch this run again; resource config may hold secrets and is left out."""
    source = time_source(context, identity)
    return {
        "job": context.job_name,
        # Chosen by hand, or by a backfill: their job has no partitions of its own.
        "assets": sorted(key.to_user_string() for key in context.run.asset_selection or ()),
        "partition_key": partition_of(context),
        "ops": context.run.run_config.get("ops", {}),
        "tags": {name: value for name, value in context.run.tags.items() if name in _LAUNCH_TAGS},
        **({} if source is None else {"time_from": source}),
    }
