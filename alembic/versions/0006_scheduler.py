"""Terms of leadership, what sweeps did, schedules, their fires and the messages that they make.

Frozen SQL: `app/store/tables_scheduler.py` declares the same, and a test compares both.

Revision ID: 0006
Revises: 0005
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE leaders ADD COLUMN renewed_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE leaders ADD COLUMN label TEXT DEFAULT '' NOT NULL",
    """\
CREATE TABLE leader_terms (
    name TEXT NOT NULL,
    term BIGINT NOT NULL,
    holder UUID NOT NULL,
    label TEXT NOT NULL,
    from_at TIMESTAMP WITH TIME ZONE NOT NULL,
    renewed_at TIMESTAMP WITH TIME ZONE,
    until_at TIMESTAMP WITH TIME ZONE,
    ended_by TEXT,
    CONSTRAINT leader_terms_pkey PRIMARY KEY (name, term),
    CONSTRAINT leader_terms_ended_by_check CHECK (ended_by IN ('resignation', 'expiry')),
    CONSTRAINT leader_terms_forward_check CHECK (until_at >= from_at AND renewed_at >= from_at),
    CONSTRAINT leader_terms_ended_check CHECK ((until_at IS NULL) = (ended_by IS NULL))
)""",
    """\
CREATE UNIQUE INDEX leader_terms_one_open_idx ON leader_terms (name) WHERE until_at IS NULL""",
    """\
CREATE TABLE sweeps (
    name TEXT NOT NULL,
    term BIGINT NOT NULL,
    interval_seconds DOUBLE PRECISION NOT NULL,
    last_run_at TIMESTAMP WITH TIME ZONE,
    last_run_seconds DOUBLE PRECISION,
    last_done BIGINT,
    behind_seconds DOUBLE PRECISION DEFAULT '0' NOT NULL,
    runs BIGINT DEFAULT '0' NOT NULL,
    done BIGINT DEFAULT '0' NOT NULL,
    failures BIGINT DEFAULT '0' NOT NULL,
    failing INTEGER DEFAULT '0' NOT NULL,
    failed_at TIMESTAMP WITH TIME ZONE,
    last_error TEXT,
    CONSTRAINT sweeps_pkey PRIMARY KEY (name)
)
 WITH (fillfactor = 10)""",
    """\
CREATE TABLE schedules (
    name TEXT NOT NULL,
    cron TEXT,
    time_zone TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE,
    "to" TEXT NOT NULL,
    data TEXT NOT NULL,
    misfire TEXT NOT NULL,
    misfire_limit INTEGER NOT NULL,
    jitter_seconds INTEGER NOT NULL,
    version BIGINT DEFAULT '1' NOT NULL,
    next_due_at TIMESTAMP WITH TIME ZONE,
    next_fire_at TIMESTAMP WITH TIME ZONE,
    last_due_at TIMESTAMP WITH TIME ZONE,
    paused_at TIMESTAMP WITH TIME ZONE,
    paused_by TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_by TEXT NOT NULL,
    CONSTRAINT schedules_pkey PRIMARY KEY (name),
    CONSTRAINT schedules_misfire_check CHECK (misfire IN ('skip', 'once', 'all')),
    CONSTRAINT schedules_one_timing_check CHECK ((cron IS NULL) <> (at IS NULL)),
    CONSTRAINT schedules_next_check CHECK ((next_due_at IS NULL) = (next_fire_at IS NULL)),
    CONSTRAINT schedules_paused_check CHECK (paused_at IS NULL OR next_fire_at IS NULL)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE INDEX schedules_due_idx ON schedules (next_fire_at) WHERE next_fire_at IS NOT NULL""",
    """\
CREATE TABLE schedule_fires (
    id UUID NOT NULL,
    schedule TEXT NOT NULL,
    due_at TIMESTAMP WITH TIME ZONE NOT NULL,
    kind TEXT NOT NULL,
    outcome TEXT NOT NULL,
    fired_at TIMESTAMP WITH TIME ZONE NOT NULL,
    term BIGINT,
    request_id UUID,
    triggered_by TEXT,
    skipped_until TIMESTAMP WITH TIME ZONE,
    skipped_count INTEGER,
    sent_at TIMESTAMP WITH TIME ZONE,
    sent_as TEXT,
    CONSTRAINT schedule_fires_pkey PRIMARY KEY (id),
    CONSTRAINT schedule_fires_kind_check CHECK (kind IN ('due', 'trigger')),
    CONSTRAINT schedule_fires_outcome_check CHECK (outcome IN ('fired', 'skipped')),
    CONSTRAINT schedule_fires_term_check CHECK ((kind = 'due') = (term IS NOT NULL)),
    CONSTRAINT schedule_fires_request_check CHECK ((kind = 'trigger') = (request_id IS NOT NULL)),
    CONSTRAINT schedule_fires_skipped_check CHECK ((outcome = 'skipped') = (skipped_until IS NOT NULL AND skipped_count IS NOT NULL))
)""",
    """\
CREATE INDEX schedule_fires_fired_at_idx ON schedule_fires (fired_at)""",
    """\
CREATE UNIQUE INDEX schedule_fires_one_a_time_idx ON schedule_fires (schedule, due_at) WHERE kind = 'due'""",
    """\
CREATE INDEX schedule_fires_schedule_fired_at_id_idx ON schedule_fires (schedule, fired_at, id)""",
    """\
CREATE TABLE outbox (
    id UUID NOT NULL,
    schedule TEXT NOT NULL,
    "to" TEXT NOT NULL,
    data TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    next_try_at TIMESTAMP WITH TIME ZONE NOT NULL,
    tries INTEGER DEFAULT '0' NOT NULL,
    last_reason TEXT,
    CONSTRAINT outbox_pkey PRIMARY KEY (id)
)""",
    """\
CREATE INDEX outbox_next_try_at_idx ON outbox (next_try_at)""",
)

DROPS = (
    "DROP TABLE outbox",
    "DROP TABLE schedule_fires",
    "DROP TABLE schedules",
    "DROP TABLE sweeps",
    "DROP TABLE leader_terms",
    "ALTER TABLE leaders DROP COLUMN label",
    "ALTER TABLE leaders DROP COLUMN renewed_at",
)


def upgrade() -> None:
    """Add all of it; whoever leads goes on under its term."""
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Remove it, with all schedules."""
    for statement in DROPS:
        op.get_bind().exec_driver_sql(statement)
