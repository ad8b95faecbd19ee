"""A claimed task for a test, and a guard in the shape in which SDK clients take it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import check_call_key
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.guard import Guard, Request, Value
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.providers.protocol import Provider
from dagster_idempotent.store.database import Database

_ANY_TUESDAY = datetime(2026, 8, 4, tzinfo=UTC)


class AnyOutput(BaseModel):
    """The output of a pipeline whose output does not matter."""


@contextmanager
def claimed_work(
    database: Database,
    pipeline: Pipeline[BaseModel] | None = None,
    *,
    subject: str = "test",
    scheduled_at: datetime = _ANY_TUESDAY,
    owner: str = "test-run",
) -> Generator[Work]:
    """Allocate and claim a task as a run would, and keep its lease until the block ends."""
    of = pipeline or Pipeline[BaseModel]("tested_pipeline", output=AnyOutput)
    task = Allocator(database).allocate(of, Identity(pipeline=of.name, subject=subject, scheduled_at=scheduled_at))
    heartbeat = Heartbeat(database)
    work = claim(database, heartbeat, of, task.task_id, Owner(owner), is_finished=lambda _: False)
    with work.renewed():
        yield work


def exchange_of(work: Work, provider: Provider[Request, Value], call: str) -> Callable[[Request], Value]:
    """Return the guard of one call as a function from request to answer."""
    guard, key = Guard(work, provider), check_call_key(call)
    return lambda request: guard.call(key, request).value
