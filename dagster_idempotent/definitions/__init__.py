"""What Dagster loads: resources, ops, jobs, assets, schedules."""

import dagster as dg

from dagster_idempotent import __version__

dg.DagsterLibraryRegistry.register(  # pyright: ignore[reportPrivateImportUsage] - where Dagster documents it
    "dagster-idempotent", __version__, is_dagster_package=False
)
