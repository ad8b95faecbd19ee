"""A weekly digest for each tenant: collect documents, ask a model, validate, persist, deliver to a file.

Three stages, three ops. `collect` is stored before the model is asked; `summarise` makes the only paid call, under the
name "summary"; the accepted digest and its delivery are committed together by the library.
"""

from importlib.metadata import distributions
from pathlib import Path
from urllib.request import Request, urlopen

import dagster as dg
from pydantic import BaseModel, Field

from dagster_idempotent import (
    FileChannel,
    GuardedChatCompletionsResource,
    Pipeline,
    Raw,
    Task,
    by_subject,
    idempotent_job,
    idempotent_schedule,
    iso_week_partitions,
)
from example_repo.settings import DELIVERIES, TENANTS


class Digest(BaseModel):
    """What a digest has to be before it counts as the week's result."""

    title: str = Field(min_length=1)
    highlights: list[str] = Field(min_length=1)


# The sender of a call counts as dead after 12 s without a sign of life; only then may a look-up decide. The default is
# 30 s: this is an example to watch.
weekly_digest = Pipeline("weekly_digest", output=Digest, sender_lease="12s", send_window="5s")


class Sources(dg.Config):
    """Where the documents come from."""

    source: str = Field(
        default="installed",
        description='"installed" (the Python distributions of this environment), the path of a file, or a URL.',
    )
    limit: int = Field(default=40, ge=1, description="How many documents to take at most.")


def collect(task: Task, config: Sources) -> str:
    """Collect this week's documents for one tenant; a retry reuses what the first run stored."""
    documents = read_documents(config.source)[: config.limit]
    return "\n".join([f"tenant: {task.subject}", f"week: {task.period_id}", *documents])


def read_documents(source: str) -> list[str]:
    """Read one document a line; raises OSError or ValueError where the source cannot be read."""
    if source == "installed":
        found = {(each.name, each.version, each.metadata["Summary"] or "no summary") for each in distributions()}
        return [f"{name} {version}: {summary}" for name, version, summary in sorted(found)]
    if source.startswith(("http://", "https://")):
        with urlopen(Request(source), timeout=30) as response:  # noqa: S310 - http or https, as just checked
            return response.read().decode("utf-8").splitlines()
    return Path(source).read_text(encoding="utf-8").splitlines()


def summarise(context: dg.OpExecutionContext, task: Task, raw: Raw, model: GuardedChatCompletionsResource) -> Digest:
    """Ask the model for the digest: one paid call, named "summary", replayed by every later run."""
    request = {
        "model": "gpt-4o-mini",
        "messages": [
            {"role": "system", "content": "Answer in JSON: a title, and a list `highlights` of short sentences."},
            {"role": "user", "content": f"Digest {task.task_id}.\n{raw.text()}"},
        ],
        "response_format": {"type": "json_object"},
    }
    return model.get_calls(context).ask("summary", request, accept=Digest, tries=2)


weekly_digest_job = idempotent_job(
    weekly_digest,
    collect=collect,
    transform=summarise,
    deliver={"file": FileChannel(DELIVERIES)},
    partitions_def=by_subject(iso_week_partitions("2026-01-05"), TENANTS),
    # One server process that has everything loaded forks the steps: each starts in a fraction of a second.
    executor_def=dg.multiprocess_executor.configured(
        {"start_method": {"forkserver": {"preload_modules": ["example_repo.definitions"]}}}
    ),
)

# Monday 09:00 UTC runs the week that has just ended: the tick of Monday in W33 makes the tasks 2026-W32-….
weekly_digest_schedule = idempotent_schedule(weekly_digest_job, hour_of_day=9, day_of_week=1)
