"""Attempts, the leases on them, their timelines, and what they wait for."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, UUID

from app.domain import lifecycle as lc
from app.store.columns import (
    HOT,
    Xid8,
    at_,
    bigint_,
    flag_,
    id_,
    int_,
    json_,
    metadata,
    one_of,
    text_,
    uuid_,
    with_,
)

TERMINAL = f"status IN ({lc.sql_list(lc.TERMINAL)})"
ENDED_BADLY = f"status IN ({lc.sql_list(s for s in lc.TERMINAL if s is not lc.Status.SUCCEEDED)})"
KINDS = ", ".join(f"('{prefix}', '{kind}')" for prefix, kind in lc.KIND_OF_PREFIX.items())

placement_classes = sa.Table(
    "placement_classes",
    metadata,
    id_(),
    text_("runner_kind"),
    text_("job_type"),
    text_("zone", null=True),
    json_("labels"),
    at_("created_at", null=False),
    one_of("runner_kind", lc.RunnerKind),
    sa.Index(None, "runner_kind"),
)

placement_class_versions = sa.Table(
    "placement_class_versions",
    metadata,
    sa.Column("runner_kind", sa.Text, primary_key=True),
    bigint_("version", default="0"),
    one_of("runner_kind", lc.RunnerKind),
    **with_(**HOT),
)

execution_attempts = sa.Table(
    "execution_attempts",
    metadata,
    id_(),
    uuid_("operation_id"),
    uuid_("plan_id"),
    uuid_("plan_node_id"),
    uuid_("node_run_id"),
    text_("requested_by_service"),
    text_("idempotency_key"),
    text_("request_digest"),
    text_("job_type"),
    json_("job_spec_ref"),
    text_("status"),
    text_("failure_category", null=True),
    text_("failure_message", null=True),
    json_("result", null=True),
    text_("runner_kind"),
    text_("runner_instance_id", null=True),
    int_("priority", default="100"),
    int_("timeout_seconds"),
    int_("queue_timeout_seconds", null=True),
    json_("placement"),
    sa.Column("placement_class_id", UUID, sa.ForeignKey("placement_classes.id"), nullable=True),
    text_("concurrency_key", null=True),
    flag_("claimable"),
    at_("created_at", null=False),
    at_("leased_at"),
    at_("started_at"),
    at_("finished_at"),
    at_("cancel_requested_at"),
    text_("cancel_reason", null=True),
    at_("limit_at"),
    int_("last_lease_number", default="0"),
    int_("unstarted_leases", default="0"),
    int_("unconfirmed_leases", default="0"),
    text_("backoff_runner_id", null=True),
    at_("backoff_until"),
    flag_("stop_confirmed", null=True),
    int_("last_event_number", default="0"),
    at_("last_event_at", null=False),
    int_("last_feed_epoch"),
    sa.Column("last_feed_xid", Xid8, nullable=False),
    sa.UniqueConstraint("idempotency_key"),
    one_of("status", lc.Status),
    one_of("failure_category", lc.FailureCategory),
    one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint(f"job_type ~ '{lc.JOB_TYPE_PATTERN}'", name="job_type"),
    sa.CheckConstraint(
        f"(split_part(job_type, '.', 1), runner_kind) IN ({KINDS})", name="kind_of_job"
    ),
    sa.CheckConstraint("timeout_seconds BETWEEN 1 AND 604800", name="timeout_seconds"),
    sa.CheckConstraint("queue_timeout_seconds >= 1", name="queue_timeout_seconds"),
    sa.CheckConstraint(f"({TERMINAL}) = (finished_at IS NOT NULL)", name="finished_at"),
    sa.CheckConstraint(
        f"({ENDED_BADLY}) = (failure_category IS NOT NULL)", name="failure_category_when"
    ),
    sa.CheckConstraint(f"({TERMINAL}) = (stop_confirmed IS NOT NULL)", name="stop_confirmed"),
    sa.CheckConstraint(
        "status NOT IN ('running', 'succeeded', 'failed', 'timed_out') OR started_at IS NOT NULL",
        name="started_at",
    ),
    sa.CheckConstraint(
        "status <> 'queued' OR (leased_at, started_at, runner_instance_id) IS NULL",
        name="queued",
    ),
    sa.CheckConstraint("leased_at IS NOT NULL OR started_at IS NULL", name="leased_at"),
    sa.CheckConstraint(f"NOT ({TERMINAL}) OR (NOT claimable AND limit_at IS NULL)", name="ended"),
    sa.CheckConstraint(
        "NOT claimable OR cancel_requested_at IS NULL", name="cancelled_is_not_claimable"
    ),
    # A class may go when no open attempt names it, so an ended one names none.
    sa.CheckConstraint(f"({TERMINAL}) = (placement_class_id IS NULL)", name="placement_class_id"),
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
    **with_(
        fillfactor=85, autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.02
    ),
)

runner_leases = sa.Table(
    "runner_leases",
    metadata,
    id_(),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    text_("runner_instance_id"),
    text_("lease_token_hash"),
    text_("token_key_id"),
    text_("status"),
    at_("expires_at", null=False),
    at_("created_at", null=False),
    at_("released_at"),
    int_("lease_number"),
    uuid_("session_id"),
    uuid_("claim_request_id"),
    bigint_("last_sequence", default="0"),
    text_("phase", null=True),
    int_("progress_percent", null=True),
    at_("started_at"),
    at_("check_at", null=False),
    text_("completion_digest", null=True),
    at_("late_word_at"),
    # What the timeline has been told of: "source:kind". NULL for nearly every lease.
    sa.Column("masked", ARRAY(sa.Text), nullable=True),
    int_("log_chunks", default="0"),
    sa.UniqueConstraint("attempt_id", "lease_number"),
    one_of("status", lc.LeaseStatus),
    one_of("phase", lc.Phase),
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
    **with_(**HOT, autovacuum_analyze_scale_factor=0.02),
)

attempt_heartbeats = sa.Table(
    "attempt_heartbeats",
    metadata,
    uuid_("id"),
    uuid_("attempt_id"),
    text_("runner_instance_id"),
    text_("phase", null=True),
    int_("progress_percent", null=True),
    text_("message", null=True),
    at_("created_at", null=False),
    sa.PrimaryKeyConstraint("id", "created_at"),
    one_of("phase", lc.Phase),
    sa.CheckConstraint("progress_percent BETWEEN 0 AND 100", name="progress_percent"),
    sa.Index(None, "attempt_id", "created_at"),
    postgresql_partition_by="RANGE (created_at)",
)

attempt_events = sa.Table(
    "attempt_events",
    metadata,
    uuid_("id"),
    uuid_("attempt_id"),
    int_("event_number"),
    text_("event_type"),
    json_("payload"),
    int_("feed_epoch"),
    sa.Column("feed_xid", Xid8, nullable=False),
    at_("created_at", null=False),
    sa.PrimaryKeyConstraint("id", "created_at"),
    one_of("event_type", lc.EventType),
    sa.Index(None, "attempt_id", "created_at"),
    sa.Index("attempt_events_feed_idx", "feed_epoch", "feed_xid", "attempt_id", "event_number"),
    postgresql_partition_by="RANGE (created_at)",
)

concurrency_holds = sa.Table(
    "concurrency_holds",
    metadata,
    sa.Column("concurrency_key", sa.Text, primary_key=True),
    sa.Column("attempt_id", UUID, sa.ForeignKey("execution_attempts.id"), nullable=False),
    int_("lease_number"),
    at_("held_at", null=False),
    at_("attempt_ended_at"),
    sa.Index(None, "attempt_id"),
)
