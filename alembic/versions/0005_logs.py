"""Logs: the order in which chunks came, where in an object they lie, and where a log was cut off.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

UP = (
    "ALTER TABLE runner_leases ADD COLUMN log_chunks INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE service_ticks ADD COLUMN outage_began_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE log_streams ADD COLUMN truncated_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE log_streams ADD COLUMN merged_at TIMESTAMP WITH TIME ZONE",
    """\
CREATE INDEX log_streams_unmerged_idx ON log_streams (created_at) WHERE merged_at IS NULL""",
    "ALTER TABLE raw_log_refs ADD COLUMN arrival_number INTEGER",
    "ALTER TABLE raw_log_refs ADD COLUMN object_offset BIGINT DEFAULT '0'::bigint NOT NULL",
    """\
UPDATE raw_log_refs r SET arrival_number = n.arrival_number FROM (
    SELECT id, row_number() OVER (PARTITION BY attempt_id, lease_number
        ORDER BY created_at, stream, stream_offset) AS arrival_number
    FROM raw_log_refs) n
WHERE r.id = n.id""",
    """\
UPDATE runner_leases l SET log_chunks = n.log_chunks FROM (
    SELECT attempt_id, lease_number, max(arrival_number) AS log_chunks
    FROM raw_log_refs GROUP BY attempt_id, lease_number) n
WHERE l.attempt_id = n.attempt_id AND l.lease_number = n.lease_number""",
    "ALTER TABLE raw_log_refs ALTER COLUMN arrival_number SET NOT NULL",
    """\
ALTER TABLE raw_log_refs ADD CONSTRAINT raw_log_refs_attempt_id_lease_number_arrival_number_key
    UNIQUE (attempt_id, lease_number, arrival_number)""",
)

DOWN = (
    "ALTER TABLE raw_log_refs DROP COLUMN arrival_number",
    "ALTER TABLE raw_log_refs DROP COLUMN object_offset",
    "ALTER TABLE log_streams DROP COLUMN merged_at",
    "ALTER TABLE log_streams DROP COLUMN truncated_at",
    "ALTER TABLE service_ticks DROP COLUMN outage_began_at",
    "ALTER TABLE runner_leases DROP COLUMN log_chunks",
)


def upgrade() -> None:
    """Apply."""
    for statement in UP:
        op.execute(statement)


def downgrade() -> None:
    """Undo. Merged objects would be read as wholes by the code before, so this loses their order."""
    for statement in DOWN:
        op.execute(statement)
