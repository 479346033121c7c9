"""The schema, declared once for Alembic and the few lists that are built at run time.

Statements elsewhere are literal SQL. A test dumps a migrated database and one made from this file
and proves the two equal, so a change here needs its migration and the other way round. What
SQLAlchemy cannot declare (functions, triggers) stands in `store/schema_sql.py`.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP, UUID
from sqlalchemy.types import UserDefinedType

from app.domain import lifecycle as lc


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id, which never wraps."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """The type's name in DDL."""
        return "XID8"


metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)

# Rows that are updated often keep free space in their page, so that the update stays there (HOT).
HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}
APPEND_ONLY = {"autovacuum_vacuum_insert_scale_factor": 0.05}


def _with(**parameters: object) -> dict[str, Any]:
    return {"postgresql_with": parameters}


def _id(name: str = "id") -> sa.Column[Any]:
    return sa.Column(name, UUID, primary_key=True)


def _uuid(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, UUID, nullable=null)


def _text(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=null)


def _at(name: str, *, null: bool = True) -> sa.Column[Any]:
    return sa.Column(name, TIMESTAMP(timezone=True), nullable=null)


def _int(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, nullable=null, server_default=default)


def _bigint(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=null, server_default=default)


def _flag(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=null, server_default=default)


def _json(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, JSONB, nullable=null)


def _one_of(column: str, values: object) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({lc.sql_list(values)})", name=column)


_TERMINAL = f"status IN ({lc.sql_list(lc.TERMINAL)})"
_ENDED_BADLY = f"status IN ({lc.sql_list(s for s in lc.TERMINAL if s is not lc.Status.SUCCEEDED)})"
_KINDS = ", ".join(f"('{prefix}', '{kind}')" for prefix, kind in lc.KIND_OF_PREFIX.items())

placement_classes = sa.Table(
    "placement_classes",
    metadata,
    _id(),
    _text("runner_kind"),
    _text("job_type"),
    _text("zone", null=True),
    _json("labels"),
    _at("created_at", null=False),
    _one_of("runner_kind", lc.RunnerKind),
    sa.Index(None, "runner_kind"),
)

placement_class_versions = sa.Table(
    "placement_class_versions",
    metadata,
    sa.Column("runner_kind", sa.Text, primary_key=True),
    _bigint("version", default="0"),
    _one_of("runner_kind", lc.RunnerKind),
    **_with(**HOT),
)

