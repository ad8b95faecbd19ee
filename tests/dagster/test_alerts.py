"""The hook for alerts: each thing once, a bad night in one call, and a broken hook loses nothing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import dagster as dg
import psycopg
import pytest
from locations import loaded_anew

from dagster_idempotent import Attention, AttentionKind, operator_definitions
from dagster_idempotent.definitions.alerts import SEEN, alert_sensor
from dagster_idempotent.definitions.sensors import attention_sensor
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.store.database import Database

Rows = psycopg.Connection[dict[str, Any]]
# The lists below are made in one statement each.
TASKS = """
INSERT INTO dagster_idempotent.tasks
    (pipeline, task_id, period_id, sequence, origin, status, held_for, owner, lease_expires_at, error, launch)
SELECT 'blind', '2026-W32-' || n, '2026-W32', n, 'unrelated', %(status)s, %(held_for)s,
    CASE WHEN %(status)s = 'running' THEN 'a run' END, clock_timestamp() - interval '1 hour', 'no answer',
    '{"job": "blind", "partition_key": "2026-08-03"}'
FROM generate_series(%(first)s::int, %(last)s::int) n
"""


class Told:
    """An alert that keeps what it was told, and may be broken."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.broken = False

    def __call__(self, new: Sequence[Attention]) -> None:
        if self.broken:
            raise ConnectionError("the pager is away")
        self.calls.append([each.name for each in new])


@pytest.fixture
def code(folder: Path) -> Any:
    return loaded_anew(folder)


@pytest.fixture
def tick(code: Any, ledger: Database) -> Iterator[Any]:
    Allocator(ledger).register(code.paid("blind"))
    repository = code.defs.get_repository_def()
    with dg.instance_for_test() as instance:

        def evaluate(sensor: dg.SensorDefinition, cursor: str | None = None) -> Any:
            with dg.build_sensor_context(
                instance=instance, cursor=cursor, resources=code.defs.resources, repository_def=repository
            ) as context:
                return sensor.evaluate_tick(context)

        yield evaluate


def add(sql: Rows, status: str, first: int, last: int, held_for: str | None = None) -> None:
    sql.execute(TASKS, {"status": status, "held_for": held_for, "first": first, "last": last})


def test_each_thing_is_told_once_while_it_waits_and_again_when_it_comes_back(tick: Any, sql: Rows) -> None:
    told = Told()
    sensor = alert_sensor(told)
    cursor = tick(sensor).cursor
    assert told.calls == []
    add(sql, "dead", 1, 3)
    add(sql, "held", 4, 4, held_for="gate")
    cursor = tick(sensor, cursor).cursor
    assert [len(call) for call in told.calls] == [4], "a bad night is one call"
    assert "held blind/2026-W32-4" in told.calls[0]
    cursor = tick(sensor, cursor).cursor
    add(sql, "dead", 5, 5)
    cursor = tick(sensor, cursor).cursor
    assert told.calls[1:] == [["dead blind/2026-W32-5"]]

    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'pending' WHERE task_id = '2026-W32-5'")
    cursor = tick(sensor, cursor).cursor
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'dead' WHERE task_id = '2026-W32-5'")
    tick(sensor, cursor)
    assert told.calls[2:] == [["dead blind/2026-W32-5"]]


@pytest.mark.parametrize(("state", "said"), [("in_doubt", "is in doubt"), ("dead", "its attempts are spent")])
def test_a_message_that_nobody_delivers_is_told_with_its_channel(state: str, said: str, tick: Any, sql: Rows) -> None:
    told: list[Attention] = []
    add(sql, "dead", 1, 1)
    sql.execute("SET session_replication_role = replica")
    sql.execute(
        "INSERT INTO dagster_idempotent.outbox (pipeline, task_id, channel, payload, state, deduplicates, error) "
        "VALUES ('blind', '2026-W32-1', 'email', '{}', %s, false, 'the post office is closed')",
        [state],
    )
    tick(alert_sensor(told.extend))
    (message,) = [each for each in told if each.kind is AttentionKind.MESSAGE]
    assert (message.name, message.channel) == ("message blind/2026-W32-1 email", "email")
    assert said in message.text
    assert "the post office is closed" in message.text


