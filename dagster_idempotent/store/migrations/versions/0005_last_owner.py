"""Who claimed a task last, kept when it ends as a dead letter."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add the column."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0005_last_owner.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: it is part of the record of a dead letter."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
