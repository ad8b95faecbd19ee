"""Everything that operators need in the UI, for the given jobs and assets."""

from collections.abc import Iterator, Sequence

import dagster as dg

from dagster_idempotent.definitions.alerts import Alert, alert_sensor
from dagster_idempotent.definitions.asset_checks import ledger_asset
from dagster_idempotent.definitions.declared import Declaring, declared_by
from dagster_idempotent.definitions.explain_job import explain_job
from dagster_idempotent.definitions.launching import definition_name, is_home
from dagster_idempotent.definitions.operator_jobs import operator_jobs
from dagster_idempotent.definitions.sensors import attention_sensor, outbox_sensor, task_sensor


def operator_definitions(*definitions: Declaring, alert: Alert | None = None) -> dg.Definitions:
    """Make the sensors, the ledger asset with its checks, and the operator jobs; merge them into your own Definitions.

    A job and an asset of one pipeline have a task sensor each: what was launched as the one is launched again as it.
    The task sensors spend money and start STOPPED; outbox and attention start RUNNING. All need the resource `ledger`.
    `alert` is called with what newly waits for a person: a sequence of `Attention`, at most one call a tick.
    """
    return dg.Definitions(
        assets=[ledger_asset()],
        jobs=[explain_job(), *operator_jobs()],
        sensors=[
            *_task_sensors(list({id(each): each for each in definitions}.values())),
            outbox_sensor(*definitions),
            attention_sensor(),
            *([alert_sensor(alert)] if alert is not None else []),
        ],
    )


def _task_sensors(definitions: Sequence[Declaring]) -> Iterator[dg.SensorDefinition]:
    """Make a sensor for each definition; of several of one pipeline, the first takes whatever is not another's."""
    firsts: dict[str, Declaring] = {}
    for definition in definitions:
        pipeline = declared_by(definition).pipeline.name
        if firsts.setdefault(pipeline, definition) is definition:
            others = [
                each for each in definitions if each is not definition and declared_by(each).pipeline.name == pipeline
            ]
            yield task_sensor(definition, takes=lambda launch, o=others: not any(is_home(each, launch) for each in o))
        else:
            yield task_sensor(
                definition,
                name=f"{pipeline}_{definition_name(definition)}_task_sensor",
                takes=lambda launch, own=definition: is_home(own, launch),
            )
