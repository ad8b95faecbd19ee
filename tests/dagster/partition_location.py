"""A job with a schedule for each kind of time partitions that Dagster has."""

import code_location
import dagster as dg
from code_location import collect, paid, summarise

from dagster_idempotent import idempotent_job, idempotent_schedule, iso_week_partitions

NEW_YORK, KOLKATA, LORD_HOWE = "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"
SINCE = "2026-01-01"
KINDS = {
    "hourly": (dg.HourlyPartitionsDefinition(f"{SINCE}-00:00"), {}),
    "half_past": (dg.HourlyPartitionsDefinition(f"{SINCE}-00:00", minute_offset=30), {"allow_straddling": True}),
    "new_york_hourly": (dg.HourlyPartitionsDefinition(f"{SINCE}-00:00", timezone=NEW_YORK), {"timezone": NEW_YORK}),
    "new_york_daily": (
        dg.DailyPartitionsDefinition(SINCE, timezone=NEW_YORK),
        {"timezone": NEW_YORK, "period": "day"},
    ),
    "kolkata_daily": (dg.DailyPartitionsDefinition(SINCE, timezone=KOLKATA), {"timezone": KOLKATA}),
    "from_five": (dg.DailyPartitionsDefinition(SINCE, hour_offset=5), {"allow_straddling": True, "period": "day"}),
    "this_week": (iso_week_partitions("2026-01-05", end_offset=1), {}),
    "lord_howe_monthly": (
        dg.MonthlyPartitionsDefinition(SINCE, timezone=LORD_HOWE),
        {"timezone": LORD_HOWE, "period": "month"},
    ),
    "by_cron": (
        dg.TimeWindowPartitionsDefinition(start=f"{SINCE}-00:00", cron_schedule="*/20 * * * *", fmt="%Y-%m-%d-%H:%M"),
        {},
    ),
}


def _job(name: str, partitions_def: dg.PartitionsDefinition, settings: dict[str, object]) -> dg.JobDefinition:
    straddling = bool(settings.pop("allow_straddling", False))
    return idempotent_job(
        paid(name, **settings),
        collect=collect,
        transform=summarise,
        partitions_def=partitions_def,
        allow_straddling=straddling,
    )


jobs = [_job(name, partitions_def, dict(settings)) for name, (partitions_def, settings) in KINDS.items()]
defs = dg.Definitions(
    jobs=jobs,
    schedules=[idempotent_schedule(job) for job in jobs],
    executor=dg.in_process_executor,
    resources=code_location.defs.resources,
)
