"""What is wrong with a declaration is said when the code is loaded, without a database (R4)."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Annotated, Any

import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_idempotent import (
    LedgerResource,
    Pipeline,
    Raw,
    Task,
    by_subject,
    collect_op,
    idempotent_asset,
    idempotent_job,
    idempotent_schedule,
    iso_week_partitions,
    transform_op,
)
from dagster_idempotent.errors import ConfigurationError, InvalidIdentity


class Output(BaseModel):
    text: str


class Feed(dg.ConfigurableResource):
    url: str = "https://example.org"


class Limits(dg.Config):
    most: int = 3


weekly = Pipeline("weekly", output=Output)


def collect(task: Task) -> str:
    return task.task_id


def transform(raw: Raw) -> Output:
    return Output(text=raw.text())


def job_with(partitions_def: dg.PartitionsDefinition, pipeline: Pipeline[Any] = weekly) -> dg.JobDefinition:
    return idempotent_job(pipeline, collect=collect, transform=transform, partitions_def=partitions_def)


def in_berlin(**settings: Any) -> Pipeline[Output]:
    return Pipeline("berlin", output=Output, timezone="Europe/Berlin", **settings)


@pytest.mark.parametrize(
    ("pipeline", "partitions"),
    [
        (weekly, dg.WeeklyPartitionsDefinition("2026-01-04")),
        (weekly, iso_week_partitions("2026-01-05", timezone="America/New_York")),
        (weekly, dg.MonthlyPartitionsDefinition("2026-01-01")),
        # The first window lies in one week; the Sunday's does not.
        (weekly, dg.DailyPartitionsDefinition("2026-01-07", timezone="America/New_York")),
        (in_berlin(period="day"), dg.DailyPartitionsDefinition("2026-01-07")),
        (in_berlin(), dg.TimeWindowPartitionsDefinition(start="2026-01-05", cron_schedule="0 5 * * 1", fmt="%Y-%m-%d")),
    ],
    ids=["Sunday weeks", "weeks of another zone", "months", "days of another zone", "days", "weeks at five"],
)
def test_windows_that_lie_in_two_periods_are_refused(
    pipeline: Pipeline[Output], partitions: dg.TimeWindowPartitionsDefinition
) -> None:
    with pytest.raises(ConfigurationError, match=r"which lies in two periods .*iso_week_partitions"):
        job_with(partitions, pipeline)
    with pytest.raises(ConfigurationError, match="which lies in two periods"):
        job_with(by_subject(partitions, ["acme"]), pipeline)
    idempotent_job(pipeline, collect=collect, transform=transform, partitions_def=partitions, allow_straddling=True)


@pytest.mark.parametrize(
    ("pipeline", "partitions"),
    [
        (weekly, iso_week_partitions("2026-01-05")),
        (weekly, dg.HourlyPartitionsDefinition("2026-01-01-00:00")),
        (in_berlin(), iso_week_partitions("2026-01-05", timezone="Europe/Berlin", end_offset=1)),
        (in_berlin(period="day"), dg.HourlyPartitionsDefinition("2026-01-01-00:00", timezone="Europe/Berlin")),
        (in_berlin(period="month"), dg.MonthlyPartitionsDefinition("2026-01-01", timezone="Europe/Berlin")),
        (
            in_berlin(),
            dg.TimeWindowPartitionsDefinition(
                start="2026-01-05-00:00", cron_schedule="*/20 * * * *", fmt="%Y-%m-%d-%H:%M"
            ),
        ),
    ],
)
def test_windows_within_one_period_are_accepted(
    pipeline: Pipeline[Output], partitions: dg.TimeWindowPartitionsDefinition
) -> None:
    job_with(partitions, pipeline)
    job_with(by_subject(partitions, ["acme"]), pipeline)


weeks = iso_week_partitions("2026-01-05")
names = dg.StaticPartitionsDefinition(["a"])


@pytest.mark.parametrize(
    "partitions",
    [
        names,
        dg.DynamicPartitionsDefinition(name="tenants"),
        dg.MultiPartitionsDefinition({"subject": names, "region": names}),
        dg.MultiPartitionsDefinition({"week": weeks, "day": dg.DailyPartitionsDefinition("2026-01-05")}),
    ],
    ids=["static", "dynamic", "two subjects", "two times"],
)
def test_partitions_that_say_no_time_or_two_are_refused(partitions: dg.PartitionsDefinition) -> None:
    with pytest.raises(ConfigurationError, match="a task needs exactly one time window"):
        job_with(partitions)
    with pytest.raises(ConfigurationError, match="by_subject"):
        idempotent_asset(weekly, collect=collect, partitions_def=partitions)(transform)


@pytest.mark.parametrize(
    ("subjects", "says"),
    [
        ([" a"], "no whitespace at its ends"),
        (["a\u200bb"], "U\\+200B"),
        (["x" * 201], "at most 200 characters"),
        (["caf\u00e9", "cafe\u0301"], "one text in Unicode form NFC"),
    ],
    ids=["spaces", "invisible", "long", "two spellings"],
)
def test_subjects_that_cannot_be_part_of_an_identity_are_refused(subjects: list[str], says: str) -> None:
    with pytest.raises(InvalidIdentity, match=says):
        job_with(by_subject(weeks, subjects))


@pytest.mark.parametrize("name", ["a|b", "a,b", "[a]"])
def test_subjects_that_dagster_cannot_join_with_a_time_are_refused_by_dagster(name: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Invalid character in partition key"):
        by_subject(weeks, [name])


def test_subjects_may_hold_spaces_and_any_letters() -> None:
    job_with(by_subject(weeks, ["Smith & Sons/EU", "caf\u00e9", "\u682a\u5f0f\u4f1a\u793e"]))


def test_subjects_must_be_a_list() -> None:
    for subjects in ("acme", []):
        with pytest.raises(ConfigurationError, match="expected a list of names"):
            by_subject(weeks, subjects)


def generator(task: Task) -> Iterator[str]:
    yield task.task_id


async def coroutine(task: Task) -> str:
    return task.task_id


async def async_generator(task: Task) -> AsyncIterator[str]:
    yield task.task_id


class AsyncCallable:
    async def __call__(self, task: Task) -> str:
        return task.task_id


def any_annotation(task: Task, feed: Annotated[str, "a note"]) -> str:
    return f"{task} {feed}"


def unknown_parameter(task: Task, colour: str) -> str:
    return f"{task} {colour}"


def text_annotation(task: "Task") -> str:
    return task.task_id


def anything(**given: object) -> str:
    return str(given)


def config_without_class(task: Task, config: dict[str, int]) -> str:
    return f"{task} {config}"


def taken_name(task: Task, ledger: Feed) -> str:
    return f"{task} {ledger}"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (generator, "is a generator"),
        (coroutine, "is async"),
        (async_generator, "is an async generator"),
        (partial(coroutine), "is async"),
        (AsyncCallable(), "is async"),
        (dg.op(collect), "expected a plain function"),
        ("collect", "expected a plain function"),
        (any_annotation, "Parameter 'feed'"),
        (unknown_parameter, "Parameter 'colour' of .* function 'unknown_parameter' is neither"),
        (text_annotation, "are strings"),
        (anything, "name each parameter"),
        (config_without_class, "expected a subclass of dagster.Config"),
        (taken_name, "that name is taken"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
def test_a_function_that_cannot_be_the_body_of_an_op_is_refused(function: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        collect_op(weekly, function)
    with pytest.raises(ConfigurationError, match=says):
        transform_op(weekly, function)
    with pytest.raises(ConfigurationError, match=says):
        idempotent_asset(weekly, collect=collect)(function)


@pytest.mark.parametrize(
    "make",
    [
        lambda: idempotent_schedule(job_with(weeks), cron_schedule="0 9 * * 1"),
        lambda: idempotent_schedule(idempotent_job(weekly, collect=collect, transform=transform)),
        lambda: idempotent_schedule(
            idempotent_job(weekly, collect=collect, transform=transform), cron_schedule="0 9 * * 1", hour_of_day=3
        ),
    ],
    ids=["a cron beside partitions", "no cron", "a cron and an hour"],
)
def test_a_schedule_that_is_declared_twice_or_not_at_all_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match="cron_schedule"):
        make()


def test_two_assets_and_jobs_of_one_and_of_several_pipelines_live_in_one_code_location() -> None:
    other = Pipeline("other", output=Output)
    definitions = dg.Definitions(
        jobs=[
            job_with(weeks),
            idempotent_job(weekly, name="weekly_again", collect=collect, transform=transform, partitions_def=weeks),
            job_with(weeks, other),
        ],
        assets=[
            idempotent_asset(pipeline, name=name, collect=collect, partitions_def=weeks)(transform)
            for pipeline, name in ((weekly, "one"), (weekly, "two"), (other, "three"))
        ],
        resources={"ledger": LedgerResource(), "allocator": dg.ResourceDefinition.none_resource()},
    )
    dg.Definitions.validate_loadable(definitions)
