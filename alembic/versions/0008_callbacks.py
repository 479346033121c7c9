"""Callbacks: subscriptions, their cursors, what is parked, and the log of deliveries.

Revision ID: 0008
Revises: 0007
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

UP = (
    """\
CREATE TABLE callback_subscriptions (
    id UUID NOT NULL,
    name TEXT NOT NULL,
    url TEXT,
    topic TEXT,
    event_types TEXT[],
    operation_ids UUID[],
    job_types TEXT[],
    headers JSONB NOT NULL,
    oidc_audience TEXT,
    max_batch INTEGER NOT NULL,
    timeout_seconds INTEGER NOT NULL,
    pause_after_seconds INTEGER NOT NULL,
    secret_version INTEGER NOT NULL,
    secret_key_id TEXT NOT NULL,
    previous_key_id TEXT,
    previous_until TIMESTAMP WITH TIME ZONE,
    rotate_request_id UUID,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    created_by TEXT NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_by TEXT NOT NULL,
    CONSTRAINT callback_subscriptions_pkey PRIMARY KEY (id),
    CONSTRAINT callback_subscriptions_name_key UNIQUE (name),
    CONSTRAINT callback_subscriptions_one_target_check CHECK (num_nonnulls(url, topic) = 1),
    CONSTRAINT callback_subscriptions_max_batch_check CHECK (max_batch >= 1),
    CONSTRAINT callback_subscriptions_secret_version_check CHECK (secret_version >= 1)
)""",
    """\
CREATE TABLE callback_cursors (
    subscription_id UUID NOT NULL,
    holder UUID,
    term BIGINT DEFAULT '0' NOT NULL,
    lease_expires_at TIMESTAMP WITH TIME ZONE,
    feed_epoch INTEGER NOT NULL,
    feed_xid XID8 NOT NULL,
    attempt_id UUID NOT NULL,
    event_number INTEGER NOT NULL,
    created_from TIMESTAMP WITH TIME ZONE NOT NULL,
    since_epoch INTEGER NOT NULL,
    since_xid XID8 NOT NULL,
    since_attempt_id UUID NOT NULL,
    since_event_number INTEGER NOT NULL,
    since_at TIMESTAMP WITH TIME ZONE NOT NULL,
    delivered BIGINT DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    failing_since TIMESTAMP WITH TIME ZONE,
    next_try_at TIMESTAMP WITH TIME ZONE,
    paused_at TIMESTAMP WITH TIME ZONE,
    pause_reason TEXT,
    last_success_at TIMESTAMP WITH TIME ZONE,
    last_failure_at TIMESTAMP WITH TIME ZONE,
    last_result TEXT,
    last_status INTEGER,
    last_detail TEXT,
    last_event_id UUID,
    gap_until TIMESTAMP WITH TIME ZONE,
    replay_request_id UUID,
    replay_cursor TEXT,
    replay_until TEXT,
    replay_created_from TIMESTAMP WITH TIME ZONE,
    replay_from_time TIMESTAMP WITH TIME ZONE,
    replay_to_time TIMESTAMP WITH TIME ZONE,
    replay_asked_at TIMESTAMP WITH TIME ZONE,
    replay_sent BIGINT DEFAULT '0' NOT NULL,
    replay_failures INTEGER DEFAULT '0' NOT NULL,
    replay_next_try_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT callback_cursors_pkey PRIMARY KEY (subscription_id),
    CONSTRAINT callback_cursors_pause_reason_check CHECK (pause_reason IN ('refused_too_long', 'gone', 'too_many_parked', 'cursor_expired', 'feed_epoch_changed')),
    CONSTRAINT callback_cursors_last_result_check CHECK (last_result IN ('delivered', 'refused', 'gone', 'busy', 'timed_out', 'unreachable', 'certificate', 'address_refused', 'no_secret', 'no_identity')),
    CONSTRAINT callback_cursors_paused_check CHECK ((paused_at IS NULL) = (pause_reason IS NULL)),
    CONSTRAINT callback_cursors_replay_check CHECK ((replay_cursor IS NULL) = (replay_until IS NULL)),
    CONSTRAINT callback_cursors_subscription_id_fkey FOREIGN KEY(subscription_id) REFERENCES callback_subscriptions (id) ON DELETE CASCADE
)
 WITH (fillfactor = 50)""",
    """\
CREATE TABLE callback_parked (
    subscription_id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    event_number INTEGER NOT NULL,
    event_id UUID,
    created_from TIMESTAMP WITH TIME ZONE NOT NULL,
    parked_at TIMESTAMP WITH TIME ZONE NOT NULL,
    asked BOOLEAN DEFAULT 'false' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    next_try_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_result TEXT,
    last_status INTEGER,
    CONSTRAINT callback_parked_pkey PRIMARY KEY (subscription_id, attempt_id),
    CONSTRAINT callback_parked_last_result_check CHECK (last_result IN ('delivered', 'refused', 'gone', 'busy', 'timed_out', 'unreachable', 'certificate', 'address_refused', 'no_secret', 'no_identity')),
    CONSTRAINT callback_parked_subscription_id_fkey FOREIGN KEY(subscription_id) REFERENCES callback_subscriptions (id) ON DELETE CASCADE
)
 WITH (fillfactor = 70)""",
    """\
CREATE INDEX callback_parked_subscription_id_next_try_at_idx ON callback_parked (subscription_id, next_try_at)""",
    """\
CREATE TABLE callback_deliveries (
    id UUID NOT NULL,
    subscription_id UUID NOT NULL,
    kind TEXT NOT NULL,
    webhook_id TEXT NOT NULL,
    event_ids UUID[] NOT NULL,
    attempt_id UUID,
    event_number INTEGER,
    sent_at TIMESTAMP WITH TIME ZONE NOT NULL,
    milliseconds INTEGER NOT NULL,
    result TEXT NOT NULL,
    status INTEGER,
    detail TEXT,
    excerpt TEXT,
    CONSTRAINT callback_deliveries_pkey PRIMARY KEY (id),
    CONSTRAINT callback_deliveries_kind_check CHECK (kind IN ('live', 'parked', 'replay', 'test')),
    CONSTRAINT callback_deliveries_result_check CHECK (result IN ('delivered', 'refused', 'gone', 'busy', 'timed_out', 'unreachable', 'certificate', 'address_refused', 'no_secret', 'no_identity'))
)""",
    """\
CREATE INDEX callback_deliveries_sent_at_idx ON callback_deliveries (sent_at)""",
    """\
CREATE INDEX callback_deliveries_subscription_id_sent_at_id_idx ON callback_deliveries (subscription_id, sent_at, id)""",
)

DOWN = (
    "DROP TABLE callback_deliveries",
    "DROP TABLE callback_parked",
    "DROP TABLE callback_cursors",
    "DROP TABLE callback_subscriptions",
)


def upgrade() -> None:
    """Create them; nothing that exists changes."""
    for statement in UP:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Remove them, with every subscription."""
    for statement in DOWN:
        op.get_bind().exec_driver_sql(statement)
