"""A component: an idempotent job with its schedule and operator definitions, declared in YAML."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import dagster as dg
from pydantic import Field

from dagster_idempotent.definitions.jobs import idempotent_job
from dagster_idempotent.definitions.keys import AnyPartitions
from dagster_idempotent.definitions.operator_definitions import operator_definitions
from dagster_idempotent.definitions.partitions import by_subject, iso_week_partitions
from dagster_idempotent.definitions.schedules import idempotent_schedule
from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.errors import ConfigurationError

SCAFFOLDED = '''"""The functions of one paid pipeline; `defs.yaml` beside this file declares the rest."""

import dagster as dg
from dagster_idempotent import GuardedChatCompletionsResource, Raw, Task
from pydantic import BaseModel


class Digest(BaseModel):
    """What counts as a result; persist refuses everything else."""

    title: str
    highlights: list[str]


def collect(task: Task) -> str:
    """Collect what the model is asked about; stored once, before any paid call."""
    return f"documents of {task.period_id}"


def transform(context: dg.OpExecutionContext, raw: Raw, model: GuardedChatCompletionsResource) -> Digest:
    """Make the paid call, once, under the name "summary"."""
    request = {
        "model": "gpt-4o-mini",
        "messages": [
            {"role": "system", "content": "Answer in JSON: a title, and a list `highlights` of short sentences."},
            {"role": "user", "content": raw.text()},
        ],
        "response_format": {"type": "json_object"},
    }
    return model.get_calls(context).ask("summary", request, accept=Digest, tries=2)
'''
RESOURCES = '''"""The resources of the project's idempotent jobs; move them where the project keeps its own."""

import dagster as dg
from dagster_idempotent import AllocatorResource, GuardedChatCompletionsResource, LedgerResource


@dg.definitions
def resources() -> dg.Definitions:
    """Give the ledger, what plans tasks, and the paid service, whose key is read when a request leaves."""
    ledger = LedgerResource()
    model = GuardedChatCompletionsResource(api_key_variable="OPENAI_API_KEY")
    return dg.Definitions(
        resources={"ledger": ledger, "allocator": AllocatorResource(ledger=ledger), "model": model},
    )
