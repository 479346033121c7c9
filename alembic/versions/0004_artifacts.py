"""Tickets for uploads, the installation's id, names of artifacts, and outputs that are named once.

Frozen SQL: `app/store/tables_objects.py` and `app/store/tables_service.py` declare the same.

Revision ID: 0004
Revises: 0002
"""

from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None

UPGRADE = (
    """\
CREATE TABLE artifact_uploads (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    operation_id UUID NOT NULL,
    lease_id UUID NOT NULL,
    request_id UUID NOT NULL,
    name TEXT,
    storage TEXT NOT NULL,
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    content_type TEXT NOT NULL,
    digest TEXT NOT NULL,
    byte_size BIGINT NOT NULL,
    retention_class TEXT NOT NULL,
    method TEXT NOT NULL,
    upload_id TEXT,
    part_bytes BIGINT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    verified_at TIMESTAMP WITH TIME ZONE,
    closed_at TIMESTAMP WITH TIME ZONE,
    closed_reason TEXT,
    CONSTRAINT artifact_uploads_pkey PRIMARY KEY (id),
    CONSTRAINT artifact_uploads_attempt_id_request_id_key UNIQUE (attempt_id, request_id),
    CONSTRAINT artifact_uploads_storage_check CHECK (storage IN ('s3', 'minio')),
    CONSTRAINT artifact_uploads_retention_class_check CHECK (retention_class IN ('short', 'normal', 'long', 'legal_hold')),
    CONSTRAINT artifact_uploads_method_check CHECK (method IN ('single', 'parts', 'known')),
    CONSTRAINT artifact_uploads_closed_reason_check CHECK (closed_reason IN ('recorded', 'expired', 'mismatch')),
    CONSTRAINT artifact_uploads_digest_check CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
    CONSTRAINT artifact_uploads_byte_size_check CHECK (byte_size >= 0),
    CONSTRAINT artifact_uploads_closed_check CHECK ((closed_at IS NULL) = (closed_reason IS NULL)),
    CONSTRAINT artifact_uploads_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id),
    CONSTRAINT artifact_uploads_lease_id_fkey FOREIGN KEY(lease_id) REFERENCES runner_leases (id)
)""",
    """\
CREATE INDEX artifact_uploads_bucket_key_idx ON artifact_uploads (bucket, key)""",
    """\
CREATE INDEX artifact_uploads_lease_id_idx ON artifact_uploads (lease_id) WHERE closed_at IS NULL""",
    """\
CREATE TABLE installation (
    one_row BOOLEAN DEFAULT 'true' NOT NULL,
    id UUID NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT installation_pkey PRIMARY KEY (one_row),
    CONSTRAINT installation_one_row_check CHECK (one_row)
)""",
    """\
ALTER TABLE artifact_refs ADD COLUMN name TEXT""",
    """\
CREATE INDEX artifact_refs_operation_id_digest_idx ON artifact_refs (operation_id, digest)""",
    """\
DROP INDEX runner_output_refs_attempt_id_name_idx""",
    """\
CREATE UNIQUE INDEX runner_output_refs_attempt_id_name_idx ON runner_output_refs (attempt_id, name)""",
)

DOWNGRADE = (
    """\
DROP INDEX runner_output_refs_attempt_id_name_idx""",
    """\
CREATE INDEX runner_output_refs_attempt_id_name_idx ON runner_output_refs (attempt_id, name)""",
    """\
DROP INDEX artifact_refs_operation_id_digest_idx""",
    """\
ALTER TABLE artifact_refs DROP COLUMN name""",
    """\
DROP TABLE installation""",
    """\
DROP TABLE artifact_uploads""",
)


def upgrade() -> None:
    """Add the tables; until now no output could be recorded, so none can be named twice."""
    for statement in UPGRADE:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Remove what was added; objects that only a ticket named are orphans then."""
    for statement in DOWNGRADE:
        op.get_bind().exec_driver_sql(statement)
