"""Callbacks: who wants which events, how far each has got, what waits apart, what was sent."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, UUID

from app.domain.callbacks import DeliveryKind, PauseReason, Result
from app.store.columns import (
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


def _subscription(**more: Any) -> sa.Column[Any]:
    of = sa.ForeignKey("callback_subscriptions.id", ondelete="CASCADE")
    return sa.Column("subscription_id", UUID, of, nullable=False, **more)


callback_subscriptions = sa.Table(
    "callback_subscriptions",
    metadata,
    id_(),
    text_("name"),
    text_("url", null=True),
    text_("topic", null=True),
    # NULL: no filter.
    sa.Column("event_types", ARRAY(sa.Text), nullable=True),
    sa.Column("operation_ids", ARRAY(UUID), nullable=True),
    sa.Column("job_types", ARRAY(sa.Text), nullable=True),
    json_("headers"),
    text_("oidc_audience", null=True),
    int_("max_batch"),
    int_("timeout_seconds"),
    int_("pause_after_seconds"),
    # The secrets themselves are derived from these and stand nowhere.
    int_("secret_version"),
    text_("secret_key_id"),
    text_("previous_key_id", null=True),
    at_("previous_until"),
    uuid_("rotate_request_id", null=True),
    at_("created_at", null=False),
    text_("created_by"),
    at_("updated_at", null=False),
    text_("updated_by"),
    sa.UniqueConstraint("name"),
    sa.CheckConstraint("num_nonnulls(url, topic) = 1", name="one_target"),
    sa.CheckConstraint("max_batch >= 1", name="max_batch"),
    sa.CheckConstraint("secret_version >= 1", name="secret_version"),
)

callback_cursors = sa.Table(
    "callback_cursors",
    metadata,
    _subscription(primary_key=True),
    # The lease: exactly one worker anywhere may move what stands below.
    uuid_("holder", null=True),
    bigint_("term", default="0"),
    at_("lease_expires_at"),
    # Everything up to and with this place was accepted, did not match, or is parked.
    int_("feed_epoch"),
    sa.Column("feed_xid", Xid8, nullable=False),
    uuid_("attempt_id"),
    int_("event_number"),
    at_("created_from", null=False),
    # From here on that has held for the filters as they are now: what the auditor goes by.
    int_("since_epoch"),
    sa.Column("since_xid", Xid8, nullable=False),
    uuid_("since_attempt_id"),
    int_("since_event_number"),
    at_("since_at", null=False),
    bigint_("delivered", default="0"),
    int_("failures", default="0"),
    at_("failing_since"),
    at_("next_try_at"),
    at_("paused_at"),
    text_("pause_reason", null=True),
    # The last answer that was no acceptance, and of which event.
    at_("last_success_at"),
    at_("last_failure_at"),
    text_("last_result", null=True),
    int_("last_status", null=True),
    text_("last_detail", null=True),
    uuid_("last_event_id", null=True),
    # Events of before this moment were removed by age before they could be delivered.
    at_("gap_until"),
    # A replay is a second cursor that ends where the first one stood when it was asked for.
    uuid_("replay_request_id", null=True),
    text_("replay_cursor", null=True),
    text_("replay_until", null=True),
    at_("replay_created_from"),
    at_("replay_from_time"),
    at_("replay_to_time"),
    at_("replay_asked_at"),
    bigint_("replay_sent", default="0"),
    int_("replay_failures", default="0"),
    at_("replay_next_try_at"),
    one_of("pause_reason", PauseReason),
    one_of("last_result", Result),
    sa.CheckConstraint("(paused_at IS NULL) = (pause_reason IS NULL)", name="paused"),
    sa.CheckConstraint("(replay_cursor IS NULL) = (replay_until IS NULL)", name="replay"),
    **with_(fillfactor=50),
)

callback_parked = sa.Table(
    "callback_parked",
    metadata,
    _subscription(),
    uuid_("attempt_id"),
    # The first event of this attempt that was not accepted; later ones wait behind it.
    int_("event_number"),
    uuid_("event_id", null=True),
    at_("created_from", null=False),
    at_("parked_at", null=False),
    flag_("asked", default="false"),
    int_("failures", default="0"),
    at_("next_try_at", null=False),
    text_("last_result", null=True),
    int_("last_status", null=True),
    sa.PrimaryKeyConstraint("subscription_id", "attempt_id"),
    one_of("last_result", Result),
    sa.Index(None, "subscription_id", "next_try_at"),
    **with_(fillfactor=70),
)

callback_deliveries = sa.Table(
    "callback_deliveries",
    metadata,
    id_(),
    # No foreign key: what was sent outlives its subscription until its age removes it.
    uuid_("subscription_id"),
    text_("kind"),
    text_("webhook_id"),
    sa.Column("event_ids", ARRAY(UUID), nullable=False),
    uuid_("attempt_id", null=True),
    int_("event_number", null=True),
    at_("sent_at", null=False),
    int_("milliseconds"),
    text_("result"),
    int_("status", null=True),
    text_("detail", null=True),
    text_("excerpt", null=True),
    one_of("kind", DeliveryKind),
    one_of("result", Result),
    sa.Index(None, "subscription_id", "sent_at", "id"),
    sa.Index(None, "sent_at"),
)

__all__ = [
    "callback_cursors",
    "callback_deliveries",
    "callback_parked",
    "callback_subscriptions",
]