'''


class PipelineModel(dg.Model):
    """The settings of the pipeline: see `Pipeline`."""

    name: str = Field(description="Name of the pipeline; keys are made of it, so keep it when you rename anything.")
    output: str = Field(description="The pydantic model of a result, as module:class.")
    period: Literal["iso_week", "day", "month"] = "iso_week"
    timezone: str = "UTC"
    lease: str = "10m"
    max_attempts: int = 5
    approval: Literal["spend", "publish"] | None = None
    version: str = ""
    budget_per_task: str | None = Field(default=None, description="What one task may cost, such as 2.00 USD.")


class WeeksModel(dg.Model):
    """Weekly partitions that start on Monday, optionally for each of several subjects."""

    start_date: str = Field(description="The first Monday, such as 2026-01-05.")
    timezone: str = "UTC"
    end_offset: int = 0
    subjects: Sequence[str] = Field(default=(), description="Tenants or accounts; none: one task a week.")


class ScheduleModel(dg.Model):
    """When the job runs: an hour and day for a partitioned job, a cron for an unpartitioned one."""

    cron_schedule: str | None = None
    execution_timezone: str | None = None
    minute_of_hour: int | None = None
    hour_of_day: int | None = None
    day_of_week: int | None = Field(default=None, description="0 is Sunday, 1 Monday.")
    running: bool = Field(default=False, description="Whether the schedule starts turned on; it spends money.")


class JobScaffolder(dg.Scaffolder[Any]):
    """Writes defs.yaml, the functions that it names, and resources.py beside the folder where there is none."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write a component that loads as it is, with a pipeline named as its folder."""
        name = request.target_path.name
        attributes = {
            "pipeline": {"name": name, "output": ".functions:Digest"},
            "collect": ".functions:collect",
            "transform": ".functions:transform",
            "weeks": {"start_date": "2026-01-05"},
            "schedule": {"hour_of_day": 9, "day_of_week": 1},
        }
        dg.scaffold_component(request, attributes)
        (request.target_path / "functions.py").write_text(SCAFFOLDED, encoding="utf-8")
        resources = request.target_path.parent / "resources.py"
        if not resources.exists():
            resources.write_text(RESOURCES, encoding="utf-8")


@dg.scaffold_with(JobScaffolder)
class IdempotentJobComponent(dg.Component, dg.Model, dg.Resolvable):
    """An idempotent job, its schedule, and everything that operators need.

    Objects of your own are named as `module:attribute`; a module that starts with a dot is a file beside defs.yaml.
    The resources `ledger`, `allocator`, and those that the functions ask for, come from the rest of the project.
    """

    pipeline: PipelineModel
    collect: str = Field(description="The function that collects the raw artifact.")
    transform: str = Field(description="The function that makes the paid calls and returns a candidate.")
    deliver: str | None = Field(default=None, description="A mapping of channel names to channels.")
    weeks: WeeksModel | None = Field(default=None, description="Weekly partitions.")
    partitions: str | None = Field(default=None, description="A partitions definition of your own.")
    schedule: ScheduleModel | None = Field(default=None, description="When the job runs by itself.")
    operators: bool = Field(
        default=True, description="Whether to add sensors, checks and operator jobs; once in a code location."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the job, its schedule and the operator definitions."""
        deliver = None if self.deliver is None else _load(context, self.deliver, "deliver")
        job = idempotent_job(
            self._pipeline(context),
            collect=_load(context, self.collect, "collect"),
            transform=_load(context, self.transform, "transform"),
            deliver=cast("Mapping[str, Any] | None", deliver),
            partitions_def=self._partitions(context),
        )
        own = dg.Definitions(jobs=[job], schedules=[] if self.schedule is None else [_schedule(job, self.schedule)])
        return dg.Definitions.merge(own, operator_definitions(job)) if self.operators else own

    def _pipeline(self, context: dg.ComponentLoadContext) -> Pipeline[Any]:
        given = self.pipeline
        return Pipeline(
            given.name,
            output=_load(context, given.output, "pipeline.output"),
            period=given.period,
            timezone=given.timezone,
            lease=given.lease,
            max_attempts=given.max_attempts,
            approval=given.approval,
            version=given.version,
            budget=None if given.budget_per_task is None else Budget.per_task(given.budget_per_task),
        )

    def _partitions(self, context: dg.ComponentLoadContext) -> AnyPartitions | None:
        if self.weeks is not None and self.partitions is not None:
            raise ConfigurationError("Both weeks and partitions are given. Keep one of them.", field="partitions")
        if self.partitions is not None:
            return cast("AnyPartitions", _load(context, self.partitions, "partitions"))
        if self.weeks is None:
            return None
        weeks = iso_week_partitions(
            self.weeks.start_date, timezone=self.weeks.timezone, end_offset=self.weeks.end_offset
        )
        return by_subject(weeks, list(self.weeks.subjects)) if self.weeks.subjects else weeks


def _schedule(job: dg.JobDefinition, given: ScheduleModel) -> dg.ScheduleDefinition:
    when: dict[str, Any] = {
        "minute_of_hour": given.minute_of_hour,
        "hour_of_day": given.hour_of_day,
        "day_of_week": given.day_of_week,
    }
    return idempotent_schedule(
        job,
        cron_schedule=given.cron_schedule,
        execution_timezone=given.execution_timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if given.running else dg.DefaultScheduleStatus.STOPPED,
        **{name: value for name, value in when.items() if value is not None},
    )


def _load(context: dg.ComponentLoadContext, path: str, field: str) -> Any:  # noqa: ANN401 - the user's own object
    """Import `module:attribute`, or `.file:attribute` from beside defs.yaml."""
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(
            f"{field} is {path!r}, expected module:attribute, such as my_project.digest:collect, or .functions:collect "
            "for functions.py beside defs.yaml.",
            field=field,
        )
    if module.startswith("."):
        loaded = context.load_defs_relative_python_module(Path(module.removeprefix(".").replace(".", "/") + ".py"))
    else:
        loaded = import_module(module)
    if not hasattr(loaded, attribute):
        raise ConfigurationError(
            f"{field} is {path!r}, but module {loaded.__name__!r} has no {attribute!r}. Check the name.", field=field
        )
    return getattr(loaded, attribute)
