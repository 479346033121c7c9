"""What the removal of old things needs: notes on partitions, indexes on what is due, confirmations.

Frozen SQL: `app/store/tables.py` and `app/store/schema_sql.py` declare the same, and a test dumps
both and compares them.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

UP = (
    """\
CREATE TABLE removed_partitions (
    name TEXT NOT NULL,
    parent TEXT NOT NULL,
    starts_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_at TIMESTAMP WITH TIME ZONE NOT NULL,
    begun_at TIMESTAMP WITH TIME ZONE NOT NULL,
    removed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT removed_partitions_pkey PRIMARY KEY (name)
)""",
    """\
ALTER TABLE feed_epochs ADD COLUMN objects_confirmed_at TIMESTAMP WITH TIME ZONE,
    ADD COLUMN objects_confirmed_by TEXT""",
    "DROP INDEX artifact_refs_expires_at_idx",
    """\
CREATE INDEX artifact_refs_expires_at_idx ON artifact_refs (expires_at)
    WHERE held_at IS NULL AND state <> 'removing'""",
    "CREATE INDEX artifact_refs_removing_idx ON artifact_refs (id) WHERE state = 'removing'",
    """\
CREATE INDEX artifact_refs_undated_idx ON artifact_refs (id)
    WHERE expires_at IS NULL AND retention_class <> 'legal_hold'""",
    "CREATE INDEX artifact_uploads_open_idx ON artifact_uploads (id) WHERE closed_at IS NULL",
    """\
CREATE INDEX artifact_uploads_closed_at_idx ON artifact_uploads (closed_at)
    WHERE closed_at IS NOT NULL""",
    """\
CREATE FUNCTION events_needed_since() RETURNS timestamptz
LANGUAGE sql STABLE AS 'SELECT NULL::timestamptz'""",
)

DOWN = (
    "DROP FUNCTION events_needed_since()",
    "DROP INDEX artifact_uploads_closed_at_idx",
    "DROP INDEX artifact_uploads_open_idx",
    "DROP INDEX artifact_refs_undated_idx",
    "DROP INDEX artifact_refs_removing_idx",
    "DROP INDEX artifact_refs_expires_at_idx",
    "CREATE INDEX artifact_refs_expires_at_idx ON artifact_refs (expires_at) WHERE held_at IS NULL",
    """\
ALTER TABLE feed_epochs DROP COLUMN objects_confirmed_at, DROP COLUMN objects_confirmed_by""",
    "DROP TABLE removed_partitions",
)


def upgrade() -> None:
    """Make it."""
    for statement in UP:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Remove it; what was removed by it stays removed."""
    for statement in DOWN:
        op.get_bind().exec_driver_sql(statement)
