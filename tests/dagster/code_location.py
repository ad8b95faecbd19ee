"""A code location as a user writes it; the tests load it as Dagster does, from its file."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

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
    by_subject,
    idempotent_asset,
    idempotent_job,
    idempotent_schedule,
    iso_week_partitions,
    operator_definitions,
)


class Digest(BaseModel):
    title: str
    highlights: list[str]


class Faults(dg.ConfigurableResource):
    """Faults that a test orders by creating a file: each happens once, after the paid call."""

    folder: str

    def strike(self, name: str) -> None:
        order = Path(self.folder) / name
        if order.exists():
            order.unlink()
            raise RuntimeError(f"the fault {name} was ordered")


def paid(name: str, **settings: Any) -> Pipeline[Digest]:
    backoff = Backoff(base=timedelta(seconds=1), cap=timedelta(seconds=1))
    return Pipeline(name, output=Digest, lease="20s", sender_lease="4s", send_window="3s", backoff=backoff, **settings)


def _request(content: str) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    return {"model": "m", "messages": messages, "response_format": {"type": "json_object"}}


def collect(task: Task) -> str:
    """Collect what the digest is made of."""
    return f"documents of {task.task_id}"


def summarise(
    context: dg.OpExecutionContext, task: Task, raw: Raw, model: GuardedChatCompletionsResource, faults: Faults
) -> Digest:
    """Ask the model for a digest."""
    request = _request(f"{task.pipeline}: {raw.text()}")
    answer = model.get_calls(context).ask("summary", request, accept=Digest, tries=2)
    faults.strike(f"after_payment_{task.pipeline}")
    return answer


def summarise_blind(
    context: dg.OpExecutionContext, task: Task, raw: Raw, blind_model: GuardedChatCompletionsResource, faults: Faults
) -> Digest:
    """Ask a model that cannot look a request up."""
    answer = blind_model.get_calls(context).ask("summary", _request(raw.text()), accept=Digest)
    faults.strike(f"after_payment_{task.pipeline}")
    return answer


weeks = iso_week_partitions("2026-01-05")
tenant_weeks = by_subject(weeks, ["acme", "globex"])
channels = {"file": FileChannel(os.environ.get("TEST_FOLDER", "."))}

weekly = paid("weekly_digest")
weekly_job = idempotent_job(weekly, collect=collect, transform=summarise, partitions_def=tenant_weeks, deliver=channels)
weekly_retried_job = idempotent_job(
    weekly,
    name="weekly_digest_with_op_retries",
    collect=collect,
    transform=summarise,
    partitions_def=tenant_weeks,
    op_retry_policy=dg.RetryPolicy(max_retries=2),
)
weekly_asset = idempotent_asset(
    weekly, name="weekly_digest_asset", collect=collect, partitions_def=tenant_weeks, deliver=channels
)(summarise)

report_asset = idempotent_asset(paid("report"), name="report", collect=collect, partitions_def=weeks)(summarise)
range_asset = idempotent_asset(
    paid("ranged"),
    name="ranged",
    collect=collect,
    partitions_def=weeks,
    backfill_policy=dg.BackfillPolicy.single_run(),
)(summarise)
# Named as the unpartitioned one: what an edit of a job that has run already makes of it.
nightly_by_day_job = idempotent_job(
    paid("nightly"),
    name="nightly_by_day",
    collect=collect,
    transform=summarise,
    partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
)
nightly_job = idempotent_job(paid("nightly"), collect=collect, transform=summarise)
blind_job = idempotent_job(paid("blind"), collect=collect, transform=summarise_blind, partitions_def=weeks)

schedules = [
    idempotent_schedule(weekly_job, hour_of_day=9, day_of_week=1, name="every_monday"),
    idempotent_schedule(
        nightly_job,
        cron_schedule="0 2 * * *",
        execution_timezone="America/New_York",
        name="every_night",
    ),
]
ledger = LedgerResource(url=dg.EnvVar("TEST_LEDGER_URL"), patience_seconds=5)
model = GuardedChatCompletionsResource(
    base_url=dg.EnvVar("TEST_PROVIDER_URL"),
    api_key_variable="TEST_API_KEY",
    look_up_path="/lookup",
    settle_delay="1s",
    input_price="100 USD",
    output_price="200 USD",
)
# A server that has loaded what this file needs forks each step's process: quicker than loading it for each.
PRELOADED = ["dagster", "dagster_idempotent.definitions.jobs", "dagster_idempotent.definitions.sdk_resources"]
steps_as_processes = dg.multiprocess_executor.configured(
    {"start_method": {"forkserver": {"preload_modules": PRELOADED}}}
)
defs = dg.Definitions(
    jobs=[weekly_job, weekly_retried_job, nightly_job, nightly_by_day_job, blind_job],
    assets=[weekly_asset, report_asset, range_asset],
    schedules=schedules,
    executor=steps_as_processes if os.environ.get("TEST_PROCESSES") else dg.in_process_executor,
    resources={
        "ledger": ledger,
        "allocator": AllocatorResource(ledger=ledger),
        "model": model,
        "blind_model": GuardedChatCompletionsResource(
            base_url=dg.EnvVar("TEST_PROVIDER_URL"), api_key_variable="TEST_API_KEY"
        ),
        "faults": Faults(folder=dg.EnvVar("TEST_FOLDER")),
    },
)
if os.environ.get("TEST_OPERATORS"):
    defs = dg.Definitions.merge(defs, operator_definitions(weekly_job, blind_job, report_asset))
