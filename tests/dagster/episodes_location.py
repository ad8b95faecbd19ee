"""The example's episodes as a code location of a test: its ledger and its studio are the test's own."""

import importlib
import os
from pathlib import Path

import dagster as dg

from dagster_idempotent import AllocatorResource, LedgerResource, operator_definitions
from example_repo import episodes, settings, studio

# They read where things are kept when they are imported.
for module in (settings, episodes):
    importlib.reload(module)

ledger = LedgerResource(
    url=dg.EnvVar("TEST_LEDGER_URL"),
    artifacts_uri=str(Path(os.environ["TEST_FOLDER"]) / "artifacts"),
    artifacts_from_bytes=100,
)
defs = dg.Definitions.merge(
    dg.Definitions(
        jobs=[episodes.episodes_job, episodes.episodes_generate, episodes.episodes_reassemble],
        schedules=[episodes.episodes_schedule],
        executor=dg.in_process_executor,
        resources={
            "ledger": ledger,
            "allocator": AllocatorResource(ledger=ledger),
            "studio": studio.StudioResource(base_url=dg.EnvVar("TEST_PROVIDER_URL")),
        },
    ),
    operator_definitions(episodes.episodes_job),
)
