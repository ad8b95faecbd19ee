"""A run that waits for a person carries a link for each decision; only actor and reason are typed there (R39)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import psycopg
import pytest
from locations import copied_location
from real_dagster import Dagster

from dagster_idempotent.definitions.operator_links import Choice, Place
from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEK = "2026-08-03"
LAUNCHPAD = "/locations/first/jobs/idempotency_resolve/playground/setup"
Rows = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def dagster(monkeypatch: pytest.MonkeyPatch, start_dagster: Any, folder: Path) -> Iterator[Dagster]:
    monkeypatch.setenv("TEST_OPERATORS", "1")
    with start_dagster(code=copied_location(folder)) as started:
        yield started


def follow(dagster: Dagster, link: str) -> dg.DagsterRun:
    """Open a link, type the two things that are left, and launch."""
    address = urlsplit(link)
    (config,) = parse_qs(address.query)["config"]
    *_, job, _playground, _setup = address.path.split("/")
    # Nothing is decided by looking.
    assert config.count('""') == (0 if job == "idempotency_explain" else 2) + config.count('answer: ""')
    typed = config.replace('actor: ""', "actor: ada").replace('reason: ""', "reason: ticket 12")
    return dagster.launch(job, config=typed)  # pyright: ignore[reportArgumentType] - the page posts text


def decisions(dagster: Dagster, run: dg.DagsterRun) -> dict[str, str]:
    shown = dagster.failure_metadata(run).get("decide", "")
    return dict(re.findall(r"^- \[(.*)\]\((.*)\)$", shown, flags=re.MULTILINE))


def let_time_pass(sql: Rows) -> None:
    sql.execute("SET session_replication_role = replica")
    sql.execute(
        "UPDATE dagster_idempotent.submissions SET settle_delay = '0', sender_expires_at = now() - interval '1 day'"
    )


def test_a_call_in_doubt_is_settled_from_the_link_of_its_run(
    dagster: Dagster, sql: Rows, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("accept_then_drop")
    run = dagster.launch("blind", partition=WEEK)
    offered = decisions(dagster, run)
    assert list(offered) == [
        "the provider has the answer",
        "the provider never had the request",
        "give up on the answer",
        "send again, which may charge twice",
    ]
    assert {urlsplit(link).path for link in offered.values()} == {LAUNCHPAD}
    assert dagster.failure_metadata(run)["explain"] == "dagster-idempotent explain blind/2026-W32-0"
    # The run that meets the hold offers the same.
    assert decisions(dagster, dagster.reexecute(run, "FROM_FAILURE")) == offered

    let_time_pass(sql)
    assert follow(dagster, offered["send again, which may charge twice"]).status is dg.DagsterRunStatus.SUCCESS
    again = dagster.reexecute(run, "FROM_FAILURE")
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert metered_provider.charges == 2
    decided = sql.execute("SELECT reason FROM dagster_idempotent.audit WHERE actor = 'ada'").fetchall()
    assert {row["reason"] for row in decided} == {"ticket 12"}


def test_a_call_that_was_given_up_on_is_sent_again_from_the_link_of_the_run_that_met_it(
    dagster: Dagster, sql: Rows, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("accept_then_drop")
    run = dagster.launch("blind", partition=WEEK)
    let_time_pass(sql)
    given_up = follow(dagster, decisions(dagster, run)["give up on the answer"])
    assert given_up.status is dg.DagsterRunStatus.SUCCESS
    met = dagster.reexecute(run, "FROM_FAILURE")
    offered = decisions(dagster, met)
    assert list(offered) == ["send again, which may charge twice"]
    again = follow(dagster, offered["send again, which may charge twice"])
    assert again.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(again)
    assert sql.execute("SELECT count(*) AS n FROM dagster_idempotent.resends").fetchone() == {"n": 1}
    assert metered_provider.charges == 1


def test_a_link_whose_actor_was_not_typed_decides_nothing(dagster: Dagster, metered_provider: MeteredProvider) -> None:
    metered_provider.fault("accept_then_drop")
    offered = decisions(dagster, dagster.launch("blind", partition=WEEK))
    (config,) = parse_qs(urlsplit(offered["give up on the answer"]).query)["config"]
    refused = dagster.launch("idempotency_resolve", config=config)  # pyright: ignore[reportArgumentType]
    assert refused.status is dg.DagsterRunStatus.FAILURE
    assert "Empty: actor, reason. Nothing was decided." in dagster.failures(refused)[0]


def test_a_dead_task_is_redriven_from_the_link_of_the_run_that_met_it(
    dagster: Dagster, sql: Rows, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("answer_with", times=2, content="no json")
    dead = dagster.launch("weekly_digest", partition=f"acme|{WEEK}")
    met = dagster.reexecute(dead, "FROM_FAILURE")
    offered = decisions(dagster, met)
    assert list(offered) == ["give its attempts back", "end it for good"]
    assert follow(dagster, offered["give its attempts back"]).status is dg.DagsterRunStatus.SUCCESS
    assert sql.execute("SELECT status FROM dagster_idempotent.tasks").fetchall() == [{"status": "pending"}]


def test_a_code_location_without_operator_jobs_names_the_command_and_links_to_nothing_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, start_dagster: Any, metered_provider: MeteredProvider
) -> None:
    monkeypatch.setattr("dagster_idempotent.definitions.declared._operator_jobs", set())
    with start_dagster() as dagster:
        metered_provider.fault("accept_then_drop")
        run = dagster.launch("blind", partition=WEEK)
        assert decisions(dagster, run) == {}
        assert dagster.failure_metadata(run)["explain"].startswith("dagster-idempotent explain")


@pytest.mark.parametrize(
    ("place", "starts"),
    [
        (Place(location="a b/c"), "/locations/a%20b%2Fc/jobs/idempotency_redrive/playground/setup?config="),
        (Place(location="here", repository="mine"), "/locations/mine%40here/jobs/"),
        (Place(location="here", webserver="https://dagster.example/x/"), "https://dagster.example/x/locations/here/"),
    ],
)
def test_a_link_leads_to_the_code_location_whatever_it_is_called(place: Place, starts: str) -> None:
    choice = Choice(label="", verb="redrive", config={"pipeline": "p", "task": 'a"b: #c'})
    link = place.link(choice)
    assert link.startswith(starts)
    assert parse_qs(urlsplit(link).query)["config"] == [choice.yaml]
    assert r'task: "a\"b: #c"' in choice.yaml


@pytest.mark.parametrize(
    ("held_for", "labels"),
    [
        ("budget", ["there is room in the budget"]),
        ("gate", ["see what the hash stands for", "approve what the hash stands for"]),
    ],
)
def test_a_task_held_for_a_person_offers_what_lets_it_go_on(
    held_for: str, labels: list[str], dagster: Dagster, sql: Rows, folder: Path
) -> None:
    (folder / "after_payment_blind").touch()
    failed = dagster.launch("blind", partition=WEEK)
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'held', held_for = %s", [held_for])
    sql.execute("UPDATE dagster_idempotent.pipelines SET gate = %s", ["spend" if held_for == "gate" else "none"])
    offered = decisions(dagster, dagster.reexecute(failed, "FROM_FAILURE"))
    assert list(offered) == [*labels, "end it for good"]
    for label in labels:
        decided = follow(dagster, offered[label])
        assert decided.status is dg.DagsterRunStatus.SUCCESS, dagster.failures(decided)
    (row,) = sql.execute("SELECT DISTINCT actor, reason FROM dagster_idempotent.audit WHERE actor = 'ada'").fetchall()
    assert row["reason"] == "ticket 12"
