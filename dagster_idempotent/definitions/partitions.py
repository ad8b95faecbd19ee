"""Partitions whose keys make good identities: ISO weeks, optionally for each of several subjects."""

from collections.abc import Sequence
from datetime import datetime

import dagster as dg

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
