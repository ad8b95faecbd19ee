"""What an order says of the pipeline, the provider and the request."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi

Order = dict[str, Any]


class Digest(BaseModel):
    title: str
    highlights: list[str]


def pipeline_of(order: Order) -> Pipeline[Digest]:
    settings = dict(order.get("pipeline", {}))
    limits = {name: settings.pop(name) for name in ("per_task", "per_period", "per_pipeline") if name in settings}
    if limits:
        settings["budget"] = Budget(**limits)
    return Pipeline(settings.pop("name", "weekly_digest"), output=Digest, **settings)


def job_provider(options: dict[str, Any]) -> JsonJobApi:
    settings = dict(options["job_api"])
    for name in ("settle_delay", "key_window", "poll_budget"):
        if name in settings:
            settings[name] = timedelta(seconds=settings[name])
    pause = timedelta(seconds=settings.pop("pause", 0.01))
    return JsonJobApi(
        JobApi(pace=Backoff(base=pause, cap=pause, jitter=0.0), **settings),
        name="studio",
        base_url=options["base_url"],
        api_key_variable=options["api_key_variable"],
    )


def request_of(order: Order) -> dict[str, object]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": order.get("content", "summarise")}],
        "response_format": {"type": "json_object"},
        **order.get("request", {}),
    }
