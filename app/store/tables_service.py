"""What the service keeps for itself: feed, leader, messages, handler state."""

from __future__ import annotations

import sqlalchemy as sa

from app.store.columns import (
    Xid8,
    at_,
    bigint_,
    flag_,
    id_,
    int_,
    json_,
    metadata,
    text_,
    uuid_,
    with_,
)

feed_epochs = sa.Table(
    "feed_epochs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    text_("system_identifier"),
    int_("timeline"),
    # The end of the epoch before: a cursor beyond it saw what the restore has undone.
    sa.Column("previous_end_xid", Xid8, nullable=True),
    at_("begun_at", null=False),
    # Facts of this epoch may be dated up to here while the clock, set back, was not there yet.
    at_("facts_until"),
    at_("objects_confirmed_at"),
    text_("objects_confirmed_by", null=True),
)

removed_partitions = sa.Table(
    "removed_partitions",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    text_("parent"),
    at_("starts_at", null=False),
    at_("ends_at", null=False),
    at_("begun_at", null=False),
    at_("removed_at"),
)

service_ticks = sa.Table(
    "service_ticks",
    metadata,
    sa.Column("one_row", sa.Boolean, primary_key=True, server_default="true"),
    at_("last_tick_at", null=False),
    at_("outage_ended_at"),
    at_("breaker_began_at"),
    at_("breaker_ended_at"),
    # The latest one of this feed epoch: what a clock that was set back is seen by.
    at_("latest_tick_at"),
    at_("outage_began_at"),
    sa.CheckConstraint("one_row", name="one_row"),
    **with_(fillfactor=10),
)

installation = sa.Table(
    "installation",
    metadata,
    sa.Column("one_row", sa.Boolean, primary_key=True, server_default="true"),
    uuid_("id"),
    at_("created_at", null=False),
    sa.CheckConstraint("one_row", name="one_row"),
)

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    uuid_("holder", null=True),
    bigint_("term", default="0"),
    at_("elected_at"),
    at_("expires_at"),
    at_("swept_at"),
    at_("renewed_at"),
    sa.Column("label", sa.Text, nullable=False, server_default=""),
    **with_(fillfactor=10),
)

processed_messages = sa.Table(
    "processed_messages",
    metadata,
    sa.Column("message_digest", sa.Text, primary_key=True),
    text_("handler"),
    text_("envelope_id"),
    text_("message_id"),
    at_("processed_at", null=False),
    sa.Index(None, "processed_at"),
)

message_failures = sa.Table(
    "message_failures",
    metadata,
    sa.Column("message_digest", sa.Text, primary_key=True),
    text_("handler"),
    int_("failures", default="0"),
    int_("deaths", default="0"),
    at_("first_failed_at"),
    at_("last_failed_at"),
    uuid_("working_process", null=True),
    at_("working_since"),
    text_("last_reason", null=True),
    sa.Index(None, "last_failed_at"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    id_(),
    text_("message_digest"),
    text_("reason"),
    text_("detail"),
    text_("subscription"),
    text_("message_id"),
    text_("envelope_id", null=True),
    text_("handler", null=True),
    # JSON as text: jsonb would change numbers, and with them the message's digest.
    text_("payload", null=True),
    bigint_("payload_bytes"),
    flag_("redrivable"),
    int_("failures", default="0"),
    int_("deliveries", default="1"),
    at_("first_at", null=False),
    at_("last_at", null=False),
    int_("redrives", default="0"),
    at_("redriven_at"),
    text_("redriven_by", null=True),
    uuid_("redrive_request_id", null=True),
    text_("redrive_outcome", null=True),
    at_("discarded_at"),
    text_("discarded_by", null=True),
    sa.UniqueConstraint("message_digest"),
    sa.CheckConstraint("redriven_at IS NULL OR discarded_at IS NULL", name="one_end"),
    sa.Index(None, "first_at", "id"),
    sa.Index(None, "last_at"),
)

state = sa.Table(
    "state",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    json_("document"),
    bigint_("version"),
    at_("updated_at", null=False),
    sa.CheckConstraint("version >= 1", name="version"),
)
