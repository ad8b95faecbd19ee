"""Partitions whose keys make good identities: ISO weeks, optionally for each of several subjects."""

from collections.abc import Sequence
from datetime import datetime

import dagster as dg

from dagster_idempotent.definitions.keys import AnyPartitions, dimensions_of
from dagster_idempotent.errors import ConfigurationError

SUBJECT_DIMENSION = "subject"
TIME_DIMENSION = "time"


def iso_week_partitions(
    start_date: str | datetime, *, timezone: str = "UTC", end_offset: int = 0
) -> dg.WeeklyPartitionsDefinition:
    """Return weekly partitions that start on Monday, as ISO weeks do; Dagster's own default is Sunday.

    The tick after a week runs that week: Monday's tick in W33 runs the partition of W32.
    """
    return dg.WeeklyPartitionsDefinition(start_date=start_date, day_offset=1, timezone=timezone, end_offset=end_offset)


def by_subject(
    time: dg.TimeWindowPartitionsDefinition, subjects: Sequence[str] | dg.PartitionsDefinition[str]
) -> dg.MultiPartitionsDefinition:
    """Return partitions for each subject (tenant, account) and time window; keys read `acme|2026-08-03`."""
    # Dagster's dynamic partitions are a named tuple, so a sequence of their own kind.
    if not isinstance(subjects, dg.PartitionsDefinition):
        if isinstance(subjects, str) or not subjects:
            raise ConfigurationError(
                f"subjects is {subjects!r}, expected a list of names or a partitions definition.", field="subjects"
            )
        subjects = dg.StaticPartitionsDefinition(list(subjects))
    return dg.MultiPartitionsDefinition({SUBJECT_DIMENSION: subjects, TIME_DIMENSION: time})


def partition_at(partitions_def: AnyPartitions, start: datetime, subject: str) -> str | None:
    """Return the partition of a subject whose time window starts at an instant; None where there is none."""
    match partitions_def:
        case dg.TimeWindowPartitionsDefinition() if not subject:
            return _key_at(partitions_def, start)
        case dg.MultiPartitionsDefinition() if subject:
            found = dimensions_of(partitions_def)
            time = _key_at(found.time, start)
            return time and dg.MultiPartitionKey({found.time_name: time, found.subject_name: subject})
        case _:
            return None


def _key_at(time: dg.TimeWindowPartitionsDefinition, start: datetime) -> str | None:
    key = time.get_partition_key_for_timestamp(start.timestamp())
    return key if time.time_window_for_partition_key(key).start == start else None
