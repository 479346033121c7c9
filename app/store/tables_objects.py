"""What points at the object store: artifacts, logs, outputs, evidence."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID

from app.domain import lifecycle as lc
from app.store.columns import (
    HOT,
    at_,
    bigint_,
    flag_,
    id_,
    int_,
    metadata,
    one_of,
    text_,
    uuid_,
    with_,
)

artifact_refs = sa.Table(
    "artifact_refs",
    metadata,
    id_(),
    text_("storage"),
    text_("bucket"),
    text_("key"),
    text_("content_type"),
    text_("digest"),
    bigint_("byte_size"),
    text_("retention_class"),
    at_("created_at", null=False),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    uuid_("operation_id"),
    text_("state"),
    at_("expires_at"),
    at_("held_at"),
    text_("held_by", null=True),
    text_("held_reason", null=True),
    one_of("storage", ("s3", "minio")),
    one_of("retention_class", lc.RetentionClass),
    one_of("state", lc.ArtifactState),
    sa.CheckConstraint("digest ~ '^sha256:[0-9a-f]{64}$'", name="digest"),
    sa.CheckConstraint("byte_size >= 0", name="byte_size"),
    sa.Index(None, "digest"),
    sa.Index(None, "attempt_id"),
    sa.Index(None, "bucket", "key"),
    sa.Index(
        "artifact_refs_expires_at_idx",
        "expires_at",
        postgresql_where=sa.text("held_at IS NULL AND state <> 'removing'"),
    ),
    sa.Index("artifact_refs_removing_idx", "id", postgresql_where=sa.text("state = 'removing'")),
    # What was made without a date gets one; what never goes has 'infinity'.
    sa.Index(
        "artifact_refs_undated_idx",
        "id",
        postgresql_where=sa.text("expires_at IS NULL AND retention_class <> 'legal_hold'"),
    ),
)

log_streams = sa.Table(
    "log_streams",
    metadata,
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), primary_key=True),
    sa.Column("lease_number", sa.Integer, primary_key=True),
    sa.Column("stream", sa.Text, primary_key=True),
    bigint_("next_offset", default="0"),
    bigint_("raw_size", default="0"),
    bigint_("stored_size", default="0"),
    bigint_("line_count", default="0"),
    flag_("final", default="false"),
    at_("created_at", null=False),
    at_("updated_at", null=False),
    one_of("stream", lc.LogStream),
    **with_(**HOT),
)

raw_log_refs = sa.Table(
    "raw_log_refs",
    metadata,
    id_(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    text_("stream"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=False),
    bigint_("byte_size"),
    bigint_("line_count"),
    flag_("masked"),
    at_("created_at", null=False),
    int_("lease_number"),
    bigint_("stream_offset"),
    bigint_("raw_size"),
    text_("raw_hmac"),
    sa.UniqueConstraint("attempt_id", "lease_number", "stream", "stream_offset"),
    one_of("stream", lc.LogStream),
    sa.CheckConstraint(
        "byte_size >= 0 AND line_count >= 0 AND stream_offset >= 0 AND raw_size >= 0",
        name="sizes",
    ),
    sa.Index(None, "attempt_id", "stream"),
    sa.Index(None, "artifact_ref_id"),
)

runner_output_refs = sa.Table(
    "runner_output_refs",
    metadata,
    id_(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    text_("name"),
    text_("output_type"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=False),
    text_("schema_ref", null=True),
    text_("digest"),
    at_("created_at", null=False),
    one_of("output_type", lc.OutputType),
    sa.Index(None, "attempt_id", "name"),
    sa.Index(None, "artifact_ref_id"),
)

evidence_refs = sa.Table(
    "evidence_refs",
    metadata,
    id_(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    sa.Column("output_ref_id", UUID, sa.ForeignKey("runner_output_refs.id"), nullable=True),
    text_("evidence_type"),
    text_("status"),
    text_("subject_ref"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=True),
    at_("recorded_at", null=False),
    uuid_("request_id"),
    sa.UniqueConstraint("attempt_id", "request_id"),
    one_of("evidence_type", lc.EvidenceType),
    one_of("status", lc.EvidenceStatus),
    sa.Index(None, "artifact_ref_id"),
    sa.Index(None, "output_ref_id"),
)
