"""Old records become tasks: one function imports a record, one maps an imported task to its identity."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add indexes and functions."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0004_legacy.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: imported history is kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
