"""What operators decide: evidence, giving up, sending again, approvals, freezing, retention."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add the operator's tables, triggers and functions."""
    connection = op.get_bind().execution_options(no_parameters=True)
    for part in ("tables", "calls", "tasks", "money", "retention"):
        connection.exec_driver_sql((SQL / f"0002_{part}.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: decisions are kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
