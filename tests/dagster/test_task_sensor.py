"""The task sensor in the real daemon: what cannot be launched delays nobody, what was lost comes again (R30, R31)."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import dagster as dg
import psycopg
import pytest
from locations import copied_location
from real_dagster import ASSET_JOB, CODE, Dagster

from dagster_idempotent import iso_week_partitions
from dagster_idempotent.definitions.partitions import by_subject, partition_at
from dagster_idempotent.definitions.sensors import Cursor
from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEK = "2026-08-03"
SENSOR = "dynamic_task_sensor"
Rows = psycopg.Connection[dict[str, Any]]
# Tasks of a pipeline, as imports and other launches leave them.
OTHERS: LiteralString = """
INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, origin, status, created_at, launch)
SELECT 'dynamic', '2026-W01-' || n, '2026-W01', n, 'unrelated', 'pending', now() - interval '1 day', %(launch)s
FROM generate_series(%(first)s::int, %(last)s::int) n
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, start_dagster: Any, folder: Path) -> Iterator[Dagster]:
    monkeypatch.setenv("TEST_OPERATORS", "1")
    with start_dagster(code=copied_location(folder, code=CODE.with_name("own_location.py"))) as started:
        yield started


def _fail(dagster: Dagster, monkeypatch: pytest.MonkeyPatch, sql: Rows, *tenants: str) -> None:
    """Launch each tenant's week without the credential, and let the backoff be over."""
    dagster.instance.add_dynamic_partitions("tenants", list(tenants))
    with monkeypatch.context() as without:
        without.delenv("TEST_API_KEY")
        for tenant in tenants:
            assert dagster.launch("dynamic", partition=f"{tenant}|{WEEK}").status is dg.DagsterRunStatus.FAILURE
    _let_time_pass(sql)


def _let_time_pass(sql: Rows) -> None:
    sql.execute("SET session_replication_role = replica")
    sql.execute(
        "UPDATE dagster_idempotent.tasks SET next_attempt_at = now(), lease_expires_at = now() - interval '1 day'"
        "WHERE status = 'failed'"
    )


