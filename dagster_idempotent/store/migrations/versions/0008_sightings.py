"""What a look-up shows beside an answer: further charges under one key, matches of a look-up that is not exact."""

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add the table."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0008_sightings.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: what a provider showed is kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
