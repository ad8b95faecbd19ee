"""Outbox order and backoff, effects in the user's transaction, and what a sweep looks for."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add columns, indexes, functions and the table `effects`."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0003_outbox.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: effects are the record of what happened."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
