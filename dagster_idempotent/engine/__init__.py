"""Use cases: transaction boundaries and outside effects; no SQL text, no Dagster."""
