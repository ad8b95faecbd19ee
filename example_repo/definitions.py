"""What Dagster loads: `dagster dev` in the root finds it through workspace.yaml."""

import dagster as dg

from dagster_idempotent import AllocatorResource, LedgerResource, operator_definitions
from example_repo import settings
from example_repo.episodes import episodes_generate, episodes_job, episodes_reassemble, episodes_schedule
from example_repo.model import model_resource
from example_repo.studio import StudioResource
from example_repo.weekly_digest import weekly_digest_job, weekly_digest_schedule

ledger = LedgerResource(folder=str(settings.POSTGRES), artifacts_uri=str(settings.ARTIFACTS))

defs = dg.Definitions.merge(
    dg.Definitions(
        jobs=[weekly_digest_job, episodes_job, episodes_generate, episodes_reassemble],
        schedules=[weekly_digest_schedule, episodes_schedule],
        resources={
            "ledger": ledger,
            "allocator": AllocatorResource(ledger=ledger),
            "model": model_resource(),
            "studio": StudioResource(),
        },
    ),
    # Sensors, the ledger asset with its checks, and the jobs in which people decide.
    operator_definitions(weekly_digest_job, episodes_job),
)
