"""A same-key resend that a freeze or a closed gate refuses waits for that decision, and goes on after it."""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

SQL = Path(__file__).parents[1] / "sql"


def upgrade() -> None:
    """Replace the functions."""
    connection = op.get_bind().execution_options(no_parameters=True)
    connection.exec_driver_sql((SQL / "0010_frozen_resends.sql").read_text(encoding="utf-8"))


def downgrade() -> None:
    """Refuse: a hold that waits for the end of a freeze would then wait for ever."""
    raise NotImplementedError("the ledger is never dropped by a migration; restore a backup instead")
