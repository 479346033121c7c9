"""What the feed needs to notice a new epoch, and to cross into it without loss.

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UP = (
    "ALTER TABLE feed_epochs ADD COLUMN facts_until TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE service_ticks ADD COLUMN latest_tick_at TIMESTAMP WITH TIME ZONE",
    """\
CREATE OR REPLACE FUNCTION current_feed_epoch() RETURNS integer
LANGUAGE sql VOLATILE AS 'SELECT max(number) FROM feed_epochs'""",
)

DOWN = (
    """\
CREATE OR REPLACE FUNCTION current_feed_epoch() RETURNS integer
LANGUAGE sql STABLE AS 'SELECT max(number) FROM feed_epochs'""",
    "ALTER TABLE service_ticks DROP COLUMN latest_tick_at",
    "ALTER TABLE feed_epochs DROP COLUMN facts_until",
)


def upgrade() -> None:
    """Add them."""
    for statement in UP:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Take them away."""
    for statement in DOWN:
        op.get_bind().exec_driver_sql(statement)
