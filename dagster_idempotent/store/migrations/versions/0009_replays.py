"""How often stored answers stood in for another charge: a number for people."""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add the table."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0009_replays.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: the counts are part of what the ledger remembers."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
