"""Statistics of the tables that grow follow the queue, and not only the history.

Revision ID: 0010
Revises: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = ("execution_attempts", "runner_leases")


def upgrade() -> None:
    """Analyze after a fiftieth has changed, as they are vacuumed, and not after a tenth."""
    for table in TABLES:
        op.get_bind().exec_driver_sql(
            f"ALTER TABLE {table} SET (autovacuum_analyze_scale_factor = 0.02)"
        )


def downgrade() -> None:
    """As the server does by default."""
    for table in TABLES:
        op.get_bind().exec_driver_sql(
            f"ALTER TABLE {table} RESET (autovacuum_analyze_scale_factor)"
        )
