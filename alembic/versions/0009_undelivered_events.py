"""Events that a callback subscription has yet to deliver are kept by retention.

Revision ID: 0009
Revises: 0008
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UP = """\
CREATE OR REPLACE FUNCTION events_needed_since() RETURNS timestamptz
LANGUAGE sql STABLE AS '
    SELECT min(bound) FROM (
        SELECT least(c.created_from, c.replay_created_from) AS bound FROM callback_cursors c
        WHERE c.paused_at IS NULL OR c.paused_at > clock_now() - interval ''30 days''
        UNION ALL
        SELECT p.created_from FROM callback_parked p
        JOIN callback_cursors c ON c.subscription_id = p.subscription_id
        WHERE p.parked_at > clock_now() - interval ''30 days''
            AND (c.paused_at IS NULL OR c.paused_at > clock_now() - interval ''30 days'')) s'"""

DOWN = """\
CREATE OR REPLACE FUNCTION events_needed_since() RETURNS timestamptz
LANGUAGE sql STABLE AS 'SELECT NULL::timestamptz'"""


def upgrade() -> None:
    """Ask the subscriptions."""
    op.get_bind().exec_driver_sql(UP)


def downgrade() -> None:
    """Ask nobody."""
    op.get_bind().exec_driver_sql(DOWN)
