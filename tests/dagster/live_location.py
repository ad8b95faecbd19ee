"""A schedule that ticks every minute; the live exploration edits a copy of this file while it runs."""

import code_location
import dagster as dg
from code_location import collect, paid, steps_as_processes, summarise

from dagster_idempotent import idempotent_job, idempotent_schedule, operator_definitions

minutely_job = idempotent_job(paid("minutely"), collect=collect, transform=summarise, executor_def=steps_as_processes)
every_minute = idempotent_schedule(
    minutely_job,
    name="every_minute",
    cron_schedule="* * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
defs = dg.Definitions.merge(
    dg.Definitions(jobs=[minutely_job], schedules=[every_minute], resources=code_location.defs.resources),
    operator_definitions(minutely_job),
)
