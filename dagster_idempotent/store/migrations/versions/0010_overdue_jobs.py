"""How long a provider says that its jobs take, and which have taken longer."""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Add what a provider expects of its jobs."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0010_overdue_jobs.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: what was expected of a job is kept with its intent."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
