"""Everything that operators need in the UI, for the given jobs and assets."""

import dagster as dg

from dagster_idempotent.definitions.alerts import Alert, alert_sensor
from dagster_idempotent.definitions.asset_checks import ledger_asset
from dagster_idempotent.definitions.declared import Declaring
from dagster_idempotent.definitions.explain_job import explain_job
from dagster_idempotent.definitions.operator_jobs import operator_jobs
from dagster_idempotent.definitions.sensors import attention_sensor, outbox_sensor, task_sensor


def operator_definitions(*definitions: Declaring, alert: Alert | None = None) -> dg.Definitions:
    """Make the sensors, the ledger asset with its checks, and the operator jobs; merge them into your own Definitions.

    The task sensors spend money and start STOPPED; outbox and attention start RUNNING. All need the resource `ledger`.
    `alert` is called with what newly waits for a person: a sequence of `Attention`, at most one call a tick.
    """
    return dg.Definitions(
        assets=[ledger_asset()],
        jobs=[explain_job(), *operator_jobs()],
        sensors=[
            *(task_sensor(definition) for definition in definitions),
            outbox_sensor(*definitions),
            attention_sensor(),
            *([alert_sensor(alert)] if alert is not None else []),
        ],
    )