execution_attempts = sa.Table(
    "execution_attempts",
    metadata,
    _id(),
    _uuid("operation_id"),
    _uuid("plan_id"),
    _uuid("plan_node_id"),
    _uuid("node_run_id"),
    _text("requested_by_service"),
    _text("idempotency_key"),
    _text("request_digest"),
    _text("job_type"),
    _json("job_spec_ref"),
    _text("status"),
    _text("failure_category", null=True),
    _text("failure_message", null=True),
    _json("result", null=True),
    _text("runner_kind"),
    _text("runner_instance_id", null=True),
    _int("priority", default="100"),
    _int("timeout_seconds"),
    _int("queue_timeout_seconds", null=True),
    _json("placement"),
    sa.Column("placement_class_id", UUID, sa.ForeignKey("placement_classes.id"), nullable=True),
    _text("concurrency_key", null=True),
    _flag("claimable"),
    _at("created_at", null=False),
    _at("leased_at"),
    _at("started_at"),
    _at("finished_at"),
    _at("cancel_requested_at"),
    _text("cancel_reason", null=True),
    _at("limit_at"),
    _int("last_lease_number", default="0"),
    _int("unstarted_leases", default="0"),
    _int("unconfirmed_leases", default="0"),
    _text("backoff_runner_id", null=True),
    _at("backoff_until"),
    _flag("stop_confirmed", null=True),
    _int("last_event_number", default="0"),
    _at("last_event_at", null=False),
    _int("last_feed_epoch"),
    sa.Column("last_feed_xid", Xid8, nullable=False),
    sa.UniqueConstraint("idempotency_key"),
    _one_of("status", lc.Status),
    _one_of("failure_category", lc.FailureCategory),
    _one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint(f"job_type ~ '{lc.JOB_TYPE_PATTERN}'", name="job_type"),
    sa.CheckConstraint(
        f"(split_part(job_type, '.', 1), runner_kind) IN ({_KINDS})", name="kind_of_job"
    ),
    sa.CheckConstraint("timeout_seconds BETWEEN 1 AND 604800", name="timeout_seconds"),
    sa.CheckConstraint("queue_timeout_seconds >= 1", name="queue_timeout_seconds"),
    sa.CheckConstraint(f"({_TERMINAL}) = (finished_at IS NOT NULL)", name="finished_at"),
    sa.CheckConstraint(
        f"({_ENDED_BADLY}) = (failure_category IS NOT NULL)", name="failure_category_when"
    ),
    sa.CheckConstraint(f"({_TERMINAL}) = (stop_confirmed IS NOT NULL)", name="stop_confirmed"),
    sa.CheckConstraint(
        "status NOT IN ('running', 'succeeded', 'failed', 'timed_out') OR started_at IS NOT NULL",
        name="started_at",
    ),
    sa.CheckConstraint(
        "status <> 'queued' OR (leased_at, started_at, runner_instance_id) IS NULL",
        name="queued",
    ),
    sa.CheckConstraint("leased_at IS NOT NULL OR started_at IS NULL", name="leased_at"),
    sa.CheckConstraint(f"NOT ({_TERMINAL}) OR (NOT claimable AND limit_at IS NULL)", name="ended"),
    sa.CheckConstraint(
        "NOT claimable OR cancel_requested_at IS NULL", name="cancelled_is_not_claimable"
    ),
    # A class may go when no open attempt names it, so an ended one names none.
    sa.CheckConstraint(f"({_TERMINAL}) = (placement_class_id IS NULL)", name="placement_class_id"),
    sa.Index(None, "operation_id", "plan_node_id", "created_at"),
    sa.Index(None, "status", "priority", "created_at"),
    sa.Index("execution_attempts_created_at_idx", "created_at", "id"),
    sa.Index(
        "execution_attempts_claimable_idx",
        "placement_class_id",
        "priority",
        "created_at",
        "id",
        postgresql_where=sa.text("claimable"),
    ),
    sa.Index(
        "execution_attempts_limit_at_idx",
        "limit_at",
        postgresql_where=sa.text("limit_at IS NOT NULL"),
    ),
    sa.Index(
        "execution_attempts_waiting_for_key_idx",
        "concurrency_key",
        "priority",
        "created_at",
        "id",
        postgresql_where=sa.text("status = 'queued' AND concurrency_key IS NOT NULL"),
    ),
    sa.Index(
        "execution_attempts_claimable_key_idx",
        "concurrency_key",
        postgresql_where=sa.text("claimable AND concurrency_key IS NOT NULL"),
    ),
    sa.Index(
        "execution_attempts_one_per_key_idx",
        "concurrency_key",
        unique=True,
        postgresql_where=sa.text("status IN ('leased', 'running') AND concurrency_key IS NOT NULL"),
    ),
    sa.Index(
        "execution_attempts_live_class_idx",
        "placement_class_id",
        postgresql_where=sa.text("placement_class_id IS NOT NULL"),
    ),
    **_with(fillfactor=85, autovacuum_vacuum_scale_factor=0.02),
)

runner_instances = sa.Table(
    "runner_instances",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    _text("runner_kind"),
    _text("version"),
    sa.Column("capabilities", sa.ARRAY(sa.Text), nullable=False),
    _text("zone", null=True),
    _json("labels"),
    _at("registered_at", null=False),
    _at("last_seen_at", null=False),
    _uuid("session_id"),
    _int("lapsed_claims", default="0"),
    _at("drained_at"),
    _text("drained_by", null=True),
    _at("contested_at"),
    _one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint("id ~ '^[A-Za-z0-9._-]{1,128}$'", name="id"),
    **_with(**HOT),
)

runner_sessions = sa.Table(
    "runner_sessions",
    metadata,
    sa.Column("runner_instance_id", sa.Text, primary_key=True),
    sa.Column("session_id", UUID, primary_key=True),
    _at("began_at", null=False),
    _at("replaced_at"),
    sa.Index(None, "replaced_at"),
)

runner_statuses = sa.Table(
    "runner_statuses",
    metadata,
    sa.Column("runner_instance_id", sa.Text, primary_key=True),
    _text("runner_kind"),
    _text("status"),
    _int("capacity_total"),
    _int("capacity_used"),
    _text("last_error", null=True),
    _bigint("sequence", default="0"),
    _at("updated_at", null=False),
    _one_of("status", lc.RunnerStatus),
    _one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint("capacity_total >= 0 AND capacity_used >= 0", name="capacity"),
    **_with(**HOT),
)

