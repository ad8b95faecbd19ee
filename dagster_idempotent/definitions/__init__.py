"""What Dagster loads: resources, ops, jobs, assets, schedules."""
