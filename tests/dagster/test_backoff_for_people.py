"""Backoff binds daemons, not people (R30): a launch by hand claims at once."""

from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from real_dagster import Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

Rows = psycopg.Connection[dict[str, Any]]
WEEK = "2026-08-03"


def test_a_person_never_waits_for_a_backoff_and_the_task_sensor_does(
    dagster: Dagster, folder: Path, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_idempotent.definitions.step.MAX_WAITS", 0)
    (folder / "after_payment_blind").touch()
    failed = dagster.launch("blind", partition=WEEK)
    assert failed.status is dg.DagsterRunStatus.FAILURE
    sql.execute("UPDATE dagster_idempotent.tasks SET next_attempt_at = clock_timestamp() + interval '1 hour'")

    automatic = dagster.launch("blind", partition=WEEK, tags={"dagster-idempotent/automatic": "true"})
    assert "its next automatic attempt is due in 3" in dagster.failures(automatic)[0]
    # By hand, also where the run that is re-executed was an automatic one.
    by_hand = dagster.reexecute(automatic, "FROM_FAILURE")
    assert by_hand.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(by_hand)
    assert metered_provider.charges == 1
