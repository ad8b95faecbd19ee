"""What the statements of a task cost: a replay writes nothing, and no hot statement reads a whole table."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Lease, Owner
from dagster_idempotent.engine import relay, stages
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.channels.file import FileChannel
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import TaskClosed
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store import leases, submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

Sql = psycopg.Connection[dict[str, Any]]
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "summarise"}]}
ROWS = 20_000


class Digest(BaseModel):
    title: str


WEEKLY = Pipeline("weekly_digest", output=Digest)
IDENTITY = Identity(pipeline="weekly_digest", scheduled_at=datetime(2026, 8, 3, tzinfo=UTC))


@pytest.fixture
def provider(metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> ChatCompletionsProvider:
    monkeypatch.setenv("K", "k")
    return ChatCompletionsProvider(base_url=metered_provider.base_url, api_key_variable="K", look_up_path="/lookup")


def begin(database: Database) -> Work:
    task = Allocator(database).allocate(WEEKLY, IDENTITY)
    return claim(database, Heartbeat(database), WEEKLY, task.task_id, Owner("run"), is_finished=lambda _: False)


def writes_nothing(sql: Sql, action: Callable[[], object]) -> bool:
    """Whether no transaction of the server got a number meanwhile; autovacuum may take one, so look more than once."""
    for _ in range(5):
        before = sql.execute("SELECT pg_snapshot_xmax(pg_current_snapshot()) AS x").fetchone()
        action()
        if sql.execute("SELECT pg_snapshot_xmax(pg_current_snapshot()) AS x").fetchone() == before:
            return True
    return False


class TestReplaysWriteNothing:
    def test_a_known_key_is_allocated_by_reading(self, ledger: Database, sql: Sql) -> None:
        allocator = Allocator(ledger)
        allocator.allocate(WEEKLY, IDENTITY)
        assert writes_nothing(sql, lambda: allocator.allocate(WEEKLY, IDENTITY))
        # A new process registers its pipeline first, by reading too.
        assert writes_nothing(sql, lambda: Allocator(ledger).allocate(WEEKLY, IDENTITY))

    def test_a_completed_call_and_a_stored_artifact_are_read(
        self, ledger: Database, sql: Sql, provider: ChatCompletionsProvider
    ) -> None:
        work = begin(ledger)
        guard = Guard(work, provider)
        guard.call(CallKey("summary"), REQUEST)
        stages.collect(work, lambda: "raw")
        assert writes_nothing(sql, lambda: guard.call(CallKey("summary"), REQUEST))
        assert writes_nothing(sql, lambda: stages.collect(work, lambda: "other"))

    def test_a_completed_task_is_persisted_and_delivered_by_reading(
        self, ledger: Database, sql: Sql, tmp_path: Path
    ) -> None:
        work = begin(ledger)
        channels = {"file": FileChannel(tmp_path)}

        def finish() -> None:
            stages.persist(work, {"title": "t"}, dagster_run_id="run", channels={"file": True})
            relay.deliver_task(ledger, WEEKLY.name, work.task.task_id, channels)

        finish()
        assert writes_nothing(sql, finish)

    def test_a_finished_task_is_refused_by_reading_and_locking_only(self, ledger: Database, sql: Sql) -> None:
        work = begin(ledger)
        stages.persist(work, {"title": "t"}, dagster_run_id="run")
        before = sql.execute("SELECT *, xmin::text FROM dagster_idempotent.tasks").fetchall()
        with pytest.raises(TaskClosed):
            begin(ledger)
        assert sql.execute("SELECT *, xmin::text FROM dagster_idempotent.tasks").fetchall() == before


class TestPlans:
    @pytest.fixture
    def full(self, ledger: Database, sql: Sql) -> Work:
        """Fill the ledger with the tasks and calls of years, beside one running task."""
        work = begin(ledger)
        for statement in (
            """INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, subject_id, scheduled_at,
                    allocation_key, run_id)
                SELECT 'weekly_digest', '2020-W' || n %% 50 || '-' || n, '2020-W' || n %% 50, n, 's' || n,
                    timestamptz '2020-01-01' + n * interval '1 minute', 'key' || n, lpad(to_hex(n), 64, '0')
                FROM generate_series(1, %(rows)s) AS n""",
            """INSERT INTO dagster_idempotent.submissions (pipeline, task_id, call_key, submission, state, sender,
                    sender_expires_at, owner, fencing_token, provider, fingerprint, fingerprint_version,
                    fingerprint_fields, idempotency_key, key_no, lookup, settle_delay)
                SELECT pipeline, task_id, 'summary', 1, 'intended', gen_random_uuid(), now(), 'run', 1, 'p', 'f', 1,
                    '{}', 'key', 0, 'exact', '1 second' FROM dagster_idempotent.tasks WHERE task_id LIKE '2020-%%'""",
            """UPDATE dagster_idempotent.submissions SET state = 'succeeded', settled_by = 'sender', settled_at = now(),
                response_sha256 = repeat('0', 64), response_body = ''""",
            """INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, body)
                SELECT pipeline, task_id, 'raw', repeat('0', 64), 0, 'text/plain', ''
                FROM dagster_idempotent.tasks WHERE task_id LIKE '2020-%%'""",
            """INSERT INTO dagster_idempotent.outbox (pipeline, task_id, channel, payload, state, deduplicates,
                    delivered_at)
                SELECT pipeline, task_id, 'file', '{}', 'delivered', true, now()
                FROM dagster_idempotent.tasks WHERE task_id LIKE '2020-%%'""",
            """INSERT INTO dagster_idempotent.costs (pipeline, task_id, call_key, submission, kind, amount, currency)
                SELECT pipeline, task_id, call_key, submission, 'settled', 1, 'USD'
                FROM dagster_idempotent.submissions""",
            """INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency)
                SELECT pipeline, 'task:' || task_id, 'USD' FROM dagster_idempotent.tasks""",
        ):
            sql.execute(statement, {"rows": ROWS})  # pyright: ignore[reportArgumentType]
        sql.execute("ANALYZE")
        return work

    def test_no_statement_of_a_whole_task_reads_a_whole_table(
        self, sql: Sql, full: Work, provider: ChatCompletionsProvider, tmp_path: Path, until: Callable[..., object]
    ) -> None:
        ledger = full.database
        others = (
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        big = ("tasks", "submissions", "artifacts", "outbox", "costs", "budgets")

        def scans() -> dict[str, int]:
            # A connection hands in its numbers when it ends.
            ledger.close()
            until(lambda: not sql.execute(others).rowcount)
            sql.execute("SELECT pg_stat_clear_snapshot()")
            found = sql.execute(
                "SELECT relname::text AS t, seq_scan AS n FROM pg_stat_user_tables WHERE relname = ANY(%s)", [list(big)]
            )
            return {row["t"]: row["n"] for row in found}

        def whole_task(number: int) -> None:
            identity = Identity(pipeline="weekly_digest", subject=f"new-{number}", explicit_key="k")
            allocator, heartbeat = Allocator(ledger), Heartbeat(ledger)
            task = allocator.allocate(WEEKLY, identity)
            allocator.allocate(WEEKLY, identity)
            scheduled = Identity(
                pipeline="weekly_digest", subject=f"new-{number}", scheduled_at=datetime(2026, 8, 3, tzinfo=UTC)
            )
            allocator.allocate(WEEKLY, scheduled)
            work = claim(
                ledger, heartbeat, WEEKLY, task.task_id, Owner("run"), is_finished=lambda _: False, providers=[provider]
            )
            stages.collect(work, lambda: "raw")
            for _ in range(2):
                Guard(work, provider).call(CallKey("summary"), REQUEST)
            lease = Lease(pipeline="weekly_digest", task_id=task.task_id, owner=Owner("run"), token=work.lease.token)
            ledger.run(lambda c: leases.renew(c, lease))
            ledger.run(lambda c: submissions.renew_senders(c, [row["sender"] for row in senders]))
            work.fail("it broke")
            stages.persist(work, {"title": "t"}, dagster_run_id="run", channels={"file": True})
            relay.deliver_task(ledger, WEEKLY.name, task.task_id, {"file": FileChannel(tmp_path)})

        senders = sql.execute("SELECT sender FROM dagster_idempotent.submissions LIMIT 2").fetchall()
        assert full.task.task_id == "2026-W32-0"
        before = scans()
        # Often enough that PostgreSQL may turn to generic plans.
        for number in range(12):
            whole_task(number)
        assert scans() == before
        ledger.run(lambda c: c.execute("SELECT FROM dagster_idempotent.tasks WHERE error = 'none such'"))
        assert scans() == {**before, "tasks": before["tasks"] + 1}