def test_what_cannot_be_launched_delays_no_other_task(
    own: Dagster, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(own, monkeypatch, sql, "gone", "globex")
    own.instance.delete_dynamic_partition("tenants", "gone")
    launches = {
        "no identity": None,
        "a partition of other times": {"job": "dynamic", "partition_key": "globex|2026-08-04"},
        "no partition key at all": {"job": "dynamic", "partition_key": "x|y|z"},
        "config of other code": {"job": "dynamic", "partition_key": f"globex|{WEEK}", "ops": {"renamed": {}}},
    }
    for number, launch in enumerate(launches.values()):
        range_of = {"first": number * 50, "last": number * 50 + 49}
        sql.execute(OTHERS, {"launch": None if launch is None else json.dumps(launch), **range_of})
    tick = own.sense(SENSOR, cursor="a person typed this \U0001f600")
    assert tick.error is None
    (_, _, again) = own.runs()
    assert again.tags["dagster/partition"] == f"globex|{WEEK}"
    assert again.status is dg.DagsterRunStatus.SUCCESS, own.failures(again)
    tick = own.sense(SENSOR)
    assert "201 task(s) cannot be launched from here" in str(tick.skip_reason)
    assert metered_provider.charges == 1


def test_a_launch_that_was_lost_comes_again_and_one_that_is_on_its_way_does_not(
    own: Dagster, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(own, monkeypatch, sql, "acme")
    own.sense(SENSOR, queue_only=True)
    own.sense(SENSOR, queue_only=True)
    _, lost = own.runs()
    assert lost.status is dg.DagsterRunStatus.QUEUED
    # Its worker never started: no claim was made, and none is counted.
    own.report_lost(lost)
    while len(own.runs()) == len([lost, "the first"]):
        own.sense(SENSOR)
    again = own.runs()[-1]
    assert again.status is dg.DagsterRunStatus.SUCCESS, own.failures(again)
    assert again.tags["dagster/run_key"] == "dynamic/2026-W32-0:1.1"
    assert sql.execute("SELECT attempts FROM dagster_idempotent.tasks").fetchone() == {"attempts": 2}
    assert metered_provider.charges == 1


def test_a_run_that_a_person_terminated_is_not_launched_again(
    own: Dagster, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(own, monkeypatch, sql, "acme")
    stopped = own.launch("dynamic", partition=f"acme|{WEEK}", queue_only=True)
    own.instance.report_run_canceled(stopped)
    sql.execute("UPDATE dagster_idempotent.tasks SET owner = %s", [stopped.run_id])
    assert own.sense(SENSOR).run_ids == []
    again = own.reexecute(stopped, "ALL_STEPS")
    assert again.status is dg.DagsterRunStatus.SUCCESS, own.failures(again)
    assert metered_provider.charges == 1


def test_a_task_of_an_earlier_version_is_not_paid_again_as_one_of_this(
    own: Dagster, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(own, monkeypatch, sql, "acme")
    sql.execute("UPDATE dagster_idempotent.tasks SET version = 'before'")
    assert own.sense(SENSOR).run_ids == []
    assert metered_provider.requests() == ()


def test_a_task_that_dagster_did_not_launch_first_is_launched_at_the_partition_of_its_time(
    own: Dagster, sql: Rows, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(own, monkeypatch, sql, "acme")
    sql.execute("UPDATE dagster_idempotent.tasks SET launch = NULL")
    own.sense(SENSOR)
    again = own.runs()[-1]
    assert again.tags["dagster/partition"] == f"acme|{WEEK}"
    assert again.status is dg.DagsterRunStatus.SUCCESS, own.failures(again)
    assert metered_provider.charges == 1


def test_the_partition_of_a_time_is_the_one_that_starts_then() -> None:
    weeks = iso_week_partitions("2026-01-05", timezone="America/New_York")
    start = datetime.fromisoformat("2026-08-03T04:00:00Z")
    assert partition_at(weeks, start, "") == WEEK
    assert partition_at(by_subject(weeks, ["acme"]), start, "acme") == f"acme|{WEEK}"
    assert partition_at(weeks, start, "acme") is None
    assert partition_at(by_subject(weeks, ["acme"]), start, "") is None
    assert partition_at(weeks, datetime.fromisoformat("2026-08-03T00:00:00Z"), "") is None


@pytest.mark.parametrize("text", [None, "", "2026-W32-0", "5", "null", "[1]", '{"due": 5}', '{"other": {}}'])
def test_any_text_is_a_cursor(text: str | None) -> None:
    assert Cursor.read(text) == Cursor(due="5" if text == '{"due": 5}' else "")
    assert Cursor.read(Cursor(doubtful="a", due="b").write()) == Cursor(doubtful="a", due="b")


def test_a_job_and_an_asset_of_one_pipeline_launch_again_what_was_launched_as_them(
    start_dagster: Any, sql: Rows, folder: Path, metered_provider: MeteredProvider
) -> None:
    code = folder / "job_and_asset.py"
    code.write_text(
        CODE.read_text() + "defs = dg.Definitions.merge(defs, operator_definitions(weekly_job, weekly_asset))\n"
    )
    with start_dagster(code=code) as dagster:
        (folder / "after_payment_weekly_digest").touch()
        dagster.launch("weekly_digest", partition=f"acme|{WEEK}")
        (folder / "after_payment_weekly_digest").touch()
        dagster.materialise("weekly_digest_asset", f"globex|{WEEK}")
        # As an asset's launch with config leaves it: its ops lie below the asset's name.
        ops = {"weekly_digest_asset": {"ops": {"allocate": {"config": {"explicit_key": ""}}}}}
        sql.execute(
            "UPDATE dagster_idempotent.tasks SET launch = jsonb_set(launch, '{ops}', %s) WHERE subject_id = 'globex'",
            [json.dumps(ops)],
        )
        _let_time_pass(sql)
        for sensor in ("weekly_digest_task_sensor", "weekly_digest_weekly_digest_asset_task_sensor"):
            assert dagster.sense(sensor).error is None
        again = dagster.runs()[2:]
        assert [(run.job_name == ASSET_JOB, run.tags["dagster/partition"]) for run in again] == [
            (False, f"acme|{WEEK}"),
            (True, f"globex|{WEEK}"),
        ]
        assert {run.status for run in again} == {dg.DagsterRunStatus.SUCCESS}, dagster.failures(again[-1])
    assert metered_provider.charges == 2
