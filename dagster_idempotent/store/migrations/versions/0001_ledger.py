"""The ledger: tables, triggers, and the functions of work and sending."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Create everything; the schema itself already exists."""
    connection = op.get_bind().execution_options(no_parameters=True)
    for part in ("tables", "triggers", "work", "sending"):
        connection.exec_driver_sql((SQL / f"0001_{part}.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: identities are kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
