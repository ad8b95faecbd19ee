"""The schema refuses what must not be, whoever asks (protocol.md, "The schema refuses")."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings, strategies as st
from psycopg import errors, sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from pydantic import BaseModel

from dagster_idempotent.domain import submission, task
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.period import PeriodKind, period_id_for
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.errors import PipelineConflict, SchemaMismatch
from dagster_idempotent.store import schema, version
from dagster_idempotent.store.database import Database

if TYPE_CHECKING:
    from tests.conftest import Crew

Sql = psycopg.Connection[dict[str, Any]]
SHA = "0" * 64


class Digest(BaseModel):
    title: str


WEEKLY = Pipeline("weekly_digest", output=Digest)


def one(sql: Sql, query: str, *parameters: object) -> dict[str, Any]:
    row = sql.execute(query, parameters).fetchone()  # pyright: ignore[reportArgumentType]
    assert row is not None
    return row


@pytest.fixture
def task_id(ledger: Database) -> str:
    """Allocate one task."""
    return Allocator(ledger).allocate(WEEKLY, Identity(pipeline="weekly_digest", explicit_key="k")).task_id


@pytest.fixture
def insert(sql: Sql, task_id: str) -> Callable[..., None]:
    """Insert a submission with any columns."""

    def do(**columns: object) -> None:
        row: dict[str, object] = {
            "pipeline": "weekly_digest",
            "task_id": task_id,
            "call_key": "c",
            "submission": 1,
            "state": "intended",
            "sender": "00000000-0000-0000-0000-000000000001",
            "sender_expires_at": "2026-08-03",
            "owner": "run",
            "fencing_token": 1,
            "provider": "p",
            "fingerprint": "f",
            "fingerprint_version": 1,
            "fingerprint_fields": "{}",
            "idempotency_key": "key",
            "key_no": 0,
            "lookup": "exact",
            "settle_delay": "1 second",
            **columns,
        }
        names = psql.SQL(", ").join(map(psql.Identifier, row))
        values = psql.SQL(", ").join(map(psql.Placeholder, row))
        query = psql.SQL("INSERT INTO dagster_idempotent.submissions ({}) VALUES ({})").format(names, values)
        sql.execute(query, row)

    return do


def refuse(sql: Sql, update: str, match: str) -> None:
    """Expect that an update is refused, and with it all that it would have changed."""
    with pytest.raises((errors.RestrictViolation, errors.CheckViolation), match=match):
        sql.execute(f"UPDATE dagster_idempotent.{update}")


@contextmanager
def without_triggers(sql: Sql) -> Iterator[None]:
    """Let a test put rows into states that no path leads to."""
    sql.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        sql.execute("SET session_replication_role = origin")


class TestSubmissions:
    @pytest.mark.parametrize("state", sorted(submission.LIVE))
    def test_a_second_live_submission_is_refused(self, sql: Sql, insert: Callable[..., None], state: str) -> None:
        insert()
        with without_triggers(sql):
            sql.execute(
                "UPDATE dagster_idempotent.submissions SET state = %s, remote_ref = 'r', settled_by = 'sender', "
                "settled_at = now(), response_sha256 = %s, response_body = ''",
                [state, SHA],
            )
        with pytest.raises(errors.UniqueViolation, match="submissions_one_live"):
            insert(submission=2)

    @pytest.mark.parametrize("state", sorted(submission.VOID))
    def test_the_next_submission_follows_a_void_one(self, sql: Sql, insert: Callable[..., None], state: str) -> None:
        insert()
        with without_triggers(sql):
            sql.execute(
                "UPDATE dagster_idempotent.submissions SET state = %s, settled_by = 'operator', settled_at = now()",
                [state],
            )
        if state == submission.SubmissionState.ABANDONED:
            with pytest.raises(errors.RestrictViolation, match="only an operator may allow another"):
                insert(submission=2)
            sql.execute(
                "INSERT INTO dagster_idempotent.resends (pipeline, task_id, call_key, submission, actor, reason) "
                "SELECT pipeline, task_id, call_key, submission, 'ada', 'ticket' FROM dagster_idempotent.submissions"
            )
        insert(submission=2)

    def test_numbers_have_no_gaps_and_start_at_1(self, insert: Callable[..., None]) -> None:
        with pytest.raises(errors.RestrictViolation, match="no predecessor"):
            insert(submission=2)
        with pytest.raises(errors.CheckViolation):
            insert(submission=0)

    @pytest.mark.parametrize("state", sorted(set(submission.SubmissionState) - {"intended"}))
    def test_a_submission_starts_as_intended(self, insert: Callable[..., None], state: str) -> None:
        with pytest.raises(errors.RestrictViolation, match="starts as intended"):
            insert(state=state)

    @pytest.mark.parametrize("old", submission.SubmissionState)
    def test_the_trigger_and_the_table_of_moves_agree(
        self, sql: Sql, insert: Callable[..., None], old: submission.SubmissionState
    ) -> None:
        insert()
        put = """UPDATE dagster_idempotent.submissions SET state = %s, settled_by = 'operator', settled_at = now(),
            remote_ref = 'r', response_sha256 = %s, response_body = ''"""
        for new in set(submission.SubmissionState) - {old}:
            with without_triggers(sql):
                sql.execute(put, [old, SHA])
            update = "UPDATE dagster_idempotent.submissions SET state = %s"
            if new in submission.MOVES[old]:
                assert sql.execute(update, [new]).rowcount == 1
            else:
                with pytest.raises(errors.RestrictViolation, match=f"cannot go from {old} to {new}"):
                    sql.execute(update, [new])

    def test_what_was_sent_is_fixed(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        for column, value in (
            ("provider", "q"),
            ("fingerprint", "g"),
            ("fingerprint_version", 2),
            ("idempotency_key", "other"),
            ("key_no", 1),
            ("call_key", "d"),
            ("submission", 2),
            ("intended_at", "2020-01-01"),
            ("fingerprint_fields", '{"/a": "b"}'),
            ("lookup", "none"),
            ("settle_delay", "0 seconds"),
            ("key_window", "1 year"),
        ):
            query = psql.SQL("UPDATE dagster_idempotent.submissions SET {} = %s").format(psql.Identifier(column))
            with pytest.raises(errors.RestrictViolation, match="is fixed"):
                sql.execute(query, [value])

    def test_a_new_sender_comes_only_with_one_counted_resend(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        for change in (
            "sender = gen_random_uuid()",
            "sends = sends + 1",
            "sender = gen_random_uuid(), sends = sends + 2",
            "sender = gen_random_uuid(), sends = sends + 1, state = 'not_sent'",
        ):
            refuse(sql, f"submissions SET {change}", "counted resend")

    def test_a_resend_is_only_of_a_call_in_doubt(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        resend = "UPDATE dagster_idempotent.submissions SET sender = gen_random_uuid(), sends = sends + 1"
        with pytest.raises(errors.RestrictViolation, match="counted resend"):
            sql.execute(resend)
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        sql.execute(resend)

    def test_an_answer_is_final(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'succeeded', settled_by = 'sender', settled_at = now(), "
            "response_body = 'a', response_sha256 = %s",
            [SHA],
        )
        for change in ("response_sha256 = NULL", f"response_sha256 = '{'1' * 64}'", "response_body = 'b'"):
            refuse(sql, f"submissions SET {change}", "answer of submission 1|body_present")
        # Pruning drops the body and keeps the hash.
        sql.execute("UPDATE dagster_idempotent.submissions SET response_body = NULL, pruned_at = now()")

    def test_checks_refuse(self, insert: Callable[..., None]) -> None:
        cases: list[tuple[dict[str, object], str]] = [
            ({"call_key": ""}, "call_key"),
            ({"call_key": "x" * 201}, "call_key"),
            ({"sends": 0}, "sends|starts as intended"),
            ({"settle_delay": "-1 second"}, "settle_delay"),
            ({"key_window": "0 seconds"}, "key_window"),
            ({"cost": 1}, "cost_has_a_currency"),
            ({"cost": -1, "currency": "USD"}, "cost"),
            ({"currency": "usd!", "cost": 1}, "currency"),
            ({"late": True}, "late_only_when_void"),
            ({"idempotency_key": ""}, "idempotency_key"),
            ({"lookup": "maybe"}, "lookup"),
            ({"response_sha256": SHA}, "body_present_unless_pruned"),
        ]
        for columns, constraint in cases:
            with pytest.raises((errors.CheckViolation, errors.RestrictViolation), match=constraint):
                insert(**columns)

    def test_an_outcome_says_what_it_rests_on(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        for change, constraint in (
            ("state = 'accepted', settled_by = 'look_up', settled_at = now()", "accepted_has_a_reference"),
            ("state = 'succeeded', settled_by = 'sender', settled_at = now()", "succeeded_has_an_answer"),
            ("state = 'rejected'", "final_says_by_whom"),
            ("state = 'abandoned', settled_by = 'look_up', settled_at = now()", "abandoned_by_operator_only"),
        ):
            refuse(sql, f"submissions SET {change}", constraint)


class TestTasks:
    @pytest.mark.parametrize("old", task.TaskStatus)
    def test_the_trigger_and_the_table_of_moves_agree(self, sql: Sql, task_id: str, old: task.TaskStatus) -> None:
        # In each status with exactly the columns that it must have.
        query = """UPDATE dagster_idempotent.tasks SET status = %(status)s,
            owner = CASE WHEN %(status)s IN ('running', 'failed') THEN 'run' END,
            held_for = CASE WHEN %(status)s = 'held' THEN 'in_doubt' END,
            fencing_token = fencing_token + 1,
            output = CASE WHEN %(status)s = 'completed' THEN '{}'::json ELSE output END,
            output_sha256 = CASE WHEN %(status)s = 'completed' THEN %(sha)s END,
            completed_at = CASE WHEN %(status)s = 'completed' THEN now() END WHERE task_id = %(task_id)s"""
        for new in set(task.TaskStatus) - {old}:
            with without_triggers(sql):
                sql.execute(query, {"status": old, "task_id": task_id, "sha": SHA})
            parameters = {"status": new, "task_id": task_id, "sha": SHA}
            if new in task.MOVES[old]:
                assert sql.execute(query, parameters).rowcount == 1
            else:
                with pytest.raises(errors.RestrictViolation, match=f"cannot go from {old} to {new}"):
                    sql.execute(query, parameters)

    def test_an_identity_is_fixed(self, sql: Sql, task_id: str) -> None:
        for change in (
            "subject_id = 'other'",
            "version = '2'",
            "scheduled_at = now()",
            "allocation_key = 'other'",
            "run_id = repeat('1', 64)",
            "allocation_key = NULL, run_id = NULL",
            "sequence = 7, task_id = period_id || '-7'",
            "period_id = '2020-W01', task_id = '2020-W01-0'",
            "created_at = '2020-01-01'",
            "origin = 'unrelated'",
        ):
            refuse(sql, f"tasks SET {change}", f"identity of task {task_id} is fixed")

    def test_a_completed_output_never_changes(self, sql: Sql, task_id: str) -> None:
        self._complete(sql, task_id)
        for change in (
            'output = \'{"title": "b"}\'',
            'output = \'{ "title":"a"}\'',
            "output = NULL",
            "output_sha256 = repeat('1', 64)",
            "completed_at = '2020-01-01'",
            "completed_by = 'other'",
            'output = \'{"title": "b"}\', pruned_at = now()',
        ):
            refuse(sql, f"tasks SET {change}", "final|body_present")

    def test_pruning_drops_the_output_and_keeps_its_hash(self, sql: Sql, task_id: str) -> None:
        self._complete(sql, task_id)
        sql.execute("UPDATE dagster_idempotent.tasks SET output = NULL, pruned_at = now()")
        with pytest.raises(errors.RestrictViolation, match="final"):
            sql.execute('UPDATE dagster_idempotent.tasks SET output = \'{"title": "b"}\', pruned_at = NULL')

    def test_a_new_owner_needs_a_higher_token(self, sql: Sql, task_id: str) -> None:
        self._claim(sql, task_id)
        for change in (
            "owner = 'other'",
            "fencing_token = fencing_token - 1",
            "owner = NULL",
        ):
            refuse(sql, f"tasks SET {change}", "higher fencing token|fencing_token")

    @pytest.mark.usefixtures("task_id")
    def test_checks_refuse(self, sql: Sql) -> None:
        for change, constraint in (
            ("status = 'running', fencing_token = 1", "running_has_an_owner"),
            ("owner = 'run', fencing_token = 1", "ended_has_no_lease"),
            ("held_for = 'budget'", "held_says_for_what"),
            ("output_sha256 = repeat('1', 64), completed_at = now()", "completed_has_an_output"),
            ("attempts = -1", "attempts"),
        ):
            refuse(sql, f"tasks SET {change}", constraint)

    @pytest.mark.parametrize(
        "columns",
        [
            "'2026-W32-7', '2026-W32', 8, 'other', repeat('1', 64)",  # the id is not period and sequence
            "'2026-W32--1', '2026-W32', -1, 'other', repeat('1', 64)",
            "'2026-W32-1', '2026-W32', 1, 'other', NULL",  # an allocated task has an identity
            "'2026-W32-1', '2026-W32', 1, NULL, repeat('1', 64)",
            "'2026-W32-1', '2026-W32', 1, 'other', 'no hash'",
        ],
    )
    def test_a_task_is_named_by_period_and_sequence_and_has_an_identity(
        self, sql: Sql, task_id: str, columns: str
    ) -> None:
        assert task_id
        with pytest.raises(errors.CheckViolation):
            sql.execute(  # pyright: ignore[reportArgumentType]
                "INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id) "  # noqa: S608
                f"VALUES ('weekly_digest', {columns})"
            )

    @pytest.mark.parametrize(
        "columns",
        [
            "'2020-W01-0', '2020-W01', 0, '{key}', repeat('1', 64), '', NULL",
            "'2020-W01-0', '2020-W01', 0, 'other', '{run_id}', '', NULL",
            "'2020-W01-0', '2020-W01', 0, 'other', repeat('1', 64), 'acme', '2026-08-03 00:00Z'",
        ],
    )
    def test_each_form_of_an_identity_is_unique(self, sql: Sql, ledger: Database, task_id: str, columns: str) -> None:
        instant = datetime(2026, 8, 3, tzinfo=UTC)
        Allocator(ledger).allocate(WEEKLY, Identity(pipeline="weekly_digest", subject="acme", scheduled_at=instant))
        row = one(sql, "SELECT allocation_key, run_id FROM dagster_idempotent.tasks WHERE task_id = %s", task_id)
        values = columns.format(key=row["allocation_key"], run_id=row["run_id"])
        with pytest.raises(errors.UniqueViolation):
            sql.execute(  # pyright: ignore[reportArgumentType]
                "INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, allocation_key, run_id, "  # noqa: S608
                f"subject_id, scheduled_at) VALUES ('weekly_digest', {values})"
            )

    def _claim(self, sql: Sql, task_id: str) -> None:
        one(sql, "SELECT dagster_idempotent.claim_v1('weekly_digest', %s, 'run', NULL, NULL, false)", task_id)

    def _complete(self, sql: Sql, task_id: str) -> None:
        self._claim(sql, task_id)
        sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'completed', output = '{\"title\": \"a\"}', "
            "output_sha256 = %s, completed_at = now(), completed_by = 'run'",
            [SHA],
        )


class TestForgetting:
    TABLES = (
        "ledger",
        "pipelines",
        "tasks",
        "artifacts",
        "submissions",
        "costs",
        "budgets",
        "approvals",
        "outbox",
        "audit",
    )

    @pytest.fixture
    def full(self, sql: Sql, task_id: str, insert: Callable[..., None]) -> None:
        """Put a row into every table."""
        insert()
        for table, columns, values in (
            ("artifacts", "name, sha256, size, media_type, body", "'raw', %(sha)s, 1, 'text/plain', 'a'"),
            ("costs", "call_key, submission, kind, amount, currency", "'c', 1, 'reserved', 1, 'USD'"),
            ("approvals", "gate, actor, reason, shown_sha256", "'spend', 'a', 'r', %(sha)s"),
            ("outbox", "channel, payload, state, deduplicates", "'file', '{}', 'ready', true"),
            ("audit", "actor, action, reason", "'a', 'b', 'c'"),
        ):
            sql.execute(
                f"INSERT INTO dagster_idempotent.{table} (pipeline, task_id, {columns}) "  # noqa: S608 - a test's own text # pyright: ignore[reportArgumentType]
                f"VALUES ('weekly_digest', %(id)s, {values})",
                {"id": task_id, "sha": SHA},
            )
        sql.execute(
            "INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency) "
            "VALUES ('weekly_digest', 'pipeline', 'USD')"
        )

    @pytest.mark.usefixtures("full")
    def test_no_row_of_any_table_is_deleted(self, sql: Sql) -> None:
        for table in self.TABLES:
            with pytest.raises(errors.RestrictViolation, match=f"DELETE of {table} is refused"):
                sql.execute(psql.SQL("DELETE FROM dagster_idempotent.{}").format(psql.Identifier(table)))

    @pytest.mark.usefixtures("full")
    def test_no_table_is_truncated(self, sql: Sql) -> None:
        for table in self.TABLES:
            with pytest.raises(errors.RestrictViolation, match=r"TRUNCATE of \w+ is refused"):
                sql.execute(psql.SQL("TRUNCATE dagster_idempotent.{} CASCADE").format(psql.Identifier(table)))

    @pytest.mark.usefixtures("full")
    def test_costs_and_audit_are_append_only_and_the_ledger_keeps_its_id(self, sql: Sql) -> None:
        for update in ("costs SET amount = 0", "audit SET actor = 'b'", "ledger SET ledger_id = gen_random_uuid()"):
            refuse(sql, update, r"UPDATE of \w+ is refused")

    def test_there_is_one_ledger_row(self, sql: Sql) -> None:
        with pytest.raises(errors.UniqueViolation):
            sql.execute("INSERT INTO dagster_idempotent.ledger DEFAULT VALUES")
        with pytest.raises(errors.CheckViolation):
            sql.execute("INSERT INTO dagster_idempotent.ledger (singleton) VALUES (false)")

    @pytest.mark.usefixtures("full")
    def test_an_artifact_never_changes(self, sql: Sql) -> None:
        for change in (
            "body = 'b'",
            f"sha256 = '{'1' * 64}'",
            "size = 2",
            "name = 'other'",
        ):
            refuse(sql, f"artifacts SET {change}", "artifact|size_is_of_the_body")

    @pytest.mark.usefixtures("full")
    def test_a_message_is_fixed_and_moves_only_along_its_states(self, sql: Sql) -> None:
        for change in (
            "payload = '{\"a\": 1}'",
            "deduplicates = false",
            "state = 'delivered'",
        ):
            refuse(sql, f"outbox SET {change}", "message file of task|delivered_says_when")

    @pytest.mark.usefixtures("full")
    def test_reserved_never_falls_below_nothing(self, sql: Sql) -> None:
        with pytest.raises(errors.CheckViolation, match="reserved"):
            sql.execute("UPDATE dagster_idempotent.budgets SET reserved = -1")


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


UPGRADE = """
import sys
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database
sys.stdin.readline()
print(schema.upgrade(Database(sys.argv[1])))
"""


class TestUpgrade:
    @pytest.fixture
    def empty_url(self, postgres_url: str, ledger_url: str) -> Iterator[str]:
        """Give a database without a ledger."""
        name = conninfo_to_dict(ledger_url)["dbname"] + "_empty"
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(psql.SQL("CREATE DATABASE {}").format(psql.Identifier(name)))
            yield make_conninfo("", **(conninfo_to_dict(postgres_url) | {"dbname": name}))
            admin.execute(psql.SQL("DROP DATABASE {} WITH (FORCE)").format(psql.Identifier(name)))

    @pytest.mark.parametrize("isolation", ["read committed", "serializable"])
    def test_two_processes_upgrade_at_once(self, empty_url: str, isolation: str) -> None:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            default = psql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}")
            admin.execute(default.format(psql.Identifier(admin.info.dbname), psql.Literal(isolation)))
            # Both wait for this lock, then go at once.
            admin.execute("BEGIN")
            admin.execute("SELECT pg_advisory_xact_lock(%s)", [schema._MIGRATION_LOCK])
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", UPGRADE, empty_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                for _ in range(2)
            ]
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            self._wait_for_waiters(empty_url, len(processes))
            admin.execute("COMMIT")
        outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
        assert outputs == [schema.wanted_version()] * 2
        database = Database(empty_url)
        schema.check(database)
        database.close()

    def test_the_written_sql_makes_the_same_schema(self, empty_url: str, ledger_url: str) -> None:
        with psycopg.connect(empty_url, autocommit=True) as admin:
            admin.execute(schema.upgrade_sql())  # pyright: ignore[reportArgumentType]
        database = Database(empty_url)
        schema.check(database)
        database.close()
        assert self._objects(empty_url) == self._objects(ledger_url)

    def test_a_database_without_a_ledger_is_refused_and_left_empty(self, empty_url: str) -> None:
        database = Database(empty_url)
        with pytest.raises(SchemaMismatch, match=r"holds no ledger.*dagster-idempotent schema upgrade") as caught:
            schema.check(database)
        database.close()
        assert caught.value.facts == {"found": None, "wanted": schema.wanted_version()}
        assert self._objects(empty_url) == []

    def test_an_old_schema_names_the_command(self, ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(version, "wanted_version", lambda: "9999")
        with pytest.raises(
            SchemaMismatch, match=r"has the ledger schema \d+.*wants 9999.*dagster-idempotent schema upgrade"
        ):
            schema.check(ledger)

    def test_a_newer_schema_names_the_remedy(self, ledger: Database, sql: Sql) -> None:
        sql.execute("UPDATE dagster_idempotent.alembic_version SET version_num = '9999'")
        with pytest.raises(SchemaMismatch, match=r"schema 9999, which is newer.*Install the version"):
            schema.check(ledger)

    def test_no_text_about_the_schema_holds_the_password(self, ledger_url: str, sql: Sql) -> None:
        sql.execute("UPDATE dagster_idempotent.alembic_version SET version_num = '9999'")
        database = Database(make_conninfo(ledger_url, password="s3cr3t-password"))  # noqa: S106 - it must not be shown
        with pytest.raises(SchemaMismatch) as caught:
            schema.check(database)
        database.close()
        assert "s3cr3t" not in str(caught.value)

    def _objects(self, url: str) -> list[tuple[str, ...]]:
        with psycopg.connect(url) as connection:
            return connection.execute(
                """SELECT 'column', table_name, column_name, data_type, is_nullable, column_default
                FROM information_schema.columns WHERE table_schema = 'dagster_idempotent'
                UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', ''
                FROM pg_constraint WHERE connamespace = to_regnamespace('dagster_idempotent')
                    AND conrelid::regclass::text NOT LIKE '%alembic%'
                UNION ALL SELECT 'index', tablename, indexname, indexdef, '', '' FROM pg_indexes
                WHERE schemaname = 'dagster_idempotent' AND tablename <> 'alembic_version'
                UNION ALL SELECT 'function', proname, prosrc, '', '', '' FROM pg_proc
                WHERE pronamespace = to_regnamespace('dagster_idempotent')
                UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid), '', ''
                FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
                WHERE NOT tgisinternal AND c.relnamespace = to_regnamespace('dagster_idempotent')
                ORDER BY 1, 2, 3, 4"""
            ).fetchall()

    def _wait_for_waiters(self, url: str, number: int) -> None:
        with psycopg.connect(url, autocommit=True) as watcher:
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            deadline = datetime.now(UTC) + timedelta(seconds=60)
            while watcher.execute(query).fetchone() != (number,):
                assert datetime.now(UTC) < deadline
                watcher.execute("SELECT pg_stat_clear_snapshot()")


class TestIsolation:
    def test_allocation_is_right_where_the_server_defaults_to_serializable(
        self, postgres_url: str, ledger_url: str, crew: "Crew"
    ) -> None:
        name = conninfo_to_dict(ledger_url)["dbname"]
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            default = psql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'")
            admin.execute(default.format(psql.Identifier(name)))
        workers = crew.connected(16, url=ledger_url)
        for month in (1, 2, 3):
            instant = f"2026-{month:02}-12T00:00:00+00:00"
            orders = [{"subject": f"tenant-{n // 2}", "scheduled_at": instant} for n in range(16)]
            answers = crew.at_once(workers, "allocate", orders)
            assert [json.dumps(answer) for answer in answers if "error" in answer] == []
            numbers = [int(answer["value"].rpartition("-")[2]) for answer in answers]
            assert sorted(numbers) == sorted([*range(8), *range(8)])
