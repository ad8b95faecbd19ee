"""Alembic's entry: runs the plain-SQL migrations on the connection that `store.schema` hands over."""

from alembic import context

config = context.config
connection = config.attributes["connection"]
context.configure(
    connection=connection,
    version_table_schema="dagster_idempotent",
    # One transaction, opened by the caller, which also holds the migration lock.
    transaction_per_migration=False,
)
context.run_migrations()
