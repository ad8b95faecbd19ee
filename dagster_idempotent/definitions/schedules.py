"""Schedules: the key is derived from the tick, with no I/O; an exception here would lose the tick."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from datetime import UTC
from typing import Any

import dagster as dg

from dagster_idempotent.definitions import tags
from dagster_idempotent.definitions.keys import AnyPartitions, dimensions_of
from dagster_idempotent.errors import ConfigurationError

# What Dagster refuses in static keys of multi-partitions, and cannot refuse in dynamic ones.
UNUSABLE = ("|", "[", "]", ",")


def idempotent_schedule(
    job: dg.JobDefinition,
    *,
    name: str | None = None,
    cron_schedule: str | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
    **when: Any,  # noqa: ANN401 - minute_of_hour, hour_of_day, day_of_week, day_of_month
) -> dg.ScheduleDefinition:
    """Make the schedule of an idempotent job.

    A partitioned job takes its cron from the partitions, moved by `minute_of_hour`, `hour_of_day`, `day_of_week`,
    `day_of_month`; an unpartitioned one needs `cron_schedule`, and its tick's time, in UTC, is the key.
    """
    label = name or f"{job.name}_schedule"
    if job.partitions_def is not None:
        if cron_schedule is not None:
            raise ConfigurationError(
                f"Job {job.name!r} is partitioned by time, so its partitions give the cron; say hour_of_day, "
                "minute_of_hour, day_of_week or day_of_month instead of cron_schedule.",
                field="cron_schedule",
            )
        made = dg.build_schedule_from_partitioned_job(job, name=label, default_status=default_status, **when)
        if not isinstance(made, dg.ScheduleDefinition):
            raise ConfigurationError(f"{job!r} is not a job with partitions of its own.", field="job")
        return _for_dynamic_subjects(job, job.partitions_def, made) or made
    if cron_schedule is None or when:
        raise ConfigurationError(
            f"Job {job.name!r} has no partitions: give cron_schedule, such as '0 9 * * 1', and nothing else of when.",
            field="cron_schedule",
        )

    @dg.schedule(
        job=job,
        name=label,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        instant = context.scheduled_execution_time.astimezone(UTC).isoformat()
        # Visible, unlike Dagster's own tag, so that a re-execution of selected steps from the UI keeps it.
        return dg.RunRequest(run_key=instant, tags={tags.SCHEDULED_AT: instant})

    return tick


def _for_dynamic_subjects(
    job: dg.JobDefinition, partitions_def: AnyPartitions, made: dg.ScheduleDefinition
) -> dg.ScheduleDefinition | None:
    """Make the schedule again where subjects come and go: one that cannot be a partition must not lose the tick."""
    if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
        return None
    found = dimensions_of(partitions_def)
    if not isinstance(found.subjects, dg.DynamicPartitionsDefinition):
        return None

    @dg.schedule(
        job=job,
        name=made.name,
        cron_schedule=made.cron_schedule,
        execution_timezone=made.execution_timezone,
        default_status=made.default_status,
    )
    def tick(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        with dg.partition_loading_context(context.scheduled_execution_time, context.instance):
            window = found.time.get_last_partition_key()
            if window is None:
                return dg.SkipReason("There is no partition yet.")
            requests: list[dg.RunRequest] = []
            for subject in found.subjects.get_partition_keys():
                if any(character in subject for character in UNUSABLE):
                    context.log.warning(
                        "Subject %r gets no run: Dagster cannot join it with a time in a partition key. Rename it "
                        "without %s.",
                        subject,
                        " ".join(UNUSABLE),
                    )
                    continue
                key = dg.MultiPartitionKey({found.subject_name: subject, found.time_name: window})
                requests.append(dg.RunRequest(run_key=key, partition_key=key))
            return requests

    return tick
