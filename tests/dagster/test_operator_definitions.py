"""The operator's side in Dagster: what turns red, what is launched by itself, what a person decides in a job."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
from house import House

from dagster_idempotent import Attention, AttentionKind
from dagster_idempotent.definitions.alerts import alert_sensor
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

WEEK = "2026-08-03"
TASK = TaskId("2026-W32-0")
ANSWER = {"id": "chat-1", "choices": [{"message": {"content": json.dumps({"title": "found", "highlights": []})}}]}


def _checks(tick: Any) -> dict[str, bool]:
    return {event.check_name: event.passed for event in tick.asset_events}


def test_attention_is_red_while_a_call_is_in_doubt_and_green_after_a_decision(
    house: House, metered_provider: MeteredProvider, ledger: Database, expire: Callable[[], None]
) -> None:
    metered_provider.fault("accept_then_drop")
    assert not house.run("blind", partition=WEEK)
    red = house.tick("idempotency_attention")
    others = dict.fromkeys(("no_dead_letters", "cost_within_budget", "nothing_charged_twice", "no_job_overdue"), True)
    assert _checks(red) == {"nothing_in_doubt": False, **others}
    # The same state is reported once, not at every tick.
    assert not house.tick("idempotency_attention", red.cursor).asset_events

    expire()
    assert house.decide("resolve", pipeline="blind", outcome="succeeded", answer=json.dumps(ANSWER), cost="0.02 USD")
    assert _checks(house.tick("idempotency_attention", red.cursor))["nothing_in_doubt"]

    (request,) = house.tick("blind_task_sensor").run_requests
    assert request.partition_key == WEEK
    assert house.run("blind", partition=WEEK, **request.tags)
    assert get_task(ledger, "blind", TASK).output == '{"title":"found","highlights":[]}'
    assert len(metered_provider.requests()) == 1


def test_an_overdue_job_is_a_warning_until_its_result_is_there(
    house: House, metered_provider: MeteredProvider, ledger: Database
) -> None:
    metered_provider.fault("accept_then_drop")
    assert not house.run("blind", partition=WEEK)
    state = "UPDATE dagster_idempotent.submissions SET state = %s, settled_by = 'operator', settled_at = now() - %s"
    with psycopg.connect(ledger.url, autocommit=True) as connection:
        connection.execute(f"{state}, remote_ref = 'job-7'", ["accepted", timedelta(hours=23)])
        first = house.tick("idempotency_attention")
        assert _checks(first)["no_job_overdue"]
        connection.execute(state, ["accepted", timedelta(hours=25)])
    told: list[Attention] = []
    late = house.tick("idempotency_attention", first.cursor)
    (found,) = [each for each in late.asset_events if each.check_name == "no_job_overdue"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "job-7" in str(found.metadata["rows"].value)
    assert "expected_within" in str(found.metadata["what_to_do"].value)
    # The same is told once, by the tick and by the hook for alerts.
    assert not house.tick("idempotency_attention", late.cursor).asset_events
    with dg.build_sensor_context(instance=house.instance, resources=house.resources) as context:
        alert_sensor(told.extend).evaluate_tick(context)
    assert [(each.kind, "accepted call 'summary' as job-7" in each.text) for each in told if each.call_key] == [
        (AttentionKind.OVERDUE, True)
    ]


def test_a_whole_bad_night_is_one_decision(
    house: House, metered_provider: MeteredProvider, ledger: Database, expire: Callable[[], None]
) -> None:
    weeks = ["2026-08-03", "2026-08-10", "2026-08-17"]
    metered_provider.fault("accept_then_drop", times=len(weeks))
    for week in weeks:
        assert not house.run("blind", partition=week)
    expire()
    assert not house.decide("resolve", pipeline="blind", outcome="abandoned", cost_up_to="0.01 USD"), "none is priced"
    assert house.decide("resolve", pipeline="blind", outcome="abandoned", dry_run=True)
    assert not _checks(house.tick("idempotency_attention"))["nothing_in_doubt"]
    assert house.decide("resolve", pipeline="blind", outcome="resend")
    assert _checks(house.tick("idempotency_attention"))["nothing_in_doubt"]
    for week in weeks:
        assert house.run("blind", partition=week)
    assert metered_provider.charges == 2 * len(weeks)
    with psycopg.connect(ledger.url) as connection:
        rows = connection.execute("SELECT DISTINCT actor, reason FROM dagster_idempotent.audit WHERE actor = 'ada'")
        assert rows.fetchall() == [("ada", "ticket 12")]


def test_the_task_sensor_launches_a_failed_task_once_for_each_attempt(
    house: House, folder: Path, metered_provider: MeteredProvider, expire: Callable[[], None]
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    assert not house.run("weekly_digest", partition=f"acme|{WEEK}")
    expire()
    first, second = (house.tick("weekly_digest_task_sensor").run_requests for _ in range(2))
    assert (
        [request.run_key for request in first] == [request.run_key for request in second] == [f"weekly_digest/{TASK}:1"]
    )
    assert house.run("weekly_digest", partition=first[0].partition_key, **first[0].tags)
    assert not house.tick("weekly_digest_task_sensor").run_requests
    assert metered_provider.charges == 1


def test_a_dead_letter_turns_a_check_red_until_somebody_redrives_or_discards_it(
    house: House, folder: Path, metered_provider: MeteredProvider, ledger: Database, expire: Callable[[], None]
) -> None:
    for _ in range(5):
        (folder / "after_payment_weekly_digest").touch()
        assert not house.run("weekly_digest", partition=f"acme|{WEEK}")
        expire()
    assert not house.tick("weekly_digest_task_sensor").run_requests
    assert get_task(ledger, "weekly_digest", TASK).status is TaskStatus.DEAD
    assert not _checks(house.tick("idempotency_attention"))["no_dead_letters"]
    assert not house.run("weekly_digest", partition=f"acme|{WEEK}")
    assert house.run("weekly_digest", partition=f"globex|{WEEK}"), "a dead letter delays nobody"

    assert house.decide("redrive", pipeline="weekly_digest", task=TASK)
    assert _checks(house.tick("idempotency_attention"))["no_dead_letters"]
    assert house.run("weekly_digest", partition=f"acme|{WEEK}")
    assert metered_provider.charges == 2
    assert not house.decide("discard", pipeline="weekly_digest", task=TASK), "it is completed"


def test_the_ledger_asset_counts_and_carries_the_checks(house: House, metered_provider: MeteredProvider) -> None:
    for _ in range(2):
        assert house.run("weekly_digest", partition=f"acme|{WEEK}")
    assets = [each for each in house.definitions.assets or [] if isinstance(each, dg.AssetsDefinition)]
    (asset,) = [each for each in assets if each.key == dg.AssetKey("idempotency_ledger")]
    result = dg.materialize([asset], instance=house.instance, resources=house.resources)
    (materialization,) = result.asset_materializations_for_node("idempotency_ledger")
    assert materialization.metadata["tasks"].value == metered_provider.charges == 1
    assert materialization.metadata["runs_beyond_the_first"].value == 1
    assert materialization.metadata["replays_saved"].value == 1
    assert materialization.metadata["saved_USD"].value == materialization.metadata["cost_USD"].value > 0
    (period,) = materialization.metadata["cost_by_period"].value.records
    assert (period.data["name"], period.data["currency"]) == ("weekly_digest/2026-W32", "USD")
    assert (period.data["charges"], period.data["replays"]) == ("1", "1")
    assert period.data["saved"] == period.data["settled"]
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == dict.fromkeys(
        [
            "nothing_in_doubt",
            "no_dead_letters",
            "cost_within_budget",
            "nothing_charged_twice",
            "no_job_overdue",
            "one_accepted_result_per_key",
        ],
        True,
    )


def test_sensors_that_spend_start_stopped_and_the_others_running(house: House) -> None:
    states = {sensor.name: sensor.default_status.value for sensor in house.repository.sensor_defs}
    assert states == {
        "blind_task_sensor": "STOPPED",
        "weekly_digest_task_sensor": "STOPPED",
        "report_task_sensor": "STOPPED",
        "idempotency_outbox": "RUNNING",
        "idempotency_attention": "RUNNING",
    }
