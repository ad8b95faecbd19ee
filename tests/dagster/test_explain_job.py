"""From a run's page a click leads to everything that is known of its task, its raw artifact included (R38)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import psycopg
import pytest
from locations import copied_location
from real_dagster import Dagster

from dagster_idempotent.definitions.explain_job import SHOWN_CHARACTERS
from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEK = "2026-08-03"


@pytest.fixture
def dagster(monkeypatch: pytest.MonkeyPatch, start_dagster: Any, folder: Path) -> Iterator[Dagster]:
    monkeypatch.setenv("TEST_OPERATORS", "1")
    with start_dagster(code=copied_location(folder)) as started:
        yield started


def follow(dagster: Dagster, link: str) -> dict[str, Any]:
    """Open a link, launch the job as it is filled in, and return what its run shows."""
    address = urlsplit(link)
    *_, job, _playground, _setup = address.path.split("/")
    (config,) = parse_qs(address.query)["config"]
    run = dagster.launch(job, config=config)  # pyright: ignore[reportArgumentType] - the page posts text
    assert run.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(run)
    return dagster.metadata(run)["explain"]


def test_artifact_and_output_of_a_task_are_one_click_away_from_its_run(
    dagster: Dagster, metered_provider: MeteredProvider
) -> None:
    ops = dagster.metadata(dagster.launch("weekly_digest", partition=f"acme|{WEEK}"))
    collected = ops["collect"]
    accepted = follow(dagster, ops["persist"]["output"])
    assert '"highlights"' in accepted["output"]
    assert accepted["shown_sha256"] == ops["persist"]["output_sha256"]
    shown = follow(dagster, collected["artifact"])
    assert shown["raw"].strip() == "documents of 2026-W32-0"
    (artifact,) = [record.data for record in shown["artifacts"].records]
    assert (artifact["name"], artifact["sha256"], artifact["where"]) == ("raw", collected["sha256"], "the ledger")
    (call,) = [record.data for record in shown["calls"].records]
    (line,) = metered_provider.bill().lines
    assert (call["call"], call["state"], call["remote_reference"]) == ("summary", "succeeded", line.request_id)
    assert "weekly_digest/2026-W32-0 is completed" in shown["explanation"]
    assert shown["shown_sha256"] == collected["sha256"]


def test_a_failed_run_links_to_what_is_known_of_its_task(dagster: Dagster, metered_provider: MeteredProvider) -> None:
    metered_provider.fault("accept_then_drop")
    run = dagster.launch("blind", partition=WEEK)
    shown = follow(dagster, dagster.failure_metadata(run)["see"])
    assert "only evidence settles that" in shown["explanation"]
    assert "dagster-idempotent calls" in shown["explanation"], "the next steps are named"
    assert "raw" not in shown, "a payload is shown only where somebody asks for it"
    assert "the provider has the answer" in shown["decide"]


def test_nothing_is_found_under_a_name_that_is_wrong(dagster: Dagster) -> None:
    config = {"ops": {"explain": {"config": {"task": "2031-W01-0"}}}}
    run = dagster.launch("idempotency_explain", config=config)
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert "2031-W01-0" in dagster.failures(run)[0]


def test_a_long_artifact_is_shown_in_part_and_says_so(
    dagster: Dagster, sql: psycopg.Connection[dict[str, Any]]
) -> None:
    collected = dagster.metadata(dagster.launch("weekly_digest", partition=f"acme|{WEEK}"))["collect"]
    sql.execute("SET session_replication_role = replica")
    sql.execute(
        "UPDATE dagster_idempotent.artifacts SET body = b, size = length(b), sha256 = encode(sha256(b), 'hex') "
        "FROM (SELECT %s::bytea AS b) x",
        [b"x" * (SHOWN_CHARACTERS + 5)],
    )
    shown = follow(dagster, collected["artifact"])["raw"]
    assert shown.endswith("… 5 characters more")
    assert shown.count("x") == SHOWN_CHARACTERS
