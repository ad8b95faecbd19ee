"""What names no task, or two, is refused before anything is allocated or sent."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

PARTITION = "acme|2026-08-03"
PREFIX = "dagster-idempotent"


@pytest.fixture(autouse=True)
def _nothing_happened(metered_provider: MeteredProvider, ledger: Database) -> object:
    """Check after each test that its refusals left neither a task nor a request."""
    yield
    assert metered_provider.requests() == ()
    assert ledger.run(lambda c: c.execute("SELECT count(*) AS n FROM dagster_idempotent.tasks").fetchone()) == {"n": 0}


def _refusal(dagster: Dagster, run: dg.DagsterRun) -> str:
    assert run.status is dg.DagsterRunStatus.FAILURE
    (text,) = dagster.failures(run)
    return text


def test_a_manual_launch_without_a_key_is_told_the_three_ways_to_give_one(dagster: Dagster) -> None:
    text = _refusal(dagster, dagster.launch("nightly"))
    assert "Launch it on a partition; or let its schedule launch it; or give the allocate op an `explicit_key`" in text
    assert 'ops: {allocate: {config: {explicit_key: "invoice-2026-08"}}}' in text


def test_a_partitioned_job_launched_without_its_partition_is_refused(dagster: Dagster) -> None:
    assert "Nothing in this run says which task" in _refusal(dagster, dagster.launch("blind"))


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        (f"{PREFIX}/scheduled_at", "2026-08-10T00:00:00+00:00"),
        (f"{PREFIX}/scheduled_at", "yesterday"),
        (f"{PREFIX}/subject", "globex"),
        (f"{PREFIX}/version", "2"),
        (f"{PREFIX}/allocation_key", "weekly_digest/2026-08-03T00:00:00Z/subject=globex"),
        (f"{PREFIX}/pipeline", "report"),
        ("dagster/partition", "globex|2026-08-03"),
        ("dagster/partition/subject", "globex"),
    ],
)
def test_a_tag_edited_in_the_launchpad_is_refused(tag: str, value: str, dagster: Dagster) -> None:
    text = _refusal(dagster, dagster.launch("weekly_digest", partition=PARTITION, tags={tag: value}))
    assert tag.removesuffix("/subject") in text
    assert value in text


def test_a_key_that_is_no_partition_is_refused_and_never_taken_for_another_one(dagster: Dagster) -> None:
    """Dagster takes a Tuesday for the week after it."""
    for key in ("2026-08-04", "2026-8-3", "next week", "99999-01-01"):
        text = _refusal(dagster, dagster.launch("blind", tags={"dagster/partition": key}))
        assert f"'{key}' is no partition here: expected the start of a window of '0 0 * * 1'" in text
    for key in ("acme|2026-08-04", "acme|", "2026-08-03", "acme", "acme|globex|2026-08-03"):
        assert "is no partition here" in _refusal(
            dagster, dagster.launch("weekly_digest", tags={"dagster/partition": key})
        )


def test_a_partition_and_an_explicit_key_together_are_refused(dagster: Dagster) -> None:
    config = {"ops": {"allocate": {"config": {"explicit_key": "again"}}}}
    text = _refusal(dagster, dagster.launch("weekly_digest", partition=PARTITION, config=config))
    assert "one of them names the task, not both" in text


def test_a_backfill_of_a_range_in_one_run_is_refused_and_told_the_other_way(dagster: Dagster) -> None:
    dagster.backfill_asset("ranged", ["2026-08-03", "2026-08-10"])
    text = _refusal(dagster, dagster.runs()[-1])
    assert "covers the partitions '2026-08-03' to '2026-08-10' at once" in text
    assert "one run per partition" in text


def test_a_tick_whose_visible_time_was_edited_is_refused_when_its_key_says_otherwise(
    dagster: Dagster, folder: Path
) -> None:
    assert folder.exists()
    edited = {
        f"{PREFIX}/scheduled_at": "2026-08-11T06:00:00+00:00",
        f"{PREFIX}/allocation_key": "nightly/2026-08-10T06:00:00Z",
    }
    assert "allocation_key" in _refusal(dagster, dagster.launch("nightly", tags=edited))
    naive = {f"{PREFIX}/scheduled_at": datetime(2026, 8, 10, tzinfo=UTC).replace(tzinfo=None).isoformat()}
    assert "expected an ISO time with a zone" in _refusal(dagster, dagster.launch("nightly", tags=naive))
