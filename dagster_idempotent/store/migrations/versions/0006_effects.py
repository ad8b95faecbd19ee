"""Results of effects are pruned with the other bodies of a task."""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add two columns and their rules."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0006_effects.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: what happened is kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
