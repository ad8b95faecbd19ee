"""Counts the replays of an op at its end, at most once: a number for people is worth no failure."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.errors import StoreError
from dagster_idempotent.store import replays
from dagster_idempotent.store.database import Connection, Database

logger = logging.getLogger(__name__)


def count_replays(database: Database, pipeline: str, task_id: TaskId, results: Sequence[CallResult[Any]]) -> None:
    """Count the results that were replayed."""
    replayed = [(result.call_key, result.submission) for result in results if result.replayed]
    if replayed:
        _once(database, lambda c: replays.count(c, pipeline, task_id, replayed))


def count_task_replayed(database: Database, pipeline: str, task_id: TaskId) -> None:
    """Count that the accepted output of a task was returned in place of all its calls."""
    _once(database, lambda c: replays.count_task(c, pipeline, task_id))


def _once(database: Database, statement: Callable[[Connection], None]) -> None:
    try:
        # Issued again, it would count twice what a lost reply had already counted.
        database.run(statement, patience=timedelta(0))
    except (StoreError, psycopg.Error) as error:
        logger.warning("replays.not_counted", extra={"error": type(error).__name__})
