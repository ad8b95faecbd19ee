"""Rows that tests put into the schema by hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql as psql
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.store.database import Database

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
