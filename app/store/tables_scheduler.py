"""Schedules, the messages that they make, and what the leaders of all times did."""

from __future__ import annotations

import sqlalchemy as sa

from app.store.columns import (
    HOT,
    at_,
    bigint_,
    id_,
    int_,
    metadata,
    one_of,
    text_,
    uuid_,
    with_,
)

MISFIRES = ("skip", "once", "all")
FIRE_KINDS = ("due", "trigger")
FIRE_OUTCOMES = ("fired", "skipped")
TERM_ENDS = ("resignation", "expiry")

leader_terms = sa.Table(
    "leader_terms",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("term", sa.BigInteger, primary_key=True, autoincrement=False),
    uuid_("holder"),
    text_("label"),
    at_("from_at", null=False),
    at_("renewed_at"),
    at_("until_at"),
    text_("ended_by", null=True),
    one_of("ended_by", TERM_ENDS),
    sa.CheckConstraint("until_at >= from_at AND renewed_at >= from_at", name="forward"),
    sa.CheckConstraint("(until_at IS NULL) = (ended_by IS NULL)", name="ended"),
    sa.Index(
        "leader_terms_one_open_idx",
        "name",
        unique=True,
        postgresql_where=sa.text("until_at IS NULL"),
    ),
)

# Written about once a second by the leader, read by everybody.
sweeps = sa.Table(
    "sweeps",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    bigint_("term"),
    sa.Column("interval_seconds", sa.Double, nullable=False),
    at_("last_run_at"),
    sa.Column("last_run_seconds", sa.Double, nullable=True),
    bigint_("last_done", null=True),
    sa.Column("behind_seconds", sa.Double, nullable=False, server_default="0"),
    bigint_("runs", default="0"),
    bigint_("done", default="0"),
    bigint_("failures", default="0"),
    int_("failing", default="0"),
    at_("failed_at"),
    text_("last_error", null=True),
    **with_(fillfactor=10),
)

schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    text_("cron", null=True),
    text_("time_zone"),
    at_("at"),
    text_("to"),
    # JSON as text: jsonb would change numbers, and with them the message.
    text_("data"),
    text_("misfire"),
    int_("misfire_limit"),
    int_("jitter_seconds"),
    bigint_("version", default="1"),
    at_("next_due_at"),
    at_("next_fire_at"),
    at_("last_due_at"),
    at_("paused_at"),
    text_("paused_by", null=True),
    at_("created_at", null=False),
    at_("updated_at", null=False),
    text_("updated_by"),
    one_of("misfire", MISFIRES),
    sa.CheckConstraint("(cron IS NULL) <> (at IS NULL)", name="one_timing"),
    sa.CheckConstraint("(next_due_at IS NULL) = (next_fire_at IS NULL)", name="next"),
    sa.CheckConstraint("paused_at IS NULL OR next_fire_at IS NULL", name="paused"),
    sa.Index(
        "schedules_due_idx",
        "next_fire_at",
        postgresql_where=sa.text("next_fire_at IS NOT NULL"),
    ),
    **with_(**HOT),
)

# No foreign key: the history of a schedule outlives it, and with it the names of what it fired.
schedule_fires = sa.Table(
    "schedule_fires",
    metadata,
    id_(),
    text_("schedule"),
    at_("due_at", null=False),
    text_("kind"),
    text_("outcome"),
    at_("fired_at", null=False),
    bigint_("term", null=True),
    uuid_("request_id", null=True),
    text_("triggered_by", null=True),
    at_("skipped_until"),
    int_("skipped_count", null=True),
    at_("sent_at"),
    text_("sent_as", null=True),
    one_of("kind", FIRE_KINDS),
    one_of("outcome", FIRE_OUTCOMES),
    sa.CheckConstraint("(kind = 'due') = (term IS NOT NULL)", name="term"),
    sa.CheckConstraint("(kind = 'trigger') = (request_id IS NOT NULL)", name="request"),
    sa.CheckConstraint(
        "(outcome = 'skipped') = (skipped_until IS NOT NULL AND skipped_count IS NOT NULL)",
        name="skipped",
    ),
    sa.Index(
        "schedule_fires_one_a_time_idx",
        "schedule",
        "due_at",
        unique=True,
        postgresql_where=sa.text("kind = 'due'"),
    ),
    sa.Index(None, "schedule", "fired_at", "id"),
    sa.Index(None, "fired_at"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    id_(),
    text_("schedule"),
    text_("to"),
    text_("data"),
    at_("created_at", null=False),
    at_("next_try_at", null=False),
    int_("tries", default="0"),
    text_("last_reason", null=True),
    sa.Index(None, "next_try_at"),
)
