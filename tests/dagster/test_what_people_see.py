"""Metadata and tags for people (R38), and no secret anywhere that Dagster keeps."""

from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

PARTITION = "acme|2026-08-03"
OPS = ("allocate", "collect", "transform", "persist", "deliver")


def test_every_op_shows_its_task_and_where_it_stands(dagster: Dagster) -> None:
    shown = dagster.metadata(dagster.launch("weekly_digest", partition=PARTITION))
    assert set(shown) == set(OPS)
    for op in OPS:
        assert shown[op]["task_id"] == "2026-W32-0"
        assert shown[op]["pipeline"] == "weekly_digest"
        assert shown[op]["allocation_key"] == "weekly_digest/2026-08-03T00:00:00Z/subject=acme"
    assert [shown[op]["status"] for op in OPS] == ["pending", "running", "running", "completed", "completed"]
    assert [shown[op]["attempt"] for op in OPS] == [0, 1, 1, 1, 1]


def test_a_paid_call_shows_its_cost_and_reference_and_its_replay_shows_that_nothing_was_paid(
    dagster: Dagster, folder: Path, metered_provider: MeteredProvider
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    first = dagster.launch("weekly_digest", partition=PARTITION)
    shown = dagster.metadata(dagster.reexecute(first, "FROM_FAILURE"))["transform"]
    (line,) = metered_provider.bill().lines
    assert (shown["calls_paid_now"], shown["calls_replayed"], shown["attempt"]) == (0, 1, 2)
    # Of an event the page shows the first rows; the rest is a click away.
    assert list(shown)[:3] == ["task_id", "calls_paid_now", "calls_replayed"]
    (call,) = [record.data for record in shown["calls"].records]
    assert call["call"] == "summary"
    assert call["paid_or_replayed"] == "replayed"
    assert call["remote_reference"] == line.request_id
    assert call["cost"].endswith(" USD")
    assert shown["cost_paid_now_USD"] == 0
    assert shown["cost_USD"] > 0


def test_a_run_is_found_by_its_task_period_and_key(dagster: Dagster) -> None:
    run = dagster.launch("weekly_digest", partition=PARTITION)
    for tag, value in {
        "task_id": "2026-W32-0",
        "period": "2026-W32",
        "pipeline": "weekly_digest",
        "allocation_key": "weekly_digest/2026-08-03T00:00:00Z/subject=acme",
        "subject": "acme",
    }.items():
        found = dagster.instance.get_runs(dg.RunsFilter(tags={f"dagster-idempotent/{tag}": value}))
        assert [each.run_id for each in found] == [run.run_id]


def test_a_failed_run_shows_the_facts_of_its_error(dagster: Dagster, metered_provider: MeteredProvider) -> None:
    metered_provider.fault("accept_then_drop")
    run = dagster.launch("blind", partition="2026-08-03")
    facts = dagster.failure_metadata(run)
    assert facts["error"] == "CallInDoubt"
    assert (facts["task_id"], facts["call_key"], facts["submission"]) == ("2026-W32-0", "summary", "1")


@pytest.fixture
def secrets(ledger_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> list[str]:
    """Give the runs a ledger URL with a password; list what must not be written anywhere."""
    assert folder.exists()
    password = "pass-of-the-ledger"  # noqa: S105 - the server asks for none
    monkeypatch.setenv("TEST_LEDGER_URL", ledger_url.replace("postgres@", f"postgres:{password}@"))
    return [secret, password]


@pytest.mark.parametrize(
    "fault",
    [
        None,
        "accept_then_drop",
        "status",
        *(pytest.param(each, marks=pytest.mark.explore) for each in ("garbage", "redirect", "half_answer")),
    ],
)
def test_no_secret_is_in_what_dagster_stores_or_the_channels_write(
    fault: str | None, secrets: list[str], dagster: Dagster, folder: Path, metered_provider: MeteredProvider
) -> None:
    if fault is not None:
        metered_provider.fault(fault)
    run = dagster.launch("blind", partition="2026-08-03")
    dagster.reexecute(run, "FROM_FAILURE" if run.status is dg.DagsterRunStatus.FAILURE else "ALL_STEPS")
    dagster.materialise("report", "2026-08-03")
    assert metered_provider.requests()
    files = [*folder.with_name("home").rglob("*"), *folder.rglob("*")]
    places = [path for path in files if path.is_file()]
    assert any(path.suffix == ".db" for path in places)
    for path in places:
        for word in secrets:
            assert word.encode() not in path.read_bytes(), path


def test_no_secret_is_in_what_dagster_stores_when_the_ledger_is_away(
    dagster: Dagster, folder: Path, secrets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"postgresql://postgres:{secrets[1]}@127.0.0.1:1/nowhere"
    monkeypatch.setenv("TEST_LEDGER_URL", nobody)
    run = dagster.launch("weekly_digest", partition=PARTITION)
    (text,) = dagster.failures(run)
    assert "PostgreSQL at 127.0.0.1/nowhere did not serve us within" in text
    for path in folder.with_name("home").rglob("*"):
        assert not path.is_file() or secrets[1].encode() not in path.read_bytes(), path