runner_leases = sa.Table(
    "runner_leases",
    metadata,
    _id(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    _text("runner_instance_id"),
    _text("lease_token_hash"),
    _text("token_key_id"),
    _text("status"),
    _at("expires_at", null=False),
    _at("created_at", null=False),
    _at("released_at"),
    _int("lease_number"),
    _uuid("session_id"),
    _uuid("claim_request_id"),
    _bigint("last_sequence", default="0"),
    _text("phase", null=True),
    _int("progress_percent", null=True),
    _at("started_at"),
    _at("check_at", null=False),
    _text("completion_digest", null=True),
    _at("late_word_at"),
    sa.UniqueConstraint("attempt_id", "lease_number"),
    _one_of("status", lc.LeaseStatus),
    _one_of("phase", lc.Phase),
    sa.CheckConstraint("progress_percent BETWEEN 0 AND 100", name="progress_percent"),
    sa.CheckConstraint("(status = 'active') = (released_at IS NULL)", name="released_at"),
    sa.Index(None, "attempt_id", "status"),
    sa.Index(None, "runner_instance_id", "status"),
    sa.Index(
        "runner_leases_one_active_idx",
        "attempt_id",
        unique=True,
        postgresql_where=sa.text("status = 'active'"),
    ),
    sa.Index(
        "runner_leases_check_at_idx", "check_at", postgresql_where=sa.text("status = 'active'")
    ),
    sa.Index("runner_leases_claim_idx", "runner_instance_id", "session_id", "claim_request_id"),
    **_with(**HOT),
)

attempt_heartbeats = sa.Table(
    "attempt_heartbeats",
    metadata,
    _uuid("id"),
    _uuid("attempt_id"),
    _text("runner_instance_id"),
    _text("phase", null=True),
    _int("progress_percent", null=True),
    _text("message", null=True),
    _at("created_at", null=False),
    sa.PrimaryKeyConstraint("id", "created_at"),
    _one_of("phase", lc.Phase),
    sa.CheckConstraint("progress_percent BETWEEN 0 AND 100", name="progress_percent"),
    sa.Index(None, "attempt_id", "created_at"),
    postgresql_partition_by="RANGE (created_at)",
)

attempt_events = sa.Table(
    "attempt_events",
    metadata,
    _uuid("id"),
    _uuid("attempt_id"),
    _int("event_number"),
    _text("event_type"),
    _json("payload"),
    _int("feed_epoch"),
    sa.Column("feed_xid", Xid8, nullable=False),
    _at("created_at", null=False),
    sa.PrimaryKeyConstraint("id", "created_at"),
    _one_of("event_type", lc.EventType),
    sa.Index(None, "attempt_id", "created_at"),
    sa.Index("attempt_events_feed_idx", "feed_epoch", "feed_xid", "attempt_id", "event_number"),
    postgresql_partition_by="RANGE (created_at)",
)

artifact_refs = sa.Table(
    "artifact_refs",
    metadata,
    _id(),
    _text("storage"),
    _text("bucket"),
    _text("key"),
    _text("content_type"),
    _text("digest"),
    _bigint("byte_size"),
    _text("retention_class"),
    _at("created_at", null=False),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    _uuid("operation_id"),
    _text("state"),
    _at("expires_at"),
    _at("held_at"),
    _text("held_by", null=True),
    _text("held_reason", null=True),
    _one_of("storage", ("s3", "minio")),
    _one_of("retention_class", lc.RetentionClass),
    _one_of("state", lc.ArtifactState),
    sa.CheckConstraint("digest ~ '^sha256:[0-9a-f]{64}$'", name="digest"),
    sa.CheckConstraint("byte_size >= 0", name="byte_size"),
    sa.Index(None, "digest"),
    sa.Index(None, "attempt_id"),
    sa.Index(None, "bucket", "key"),
    sa.Index(
        "artifact_refs_expires_at_idx",
        "expires_at",
        postgresql_where=sa.text("held_at IS NULL"),
    ),
)

log_streams = sa.Table(
    "log_streams",
    metadata,
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), primary_key=True),
    sa.Column("lease_number", sa.Integer, primary_key=True),
    sa.Column("stream", sa.Text, primary_key=True),
    _bigint("next_offset", default="0"),
    _bigint("raw_size", default="0"),
    _bigint("stored_size", default="0"),
    _bigint("line_count", default="0"),
    _flag("final", default="false"),
    _at("created_at", null=False),
    _at("updated_at", null=False),
    _one_of("stream", lc.LogStream),
    **_with(**HOT),
)

