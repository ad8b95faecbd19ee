"""Sensors: launch what is due, deliver what waits, and keep a check red while somebody is needed (R30-R32, R38)."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import dagster as dg

from dagster_idempotent.definitions.asset_channel import reporting_to
from dagster_idempotent.definitions.asset_checks import evaluations, look_at
from dagster_idempotent.definitions.declared import Declaring, declared_by
from dagster_idempotent.definitions.launching import Left, launch_of
from dagster_idempotent.definitions.resources import GuardedProviderResource, LedgerResource
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.engine.sweeping import due_tasks, reconcile_doubtful, sweep_pipeline

LAUNCHES_PER_TICK = 20
# What a tick looks at: tasks that cannot be launched now do not keep the others from their turn.
PAGE = 100
PAGES_PER_TICK = 5
Takes = Callable[[Mapping[str, Any]], bool]
DELIVERIES_PER_TICK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the next tick goes on: among the calls in doubt, and among the tasks that are due."""

    doubtful: str = ""
    due: str = ""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Read a cursor; anything else, which a person may have typed, starts again at the beginning."""
        try:
            found: object = json.loads(text or "{}")
        except ValueError:
            found = None
        given: Mapping[str, object] = cast("dict[str, object]", found) if isinstance(found, dict) else {}
        return cls(doubtful=str(given.get("doubtful") or ""), due=str(given.get("due") or ""))

    def write(self) -> str:
        """Return the cursor as a text."""
        return json.dumps(asdict(self))


def task_sensor(
    definition: Declaring,
    *,
    name: str | None = None,
    takes: Takes = lambda _: True,
    minimum_interval_seconds: int = 60,
) -> dg.SensorDefinition:
    """Make the sensor that launches the tasks of one job or asset whose automatic attempt is due.

    It looks up what is in doubt, decides what is out of attempts and sets resolved holds free first. It spends money,
    so it starts STOPPED. Its cursor only says where the next look goes on: a lost one costs nothing. A run that a
    person terminated is not launched again. `takes` says of the launch data of a task (the job, or the assets, that it
    was launched as first) whether the task is this sensor's.
    """
    declared = declared_by(definition)
    pipeline = declared.pipeline.name

    @dg.sensor(
        name=name or f"{pipeline}_task_sensor",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        required_resource_keys={"ledger", *declared.providers},
        description=f"Launch the tasks of {pipeline} that are due: failed after their backoff, abandoned, set free.",
        **_target(definition),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        database, cursor = _ledger(context).database(), Cursor.read(context.cursor)
        providers = [
            each.provider()
            for key in declared.providers
            if isinstance(each := _resource(context, key), GuardedProviderResource)
        ]
        doubtful = reconcile_doubtful(database, pipeline, providers, after=cursor.doubtful)
        swept = sweep_pipeline(database, pipeline, is_finished=lambda owner: _is_finished(context, owner))
        requests, stuck, due = _launches(context, definition, takes, after=cursor.due)
        quiet = f"Nothing is due. {len(swept.dead)} task(s) died, {len(swept.released)} hold(s) ended."
        if stuck:
            quiet += f" {stuck} task(s) cannot be launched from here: see this tick's log."
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else quiet,
            cursor=Cursor(doubtful=doubtful, due=due).write(),
        )

    return sense


def _launches(
    context: dg.SensorEvaluationContext, definition: Declaring, takes: Takes, *, after: str
) -> tuple[list[dg.RunRequest], int, str]:
    """Return what to launch, how many tasks only a person can bring on, and where the next tick goes on."""
    declared, database = declared_by(definition), _ledger(context).database()
    requests: list[dg.RunRequest] = []
    stuck = 0
    for _ in range(PAGES_PER_TICK):
        batch = due_tasks(
            database,
            declared.pipeline.name,
            is_finished=lambda owner: _is_finished(context, owner),
            after=after,
            limit=PAGE,
        )
        for task in batch.tasks:
            if not takes(task.launch or {}):
                continue
            found = launch_of(context.instance, definition, declared, task)
            if isinstance(found, Left):
                stuck += found.stuck
                said = context.log.warning if found.stuck else context.log.debug
                said("Task %s/%s is not launched: %s.", declared.pipeline.name, task.task_id, found.reason)
                continue
            requests.append(found)
            if len(requests) == LAUNCHES_PER_TICK:
                return requests, stuck, task.task_id
        after = batch.after
        if not after:
            break
    return requests, stuck, after


def outbox_sensor(*definitions: Declaring, minimum_interval_seconds: int = 30) -> dg.SensorDefinition:
    """Make the sensor that delivers what waits in the outboxes of the given jobs and assets; it makes no runs."""
    declared = [declared_by(definition) for definition in definitions]

    @dg.sensor(
        name="idempotency_outbox",
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


def _is_finished(context: dg.SensorEvaluationContext, owner: str) -> bool:
    run = context.instance.get_run_by_id(owner)
    return run is not None and run.is_finished


def _ledger(context: dg.SensorEvaluationContext) -> LedgerResource:
    return _resource(context, "ledger")


def _resource(context: dg.SensorEvaluationContext, key: str) -> Any:  # noqa: ANN401 - as the user's Definitions have it
    return getattr(context.resources, key)
