"""Remote jobs: their end, their cancellation, waiting for them; answers that lie in files."""

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add a column and functions."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0007_remote_jobs.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: what was paid for is kept for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
