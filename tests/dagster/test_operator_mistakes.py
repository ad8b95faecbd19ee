"""What a person may do wrong in an operator job: it is refused whole, in one sentence, and nothing is written (R39)."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from house import House

from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEKS = ["2026-08-03", "2026-08-10"]
TASK = "2026-W32-0"
ANSWER = json.dumps({"id": "chat-1", "choices": [{"message": {"content": "{}"}}]})
Rows = psycopg.Connection[dict[str, Any]]
TABLES = ("tasks", "submissions", "costs", "budgets", "approvals", "audit", "resends")

MISTAKES: list[tuple[str, dict[str, str], str]] = [
    ("resolve", {"pipeline": "blnd", "outcome": "abandoned"}, "There is no pipeline 'blnd'; there are blind."),
    ("resolve", {"pipeline": "blind", "outcome": "abandoned", "task": "2026-W31-0"}, "the newest are blind/2026"),
    ("resolve", {"pipeline": "blind", "outcome": "abandoned", "cost": "much"}, "cost is 'much'"),
    ("resolve", {"pipeline": "blind", "outcome": "abandoned", "cost_up_to": "1 $"}, "cost_up_to is '1 $'"),
    ("redrive", {"pipeline": "blind", "task": "2026-W31-0"}, "the newest are blind/2026"),
    ("redrive", {"pipeline": "blind", "task": TASK}, "the task is held; only a dead one is redriven"),
    ("discard", {"pipeline": "blind", "task": TASK}, "a discard would hide a charge"),
    ("release", {"pipeline": "blind", "task": TASK}, "not held for its budget"),
    ("release", {"pipeline": "blind", "task": TASK, "task_limit": "5.00 USD"}, "not held for its budget"),
    ("approve", {"pipeline": "blind", "task": TASK, "shown_sha256": "x", "up_to": "5"}, "up_to is '5'"),
    ("prune", {"older_than": "soon"}, "older_than is 'soon'"),
    ("prune", {"older_than": "1d", "pipeline": "blnd"}, "There is no pipeline 'blnd'"),
]


def _everything(sql: Rows) -> dict[str, object]:
    return {
        name: sql.execute(f"SELECT count(*), md5(string_agg(t::text, '' ORDER BY t::text)) FROM {name} t").fetchone()  # noqa: S608 - the names above
        for name in (f"dagster_idempotent.{table}" for table in TABLES)
    }


@pytest.fixture
def bad_night(house: House, metered_provider: MeteredProvider, expire: Callable[[], None]) -> House:
    metered_provider.fault("accept_then_drop", times=len(WEEKS))
    for week in WEEKS:
        assert not house.run("blind", partition=week)
    expire()
    return house


def test_one_answer_is_never_taken_for_that_of_several_calls(bad_night: House, sql: Rows) -> None:
    before = _everything(sql)
    accepted = {"outcome": "accepted", "remote_reference": "job-1"}
    for evidence in ({"outcome": "succeeded", "answer": ANSWER}, accepted):
        (text,) = bad_night.refuse("resolve", pipeline="blind", **evidence)
        assert "belongs to one call, and 2 fit the filter: blind/2026-W32-0 summary, blind/2026-W33-0 summary" in text
        assert _everything(sql) == before
    assert bad_night.decide("resolve", pipeline="blind", period="2026-W32", **accepted)


def test_a_mistake_is_told_in_one_sentence_and_writes_nothing(bad_night: House, sql: Rows) -> None:
    before = _everything(sql)
    for verb, config, says in MISTAKES:
        (text,) = bad_night.refuse(verb, **config)
        first, _, _ = text.partition("\n")
        assert first.startswith("dagster._core.definitions.events.Failure: ")
        assert says in first
        assert _everything(sql) == before


def test_a_limit_in_another_currency_is_refused_before_the_task_goes_on(
    house: House, expire: Callable[[], None], sql: Rows, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("accept_then_drop")
    assert not house.run("blind", partition=WEEKS[0])
    expire()
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.tasks SET held_for = 'budget'")
    sql.execute(
        "UPDATE dagster_idempotent.submissions SET state = 'not_sent', settled_at = now(), settled_by = 'sender'"
    )
    sql.execute("UPDATE dagster_idempotent.pipelines SET currency = 'USD', task_limit = 1")
    before = _everything(sql)
    (text,) = house.refuse("release", pipeline="blind", task=TASK, task_limit="5.00 EUR")
    assert "counts in USD" in text
    assert _everything(sql) == before
    assert house.decide("release", pipeline="blind", task=TASK, task_limit="5.00 USD", dry_run=True)
    assert _everything(sql) == before, "a dry run writes nothing"
    assert house.decide("release", pipeline="blind", task=TASK, task_limit="5.00 USD")


def test_a_dry_run_of_each_decision_writes_nothing(bad_night: House, sql: Rows) -> None:
    sql.execute("SET session_replication_role = replica")
    sql.execute(
        "UPDATE dagster_idempotent.tasks SET status = 'dead', held_for = NULL, owner = NULL, lease_expires_at = NULL "
        "WHERE task_id = '2026-W33-0'"
    )
    before = _everything(sql)
    for verb, config in {
        "resolve": {"pipeline": "blind", "outcome": "abandoned"},
        "redrive": {"pipeline": "blind", "task": "2026-W33-0"},
        "prune": {"older_than": "0s"},
    }.items():
        assert bad_night.decide(verb, dry_run=True, **config)
        assert _everything(sql) == before, verb


def test_a_call_whose_worker_was_killed_turns_a_check_red_and_is_decided_like_any_in_doubt(
    bad_night: House, sql: Rows
) -> None:
    """Nobody came back to mark it: the row still says that it is about to be sent."""
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.submissions SET state = 'intended', error = NULL")
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'running', held_for = NULL, owner = 'a run that is gone'")
    red = bad_night.tick("idempotency_attention")
    (check,) = [each for each in red.asset_events if not each.passed]
    assert check.check_name == "nothing_in_doubt"
    assert check.metadata["found"].value == len(WEEKS)
    assert bad_night.decide("resolve", pipeline="blind", outcome="abandoned")
    assert all(each.passed for each in bad_night.tick("idempotency_attention").asset_events)
