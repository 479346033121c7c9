"""Runners, their sessions and what they report."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID

from app.domain import lifecycle as lc
from app.store.columns import HOT, at_, bigint_, int_, json_, metadata, one_of, text_, uuid_, with_

runner_instances = sa.Table(
    "runner_instances",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    text_("runner_kind"),
    text_("version"),
    sa.Column("capabilities", sa.ARRAY(sa.Text), nullable=False),
    text_("zone", null=True),
    json_("labels"),
    at_("registered_at", null=False),
    at_("last_seen_at", null=False),
    uuid_("session_id"),
    int_("lapsed_claims", default="0"),
    at_("drained_at"),
    text_("drained_by", null=True),
    at_("contested_at"),
    one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint("id ~ '^[A-Za-z0-9._-]{1,128}$'", name="id"),
    **with_(**HOT),
)

runner_sessions = sa.Table(
    "runner_sessions",
    metadata,
    sa.Column("runner_instance_id", sa.Text, primary_key=True),
    sa.Column("session_id", UUID, primary_key=True),
    at_("began_at", null=False),
    at_("replaced_at"),
    sa.Index(None, "replaced_at"),
)

runner_statuses = sa.Table(
    "runner_statuses",
    metadata,
    sa.Column("runner_instance_id", sa.Text, primary_key=True),
    text_("runner_kind"),
    text_("status"),
    int_("capacity_total"),
    int_("capacity_used"),
    text_("last_error", null=True),
    bigint_("sequence", default="0"),
    at_("updated_at", null=False),
    one_of("status", lc.RunnerStatus),
    one_of("runner_kind", lc.RunnerKind),
    sa.CheckConstraint("capacity_total >= 0 AND capacity_used >= 0", name="capacity"),
    **with_(**HOT),
)
