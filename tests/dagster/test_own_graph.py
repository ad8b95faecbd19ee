"""A graph of one's own, subjects that come and go, dimensions with other names."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import CODE, Dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

MONDAY = datetime(2026, 8, 10, 9, tzinfo=UTC)
ALLOCATION_KEY = "dagster-idempotent/allocation_key"


@pytest.fixture
def own(start_dagster: Callable[..., AbstractContextManager[Dagster]]) -> Iterator[Dagster]:
    with start_dagster(code=CODE.with_name("own_location.py")) as dagster:
        yield dagster


def test_a_graph_of_ones_own_pays_each_of_its_calls_once(
    own: Dagster, folder: Path, metered_provider: MeteredProvider
) -> None:
    first = own.launch("episodes_job", partition="2026-08-03")
    assert first.status is dg.DagsterRunStatus.SUCCESS, own.failures(first)
    assert [record.data["call"] for record in own.metadata(first)["shoot"]["calls"].records] == [
        "shot-00",
        "shot-01",
        "shot-02",
    ]
    assert metered_provider.charges == 3
    again = own.launch("episodes_job", partition="2026-08-03")
    assert again.status is dg.DagsterRunStatus.SUCCESS, own.failures(again)
    assert own.metadata(again)["shoot"]["calls_replayed"] == 3
    assert len(list(folder.rglob("*.site.json"))) <= 1

    # A completed task is no place for more work.
    config = {"ops": {"shoot": {"config": {"shots": 5}}}}
    more = own.launch("episodes_job", partition="2026-08-03", config=config)
    assert "is completed, and shoot asked for a call that it never made" in own.failures(more)[0]
    assert metered_provider.charges == 3


def test_an_answer_that_no_try_is_left_for_ends_the_op_by_name(own: Dagster, metered_provider: MeteredProvider) -> None:
    metered_provider.fault("answer_with", body_contains="a plot 2", content="no shot")
    first = own.launch("episodes_job", partition="2026-08-03")
    assert first.status is dg.DagsterRunStatus.FAILURE
    assert metered_provider.charges == 3
    assert "No answer of call 'shot-02'" in own.failures(first)[0]


def test_each_dynamic_subject_gets_a_request_of_its_own_and_a_bad_name_stops_nobody_else(
    own: Dagster, metered_provider: MeteredProvider
) -> None:
    own.instance.add_dynamic_partitions("tenants", ["acme", " padded", "caf\u00e9"])
    own.tick("dynamic_schedule", MONDAY)
    ended = {run.tags["dagster/partition/subject"]: run.status for run in own.runs()}
    assert ended == {
        "acme": dg.DagsterRunStatus.SUCCESS,
        " padded": dg.DagsterRunStatus.FAILURE,
        "caf\u00e9": dg.DagsterRunStatus.SUCCESS,
    }
    (refused,) = [run for run in own.runs() if run.status is dg.DagsterRunStatus.FAILURE]
    assert "no whitespace at its ends" in own.failures(refused)[0]
    assert metered_provider.charges == 2


def test_a_dynamic_subject_that_no_partition_key_can_carry_does_not_lose_the_tick(
    own: Dagster, metered_provider: MeteredProvider
) -> None:
    own.instance.add_dynamic_partitions("tenants", ["acme", "a|b"])
    own.tick("dynamic_schedule", MONDAY)
    (run,) = own.runs()
    assert run.tags[ALLOCATION_KEY] == "dynamic/2026-08-03T00:00:00Z/subject=acme"
    assert metered_provider.charges == 1


def test_dimensions_may_have_any_names_and_subjects_any_letters(
    own: Dagster, metered_provider: MeteredProvider
) -> None:
    own.tick("named_schedule", MONDAY)
    for run in own.runs():
        own.reexecute(run, "ALL_STEPS")
    assert {run.status for run in own.runs()} == {dg.DagsterRunStatus.SUCCESS}
    assert {run.tags[ALLOCATION_KEY] for run in own.runs()} == {
        "named/2026-08-03T00:00:00Z/subject=Smith%20%26%20Sons%2FEU",
        "named/2026-08-03T00:00:00Z/subject=caf\u00e9",
    }
    assert metered_provider.charges == 2


def test_a_run_with_the_names_that_dimensions_had_before_is_the_same_task(
    own: Dagster, metered_provider: MeteredProvider
) -> None:
    own.instance.add_dynamic_partitions("tenants", ["acme"])
    before = {"dagster/partition/tenant": "acme", "dagster/partition/week": "2026-08-03"}
    runs = [
        own.launch("dynamic", partition="acme|2026-08-03"),
        own.launch("dynamic", tags={"dagster/partition": "acme|2026-08-03", **before}),
    ]
    assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 2, own.failures(runs[-1])
    assert metered_provider.charges == 1
