"""What waits: a resend for the end of a freeze, and everybody for a remote job, up to when that is overdue."""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Replace the functions; add what a provider expects of its jobs."""
    connection = op.get_bind().execution_options(no_parameters=True)
    for part in ("frozen_resends", "overdue_jobs"):
        connection.exec_driver_sql((SQL / f"0010_{part}.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: a hold that waits for the end of a freeze would then wait for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
