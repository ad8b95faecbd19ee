"""Side effects in real Dagster runs: the user's own transaction, and the asset catalogue (R32, R33)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import dagster as dg
import psycopg
import psycopg.sql
import pytest
from pydantic import BaseModel

from dagster_idempotent import (
    AllocatorResource,
    AssetChannel,
    LedgerResource,
    Pipeline,
    Task,
    allocate_op,
    idempotent_job,
    iso_week_partitions,
    operator_definitions,
)
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine import messages
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.store.listing import TaskRef

WEEK = "2026-08-03"
WEEKS = iso_week_partitions("2026-01-05")
TAKE = "UPDATE accounts SET balance = balance - 10 WHERE name = 'A' RETURNING balance"
GIVE = "UPDATE accounts SET balance = balance + 10 WHERE name = 'B' RETURNING balance"
TAKE_OVER: LiteralString = (
    "UPDATE dagster_idempotent.tasks SET owner = 'another run', fencing_token = fencing_token + 1"
)


class Receipt(BaseModel):
    left: int
    got: int


class Strikes(dg.ConfigurableResource):
    """What is to happen inside and after the transaction, once."""

    inside: str = ""
    after: str = ""

    def strike(self, order: str, ledger: LedgerResource) -> None:
        if order == "fail":
            raise RuntimeError("ordered")
        if order == "take over":
            ledger.database().run(lambda c: c.execute(TAKE_OVER) and None)


def send(ledger: LedgerResource, strikes: Strikes, task: Task | None = None) -> dict[str, int]:
    with ledger.transaction("send", task=task, request={"from": "A", "to": "B", "amount": 10}) as tx:
        if tx.is_first:
            (left,), (got,) = (tx.execute(each).fetchone().values() for each in (TAKE, GIVE))
            strikes.strike(strikes.inside, ledger)
            tx.result = {"left": left, "got": got}
    strikes.strike(strikes.after, ledger)
    return tx.result


def transform(ledger: LedgerResource, strikes: Strikes) -> Receipt:
    return Receipt(**send(ledger, strikes))


def collect(task: Task) -> str:
    return f"order of {task.task_id}"


pipeline = Pipeline("payments", output=Receipt, lease="2s", sender_lease="1s", send_window="900ms")
payments = idempotent_job(pipeline, collect=collect, transform=transform, partitions_def=WEEKS)


@dg.op
def pay(task: str, ledger: LedgerResource, strikes: Strikes) -> dict:
    return send(ledger, strikes, ledger.get_task(pipeline, task))


@dg.job(partitions_def=WEEKS)
def own_graph() -> None:
    pay(allocate_op(pipeline, partitions_def=WEEKS)())


class Digest(BaseModel):
    title: str


def write(task: Task) -> Digest:
    return Digest(title=f"week of {task.task_id}")


catalogue = {"catalogue": AssetChannel("published_digest", metadata=lambda message: {"payload": message.payload})}
digest = idempotent_job(
    Pipeline("digest", output=Digest), collect=collect, transform=write, partitions_def=WEEKS, deliver=catalogue
)
gated = idempotent_job(
    Pipeline("gated", output=Digest, approval="publish"),
    collect=collect,
    transform=write,
    partitions_def=WEEKS,
    deliver=catalogue,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    instance: dg.DagsterInstance
    ledger: LedgerResource
    sql: psycopg.Connection[Any]

    def run(self, job: dg.JobDefinition, **strikes: str) -> tuple[dg.ExecuteInProcessResult, str]:
        defs = dg.Definitions(jobs=[job], resources=self.resources(**strikes))
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=self.instance, partition_key=WEEK, raise_on_error=False
        )
        failures = [event for event in result.all_events if event.is_step_failure]
        return result, "".join(str(event.step_failure_data.error) for event in failures)

    def resources(self, **strikes: str) -> Mapping[str, Any]:
        allocator = AllocatorResource(ledger=self.ledger)
        return {"ledger": self.ledger, "allocator": allocator, "strikes": Strikes(**strikes)}

    def balances(self) -> dict[str, int]:
        return {row["name"]: row["balance"] for row in self.sql.execute("SELECT * FROM accounts")}

    def materialisations(self) -> list[dg.AssetMaterialization]:
        records = self.instance.fetch_materializations(dg.AssetKey("published_digest"), limit=10).records
        return [each.asset_materialization for each in records]


@pytest.fixture
def place(folder: Path, ledger_url: str, sql: psycopg.Connection[Any]) -> Iterator[Place]:
    assert folder.exists()
    sql.execute("CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))")
    sql.execute("INSERT INTO accounts VALUES ('A', 20), ('B', 0)")
    with dg.instance_for_test() as instance:
        yield Place(instance=instance, ledger=LedgerResource(url=ledger_url), sql=sql)


@pytest.mark.parametrize("strike", ["inside", "after"])
def test_a_transfer_in_an_op_that_failed_inside_or_after_its_transaction_is_made_once(
    place: Place, strike: str
) -> None:
    result, said = place.run(payments, **{strike: "fail"})
    assert (result.success, "ordered" in said) == (False, True)
    assert place.balances() == ({"A": 20, "B": 0} if strike == "inside" else {"A": 10, "B": 10})
    for _ in range(2):
        result, said = place.run(payments)
        assert result.success, said
        assert result.output_for_node("persist") == Receipt(left=10, got=10)
        assert place.balances() == {"A": 10, "B": 10}


def test_a_run_that_lost_its_task_inside_the_transaction_changes_nothing(place: Place) -> None:
    result, said = place.run(payments, inside="take over")
    assert not result.success
    assert "lost the lease" in said
    assert "another run" in said
    assert place.balances() == {"A": 20, "B": 0}


def test_an_op_of_ones_own_joins_by_naming_the_task_and_every_run_gets_the_first_result(place: Place) -> None:
    results = [place.run(own_graph)[0].output_for_node("pay") for _ in range(2)]
    assert results == [{"left": 10, "got": 10}] * 2
    assert place.balances() == {"A": 10, "B": 10}


def test_a_transaction_without_a_task_is_refused_outside_of_a_claimed_op(place: Place) -> None:
    @dg.op(name="pay")
    def nowhere(ledger: LedgerResource, strikes: Strikes) -> None:
        send(ledger, strikes)

    @dg.job(partitions_def=WEEKS)
    def elsewhere() -> None:
        nowhere()

    result, said = place.run(elsewhere)
    assert (result.success, "no task is claimed" in said) == (False, True)
    assert place.balances() == {"A": 20, "B": 0}


def test_a_result_is_one_materialisation_at_its_partition_however_often_its_job_runs(place: Place) -> None:
    for _ in range(2):
        result, said = place.run(digest)
        assert result.success, said
    (shown,) = place.materialisations()
    assert shown.partition == WEEK
    assert shown.metadata["dagster-idempotent/task_id"].value == "2026-W32-0"
    assert shown.metadata["payload"].value == '{"title":"week of 2026-W32-0"}'
    (receipt,) = place.sql.execute("SELECT receipt FROM dagster_idempotent.outbox").fetchall()
    assert receipt == {"receipt": f"published_digest [{WEEK}]"}


def test_a_result_that_was_approved_later_is_reported_by_the_sensor(place: Place) -> None:
    result, said = place.run(gated)
    assert result.success, said
    assert place.materialisations() == []
    place.sql.execute(
        "INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, shown_sha256) "
        "VALUES ('gated', '2026-W32-0', 'publish', 'ada', 'read it', repeat('0', 64))"
    )
    sensor = {each.name: each for each in operator_definitions(gated).sensors or []}["idempotency_outbox"]
    assert isinstance(sensor, dg.SensorDefinition)
    for _ in range(2):
        with dg.build_sensor_context(instance=place.instance, resources=dict(place.resources())) as context:
            sensor.evaluate_tick(context)
    (shown,) = place.materialisations()
    assert shown.partition == WEEK


def test_a_message_in_doubt_or_dead_turns_a_check_red_until_somebody_resolves_it(place: Place) -> None:
    assert place.run(digest)[0].success
    sensor = {each.name: each for each in operator_definitions(digest).sensors or []}["idempotency_attention"]
    assert isinstance(sensor, dg.SensorDefinition)

    def red() -> set[str]:
        with dg.build_sensor_context(instance=place.instance, resources=dict(place.resources())) as context:
            events = sensor.evaluate_tick(context).asset_events
        checks = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
        return {check.check_name for check in checks if not check.passed}

    assert red() == set()
    move: LiteralString = "UPDATE dagster_idempotent.outbox SET state = {}, delivered_at = NULL, receipt = NULL"
    place.sql.execute("SET session_replication_role = replica")
    for state, check in (("in_doubt", "nothing_in_doubt"), ("dead", "no_dead_letters")):
        place.sql.execute(psycopg.sql.SQL(move).format(state))
        assert red() == {check}
    ref = TaskRef(pipeline="digest", task_id=TaskId("2026-W32-0"))
    who = Who(actor="ada", reason="ticket 812")
    messages.resolve(
        place.ledger.database(), ref, "catalogue", messages.Found.NOT_DELIVERED, evidence="not there", who=who
    )
    assert red() == set()


def test_a_message_whose_channel_is_gone_from_the_code_is_told_of_by_its_run_and_by_the_sensor(place: Place) -> None:
    assert place.run(digest)[0].success
    place.sql.execute("SET session_replication_role = replica")
    place.sql.execute(
        "UPDATE dagster_idempotent.outbox SET channel = 'site', state = 'ready', delivered_at = NULL, receipt = NULL"
    )
    result, said = place.run(digest)
    assert (result.success, "site (this code has no channel of that name)" in said) == (False, True)
    sensor = {each.name: each for each in operator_definitions(digest).sensors or []}["idempotency_outbox"]
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.build_sensor_context(instance=place.instance, resources=dict(place.resources())) as context:
        told = sensor.evaluate_tick(context).skip_message
    assert told is not None
    assert "1 wait for a channel that this code has not: digest/2026-W32-0 site" in told


def test_an_asset_without_partitions_is_reported_without_one(
    place: Place, make_job: Callable[[AssetChannel], dg.JobDefinition]
) -> None:
    job = make_job(AssetChannel(["site", "digest"], partition=lambda _: None))
    assert place.run(job)[0].success
    (shown,) = place.instance.fetch_materializations(dg.AssetKey(["site", "digest"]), limit=10).records
    assert shown.asset_materialization.partition is None


@pytest.fixture
def make_job() -> Callable[[AssetChannel], dg.JobDefinition]:
    return lambda channel: idempotent_job(
        Pipeline("plain", output=Digest), collect=collect, transform=write, partitions_def=WEEKS, deliver={"c": channel}
    )
