"""What happened to a request out there: no SQL, no Dagster."""
