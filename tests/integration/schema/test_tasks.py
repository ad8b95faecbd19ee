"""What the schema refuses of a task, whoever asks."""

from datetime import UTC, datetime

import pytest
from psycopg import errors

from dagster_idempotent.domain import task
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.store.database import Database
from tests.integration.schema.conftest import SHA, WEEKLY, Sql, one, refuse, without_triggers


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