raw_log_refs = sa.Table(
    "raw_log_refs",
    metadata,
    _id(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    _text("stream"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=False),
    _bigint("byte_size"),
    _bigint("line_count"),
    _flag("masked"),
    _at("created_at", null=False),
    _int("lease_number"),
    _bigint("stream_offset"),
    _bigint("raw_size"),
    _text("raw_hmac"),
    sa.UniqueConstraint("attempt_id", "lease_number", "stream", "stream_offset"),
    _one_of("stream", lc.LogStream),
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
    _id(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    _text("name"),
    _text("output_type"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=False),
    _text("schema_ref", null=True),
    _text("digest"),
    _at("created_at", null=False),
    _one_of("output_type", lc.OutputType),
    sa.Index(None, "attempt_id", "name"),
    sa.Index(None, "artifact_ref_id"),
)

evidence_refs = sa.Table(
    "evidence_refs",
    metadata,
    _id(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    sa.Column("output_ref_id", UUID, sa.ForeignKey("runner_output_refs.id"), nullable=True),
    _text("evidence_type"),
    _text("status"),
    _text("subject_ref"),
    sa.Column("artifact_ref_id", UUID, sa.ForeignKey("artifact_refs.id"), nullable=True),
    _at("recorded_at", null=False),
    _uuid("request_id"),
    sa.UniqueConstraint("attempt_id", "request_id"),
    _one_of("evidence_type", lc.EvidenceType),
    _one_of("status", lc.EvidenceStatus),
    sa.Index(None, "artifact_ref_id"),
    sa.Index(None, "output_ref_id"),
)

concurrency_holds = sa.Table(
    "concurrency_holds",
    metadata,
    sa.Column("concurrency_key", sa.Text, primary_key=True),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    _int("lease_number"),
    _at("held_at", null=False),
    _at("attempt_ended_at"),
    sa.Index(None, "attempt_id"),
)

feed_epochs = sa.Table(
    "feed_epochs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    _text("system_identifier"),
    _int("timeline"),
    sa.Column("previous_end_xid", Xid8, nullable=True),
    _at("begun_at", null=False),
)

service_ticks = sa.Table(
    "service_ticks",
    metadata,
    sa.Column("one_row", sa.Boolean, primary_key=True, server_default="true"),
    _at("last_tick_at", null=False),
    _at("outage_ended_at"),
    _at("breaker_began_at"),
    _at("breaker_ended_at"),
    sa.CheckConstraint("one_row", name="one_row"),
    **_with(fillfactor=10),
)

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    _uuid("holder", null=True),
    _bigint("term", default="0"),
    _at("elected_at"),
    _at("expires_at"),
    _at("swept_at"),
    **_with(fillfactor=10),
)

processed_messages = sa.Table(
    "processed_messages",
    metadata,
    sa.Column("message_digest", sa.Text, primary_key=True),
    _text("handler"),
    _text("envelope_id"),
    _text("message_id"),
    _at("processed_at", null=False),
    sa.Index(None, "processed_at"),
)

message_failures = sa.Table(
    "message_failures",
    metadata,
    sa.Column("message_digest", sa.Text, primary_key=True),
    _text("handler"),
    _int("failures", default="0"),
    _int("deaths", default="0"),
    _at("first_failed_at"),
    _at("last_failed_at"),
    _uuid("working_process", null=True),
    _at("working_since"),
    _text("last_reason", null=True),
    sa.Index(None, "last_failed_at"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    _id(),
    _text("message_digest"),
    _text("reason"),
    _text("detail"),
    _text("subscription"),
    _text("message_id"),
    _text("envelope_id", null=True),
    _text("handler", null=True),
    # JSON as text: jsonb would change numbers, and with them the message's digest.
    _text("payload", null=True),
    _bigint("payload_bytes"),
    _flag("redrivable"),
    _int("failures", default="0"),
    _int("deliveries", default="1"),
    _at("first_at", null=False),
    _at("last_at", null=False),
    _int("redrives", default="0"),
    _at("redriven_at"),
    _text("redriven_by", null=True),
    _uuid("redrive_request_id", null=True),
    _text("redrive_outcome", null=True),
    _at("discarded_at"),
    _text("discarded_by", null=True),
    sa.UniqueConstraint("message_digest"),
    sa.CheckConstraint("redriven_at IS NULL OR discarded_at IS NULL", name="one_end"),
    sa.Index(None, "first_at", "id"),
    sa.Index(None, "last_at"),
)

state = sa.Table(
    "state",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    _json("document"),
    _bigint("version"),
    _at("updated_at", null=False),
    sa.CheckConstraint("version >= 1", name="version"),
)
