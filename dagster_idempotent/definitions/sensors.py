"""Sensors: launch what is due, deliver what waits, and keep a check red while somebody is needed (R30-R32, R38)."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_idempotent.definitions import tags
from dagster_idempotent.definitions.asset_channel import reporting_to
from dagster_idempotent.definitions.asset_checks import evaluations, look_at
from dagster_idempotent.definitions.declared import Declared, Declaring, declared_by
from dagster_idempotent.definitions.resources import GuardedProviderResource, LedgerResource
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.engine.sweeping import DueTask, due_tasks, reconcile_doubtful, sweep_pipeline

LAUNCHES_PER_TICK = 20
DELIVERIES_PER_TICK = 50


def task_sensor(definition: Declaring, *, minimum_interval_seconds: int = 60) -> dg.SensorDefinition:
    """Make the sensor that launches the tasks of one job or asset whose automatic attempt is due.

    It looks up what is in doubt, decides what is out of attempts and sets resolved holds free first. It spends money,
    so it starts STOPPED. Its cursor only says where the next look-up goes on: a lost one costs nothing.
    """
    declared = declared_by(definition)
    name = declared.pipeline.name

    @dg.sensor(
        name=f"{name}_task_sensor",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={"ledger", *declared.providers},
        description=f"Launch the tasks of {name} that are due: failed after their backoff, abandoned, set free.",
        **_target(definition),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        database = _ledger(context).database()
        providers = [
            each.provider()
            for key in declared.providers
            if isinstance(each := _resource(context, key), GuardedProviderResource)
        ]
        cursor = reconcile_doubtful(database, name, providers, after=context.cursor or "")
        swept = sweep_pipeline(database, name, is_finished=lambda owner: _is_finished(context, owner))
        found = due_tasks(
            database, name, is_finished=lambda owner: _is_finished(context, owner), limit=LAUNCHES_PER_TICK
        )
        requests = [_request(definition, declared, task) for task in found.tasks]
        quiet = f"Nothing is due. {len(swept.dead)} task(s) died, {len(swept.released)} hold(s) ended."
        return dg.SensorResult(run_requests=requests, skip_reason=None if requests else quiet, cursor=cursor)

    return sense


def outbox_sensor(
    *definitions: Declaring, minimum_interval_seconds: int = 30, name: str = "idempotency_outbox"
) -> dg.SensorDefinition:
    """Make the sensor that delivers what waits in the outboxes of the given jobs and assets; it makes no runs."""
    declared = [declared_by(definition) for definition in definitions]

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"ledger"},
        description="Deliver the outbox messages that are due: after an approval, a backoff, a relay that died.",
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ledger = _ledger(context)
        delivered = 0
        for each in declared:
            if each.channels:
                tried = deliver_due(
                    ledger.database(),
                    each.pipeline.name,
                    reporting_to(each.channels, context.instance),
                    limit=DELIVERIES_PER_TICK,
                    heartbeat=ledger.heartbeat(),
                )
                delivered += sum(delivery.delivered_now for delivery in tried)
        return dg.SkipReason(f"{delivered} message(s) delivered; the outbox needs no run.")

    return sense


def attention_sensor(*, minimum_interval_seconds: int = 60) -> dg.SensorDefinition:
    """Make the sensor that keeps the checks of the asset `idempotency_ledger` as red as the ledger is; no runs.

    It reports again when something has changed; alerts on failed asset checks are the hook for your own.
    """

    @dg.sensor(
        name="idempotency_attention",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"ledger"},
        description="Report what waits for a person as asset checks, until it is resolved.",
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        state = look_at(_ledger(context).database())
        if context.cursor == state.digest:
            return dg.SensorResult(skip_reason="Nothing has changed.", cursor=state.digest)
        return dg.SensorResult(
            asset_events=evaluations(state), skip_reason="Reported as asset checks.", cursor=state.digest
        )

    return sense


def _target(definition: Declaring) -> dict[str, Any]:
    if isinstance(definition, dg.JobDefinition):
        return {"job": definition}
    return {"asset_selection": dg.AssetSelection.assets(*definition.keys)}


def _request(definition: Declaring, declared: Declared, task: DueTask) -> dg.RunRequest:
    """Launch a task as its first launch did; the token makes each attempt one run, whoever asks for it."""
    launch: Mapping[str, Any] = task.launch or {}
    run_tags = {**launch.get("tags", {}), tags.AUTOMATIC: "true", tags.TASK_ID: task.task_id}
    return dg.RunRequest(
        run_key=f"{declared.pipeline.name}/{task.task_id}:{task.token}",
        partition_key=launch.get("partition_key"),
        run_config={"ops": launch["ops"]} if launch.get("ops") else {},
        tags=run_tags,
        asset_selection=None if isinstance(definition, dg.JobDefinition) else list(definition.keys),
    )


def _is_finished(context: dg.SensorEvaluationContext, owner: str) -> bool:
    run = context.instance.get_run_by_id(owner)
    return run is not None and run.is_finished


def _ledger(context: dg.SensorEvaluationContext) -> LedgerResource:
    return _resource(context, "ledger")


def _resource(context: dg.SensorEvaluationContext, key: str) -> Any:  # noqa: ANN401 - as the user's Definitions have it
    return getattr(context.resources, key)