def test_a_further_charge_is_told_until_somebody_has_seen_to_it(tick: Any, sql: Rows) -> None:
    told = Told()
    sensor = alert_sensor(told)
    add(sql, "running", 1, 1)
    sql.execute("SET session_replication_role = replica")
    seen = (
        "INSERT INTO dagster_idempotent.sightings "
        "(pipeline, task_id, call_key, submission, kind, remote_ref, described) "
        "VALUES ('blind', '2026-W32-1', 'summary', 1, %s, 'req-2', 'beside req-1')"
    )
    sql.execute(seen, ["charged_again"])
    cursor = tick(sensor).cursor
    assert told.calls == [["charged_twice blind/2026-W32-1 summary"]]
    sql.execute(seen, ["acknowledged"])
    assert json.loads(tick(sensor, cursor).cursor) == []


def test_what_a_broken_hook_was_not_told_is_told_by_the_next_tick(tick: Any, sql: Rows) -> None:
    told = Told()
    sensor = alert_sensor(told)
    add(sql, "dead", 1, 2)
    told.broken = True
    with pytest.raises(ConnectionError, match="the pager is away"):
        tick(sensor)
    told.broken = False
    tick(sensor)
    assert [len(call) for call in told.calls] == [2]


@pytest.mark.parametrize("cursor", ["a person typed this", "5", "{}", "null", '[1, "a"]'])
def test_a_cursor_that_is_none_tells_everything_again(cursor: str, tick: Any, sql: Rows) -> None:
    told = Told()
    add(sql, "dead", 1, 1)
    tick(alert_sensor(told), tick(alert_sensor(told), cursor).cursor)
    assert told.calls == [["dead blind/2026-W32-1"]]


def test_more_than_a_tick_looks_at_is_told_in_parts_and_never_twice(tick: Any, sql: Rows) -> None:
    told = Told()
    sensor = alert_sensor(told)
    add(sql, "dead", 1, SEEN + 10)
    cursor = tick(sensor).cursor
    assert len(json.loads(cursor)) == SEEN
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'pending' WHERE sequence > %s", [SEEN])
    tick(sensor, cursor)
    names = [name for call in told.calls for name in call]
    assert len(names) == len(set(names)) == SEEN + 10


def test_what_newer_things_pushed_out_of_sight_is_not_told_again_when_it_comes_back_into_sight(
    tick: Any, sql: Rows
) -> None:
    told = Told()
    sensor = alert_sensor(told)
    add(sql, "dead", 1, SEEN)
    cursor = tick(sensor).cursor
    add(sql, "dead", SEEN + 1, SEEN + 10)
    cursor = tick(sensor, cursor).cursor
    assert [len(call) for call in told.calls] == [SEEN, 10]
    sql.execute("UPDATE dagster_idempotent.tasks SET status = 'pending' WHERE sequence > %s", [SEEN])
    tick(sensor, cursor)
    assert [len(call) for call in told.calls] == [SEEN, 10]


def test_a_code_location_has_an_alert_sensor_where_it_gives_an_alert(code: Any) -> None:
    def names(definitions: dg.Definitions) -> set[str]:
        return {sensor.name for sensor in definitions.sensors or ()}

    assert "idempotency_alerts" in names(operator_definitions(code.blind_job, alert=Told()))
    assert "idempotency_alerts" not in names(operator_definitions(code.blind_job))


def test_5000_open_tasks_do_not_stall_the_sensors(tick: Any, sql: Rows, code: Any) -> None:
    add(sql, "running", 1, 5000)
    add(sql, "dead", 5001, 5100)
    sensors = operator_definitions(code.blind_job, alert=Told()).sensors or ()
    started = monotonic()
    for sensor in sensors:
        assert isinstance(sensor, dg.SensorDefinition)
        result = tick(sensor)
        if sensor.name == "blind_task_sensor":
            assert 0 < len(result.run_requests) <= 20, "bounded, so that the queue is not flooded"
    # The daemon gives a sensor 60 s; this takes well below one on a quiet machine.
    assert monotonic() - started < 20


def test_a_check_counts_all_that_it_lists_the_first_of(tick: Any, sql: Rows) -> None:
    add(sql, "dead", 1, 250)
    red = tick(attention_sensor())
    (check,) = [each for each in red.asset_events if not each.passed]
    shown = {name: value.value for name, value in check.metadata.items()}
    assert (shown["found"], len(shown["rows"].records), shown["not_listed"]) == (250, 100, 150)


@pytest.mark.parametrize(
    "cursor", ["a person typed this", "", "{} 2026-01-01T00:00:00", "{} 2026-01-01T00:00:00+00:00"]
)
def test_what_has_not_changed_is_reported_again_after_a_while(cursor: str, tick: Any) -> None:
    """The asset's own run, or a person, may have put another state in its place."""
    first = tick(attention_sensor())
    assert not tick(attention_sensor(), first.cursor).asset_events
    assert tick(attention_sensor(), cursor.format(first.cursor.partition(" ")[0])).asset_events
