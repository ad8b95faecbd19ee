"""The studio: a service that makes a shot as a remote job. Here it is the metered provider of this machine."""

import os
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_idempotent import Backoff, Calls, GuardedProviderResource, JobApi, JobResult, JsonJobApi, Money
from example_repo import settings
from example_repo.model import metered_base_url

# Where its answers say what. A real service has other paths and words: this is all there is to change.
STUDIO_API = JobApi(
    submit_path="/jobs",
    status_path="/jobs/{id}",
    result_path="/jobs/{id}/result",
    cancel_path="/jobs/{id}/cancel",
    look_up_path="/jobs?key={key}",
    look_up_complete_at="complete",
    error_at="error.message",
    progress_at="progress",
    cost_at="cost.amount",
    currency_at="cost.currency",
    settle_delay=timedelta(seconds=2),
    pace=Backoff(base=timedelta(milliseconds=300), factor=1.5, cap=timedelta(seconds=5), jitter=0.2),
)


class StudioResource(GuardedProviderResource):
    """The studio behind the guard: every shot is one job, one charge, one result."""

    base_url: str = Field(default="", description="Its address; empty: the metered provider of this machine.")
    upper_bound: str = Field(default="0.10 USD", description="What one shot may cost at most; reserved by budgets.")

    def provider(self) -> JsonJobApi:
        """Build the adapter; its key is any text, since the metered provider charges play money."""
        os.environ.setdefault(settings.METERED_KEY_VARIABLE, "any-text")
        return JsonJobApi(
            STUDIO_API,
            name="studio",
            base_url=self.base_url or metered_base_url(settings.PROVIDER),
            api_key_variable=settings.METERED_KEY_VARIABLE,
            upper_bound=Money.parse(self.upper_bound),
        )

    def get_calls(self, context: dg.OpExecutionContext) -> Calls[Any, JobResult]:
        """Return the paid calls of the task that this op works on."""
        return super().get_calls(context)
