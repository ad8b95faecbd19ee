"""What the schema refuses of a pipeline, and how it numbers periods."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings, strategies as st
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from dagster_idempotent.domain.period import PeriodKind, period_id_for
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.errors import PipelineConflict
from dagster_idempotent.store.database import Database
from tests.integration.schema.conftest import WEEKLY, Digest, Sql, one, refuse


class TestPipelines:
    def test_period_and_zone_are_free_until_there_is_a_task(self, ledger: Database) -> None:
        allocator = Allocator(ledger)
        allocator.register(WEEKLY)
        allocator.register(Pipeline("weekly_digest", output=Digest, period="day", timezone="Europe/Rome"))

    @pytest.mark.usefixtures("task_id")
    @pytest.mark.parametrize("changed", [{"period": "day"}, {"timezone": "Europe/Rome"}])
    def test_period_and_zone_are_fixed_once_there_is_a_task(self, ledger: Database, changed: dict[str, Any]) -> None:
        with pytest.raises(PipelineConflict, match="iso_week in UTC"):
            Allocator(ledger).register(Pipeline("weekly_digest", output=Digest, **changed))

    @pytest.mark.usefixtures("task_id")
    def test_another_changed_setting_is_written_and_audited(self, ledger: Database, sql: Sql) -> None:
        Allocator(ledger, actor="deploy").register(Pipeline("weekly_digest", output=Digest, max_attempts=9))
        row = one(
            sql,
            "SELECT actor, before->>'max_attempts' AS was, after->>'max_attempts' AS is FROM dagster_idempotent.audit",
        )
        assert row == {"actor": "deploy", "was": "5", "is": "9"}

    @pytest.mark.usefixtures("task_id")
    def test_checks_refuse(self, sql: Sql) -> None:
        for change, constraint in (
            ("send_window = sender_lease", "send_window_shorter_than_sender_lease"),
            ("sender_lease = interval '1 second'", "send_window_shorter_than_sender_lease"),
            ("task_limit = 1", "limits_need_a_currency"),
            ("max_attempts = 0", "max_attempts"),
            ("backoff_cap = interval '0'", "check"),
            ("frozen_reason = ''", "frozen_reason"),
        ):
            refuse(sql, f"pipelines SET {change}", constraint)

    @pytest.mark.usefixtures("task_id")
    def test_a_pipeline_is_never_renamed(self, sql: Sql) -> None:
        with pytest.raises((errors.RestrictViolation, errors.ForeignKeyViolation)):
            sql.execute("UPDATE dagster_idempotent.pipelines SET pipeline = 'other'")


class TestPeriods:
    ZONES = ("UTC", "Europe/Rome", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe")

    @pytest.mark.parametrize("kind", PeriodKind)
    @pytest.mark.parametrize("zone", ZONES)
    def test_the_database_and_python_name_the_same_period(self, sql: Sql, kind: PeriodKind, zone: str) -> None:
        start = datetime(2000, 1, 1, tzinfo=UTC)
        # An odd step meets every hour and weekday; the year ends and changes of clocks come in between.
        instants = [start + n * timedelta(hours=37, minutes=17) for n in range(8000)]
        instants += [
            datetime(year, month, day, hour, minute, 59, 999999, tzinfo=UTC)
            for year in range(2018, 2036)
            for month, day in ((12, 28), (12, 29), (12, 31), (1, 1), (1, 3), (1, 4), (3, 29), (10, 25))
            for hour, minute in ((0, 0), (9, 59), (10, 59), (22, 59), (23, 59))
        ]
        rows = sql.execute(
            "SELECT dagster_idempotent.period_of_v1(i, %s, %s) AS p FROM unnest(%s::timestamptz[]) WITH ORDINALITY "
            "AS t (i, n) ORDER BY n",
            [kind, zone, instants],
        )
        found = [row["p"] for row in rows]
        assert found == [period_id_for(instant, kind, ZoneInfo(zone)) for instant in instants]

    @settings(max_examples=50, deadline=None)
    @given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2037, 12, 30)), st.sampled_from(ZONES))  # noqa: DTZ001 - hypothesis takes naive bounds
    def test_any_instant(self, postgres_url: str, ledger_template: str, instant: datetime, zone: str) -> None:
        url = make_conninfo("", **(conninfo_to_dict(postgres_url) | {"dbname": ledger_template}))
        # The connection may not stay: a template is copied only while nobody is connected.
        with psycopg.connect(url, row_factory=dict_row) as sql:
            instant = instant.replace(tzinfo=UTC)
            row = one(sql, "SELECT dagster_idempotent.period_of_v1(%s, 'iso_week', %s) AS p", instant, zone)
        assert row["p"] == period_id_for(instant, PeriodKind.ISO_WEEK, ZoneInfo(zone))
