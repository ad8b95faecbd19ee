"""Evidence is never deleted, emptied or rewritten."""

from collections.abc import Callable

import pytest
from psycopg import errors, sql as psql

from tests.integration.schema.conftest import SHA, Sql, refuse


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
        "replays",
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
            ("replays", "call_key, submission, times", "'c', 1, 1"),
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
