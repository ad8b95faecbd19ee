"""A code location of a user who puts the ops together, with tenants that come and go."""

import os
from datetime import timedelta

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent import (
    AllocatorResource,
    Backoff,
    FileChannel,
    GuardedChatCompletionsResource,
    LedgerResource,
    Pipeline,
    Raw,
    Task,
    allocate_op,
    by_subject,
    collect_op,
    deliver_op,
    idempotent_job,
    idempotent_schedule,
    iso_week_partitions,
    operator_definitions,
    persist_op,
    transform_op,
)


class Shot(BaseModel):
    title: str
    highlights: list[str]


class Episode(BaseModel):
    shots: list[Shot]


class Length(dg.Config):
    shots: int = 3


class Feed:
    """A plain object that a definition gives as a resource."""

    def read(self) -> str:
        return "a plot"


weeks = iso_week_partitions("2026-01-05")
episodes = Pipeline("episodes", output=Episode, lease="20s", sender_lease="4s", send_window="3s")


def plot(feed: dg.ResourceParam[Feed]) -> str:
    """Read the plot."""
    return feed.read()


def shoot(task: Task, raw: Raw, config: Length, model: GuardedChatCompletionsResource) -> list[dict[str, object]]:
    """Shoot each scene, by a call of its own."""
    calls = model.get_calls(None)  # the function asks for no context
    return [
        calls.ask(
            f"shot-{n:02}",
            {
                "model": "m",
                "messages": [{"role": "user", "content": f"{task}: {raw.text()} {n}"}],
                "response_format": {"type": "json_object"},
            },
            accept=Shot,
        ).model_dump()
        for n in range(config.shots)
    ]


@dg.op
def assemble(shots: list) -> dict:
    return {"shots": shots}


@dg.job(partitions_def=weeks)
def episodes_job() -> None:
    task = allocate_op(episodes)()
    collected = collect_op(episodes, plot, name="plan")(task)
    shots = transform_op(episodes, shoot, name="shoot")(collected)
    channels = {"site": FileChannel(os.environ.get("TEST_FOLDER", "."))}
    deliver_op(episodes, channels)(collected, persist_op(episodes, channels=channels)(collected, assemble(shots)))


def collect(task: Task) -> str:
    return f"documents of {task}"


def summarise(context: dg.OpExecutionContext, raw: Raw, model: GuardedChatCompletionsResource) -> Shot:
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": raw.text()}],
        "response_format": {"type": "json_object"},
    }
    return model.get_calls(context).ask("summary", request, accept=Shot)


def paid(name: str) -> Pipeline[Shot]:
    backoff = Backoff(base=timedelta(seconds=1), cap=timedelta(seconds=1))
    return Pipeline(name, output=Shot, lease="20s", sender_lease="4s", send_window="3s", backoff=backoff)


dynamic_job = idempotent_job(
    paid("dynamic"),
    collect=collect,
    transform=summarise,
    partitions_def=by_subject(weeks, dg.DynamicPartitionsDefinition(name="tenants")),
)
# Dimensions in the other order, and named otherwise.
named_job = idempotent_job(
    paid("named"),
    collect=collect,
    transform=summarise,
    partitions_def=dg.MultiPartitionsDefinition(
        {"a_week": weeks, "tenant": dg.StaticPartitionsDefinition(["Smith & Sons/EU", "caf\u00e9"])}
    ),
)
ledger = LedgerResource(url=dg.EnvVar("TEST_LEDGER_URL"))
defs = dg.Definitions(
    jobs=[episodes_job, dynamic_job, named_job],
    schedules=[
        idempotent_schedule(dynamic_job, hour_of_day=9, day_of_week=1),
        idempotent_schedule(named_job, hour_of_day=9, day_of_week=1),
    ],
    executor=dg.in_process_executor,
    resources={
        "ledger": ledger,
        "allocator": AllocatorResource(ledger=ledger),
        "feed": Feed(),
        "model": GuardedChatCompletionsResource(
            base_url=dg.EnvVar("TEST_PROVIDER_URL"), api_key_variable="TEST_API_KEY", look_up_path="/lookup"
        ),
    },
)
if os.environ.get("TEST_OPERATORS"):
    defs = dg.Definitions.merge(defs, operator_definitions(dynamic_job))
