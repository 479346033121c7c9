"""The whole execution data model: attempts, leases, runners, logs, artifacts, events, messages.

Frozen SQL: `app/store/tables.py` and `app/store/schema_sql.py` declare the same, and a test dumps
both and compares them.

Revision ID: 0001
Revises:
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    """\
CREATE TABLE attempt_events (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    event_number INTEGER NOT NULL,
    event_type TEXT NOT NULL,
    payload JSONB NOT NULL,
    feed_epoch INTEGER NOT NULL,
    feed_xid XID8 NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT attempt_events_pkey PRIMARY KEY (id, created_at),
    CONSTRAINT attempt_events_event_type_check CHECK (event_type IN ('created', 'leased', 'started', 'heartbeat', 'artifact_created', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost', 'cancel_requested', 'lease_expired', 'lease_released', 'lease_revoked', 'late_result', 'output_recorded', 'evidence_recorded', 'secret_masked', 'log_truncated', 'legal_hold_set', 'legal_hold_lifted'))
)
 PARTITION BY RANGE (created_at)""",
    """\
CREATE INDEX attempt_events_attempt_id_created_at_idx ON attempt_events (attempt_id, created_at)""",
    """\
CREATE INDEX attempt_events_feed_idx ON attempt_events (feed_epoch, feed_xid, attempt_id, event_number)""",
    """\
CREATE TABLE attempt_heartbeats (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    runner_instance_id TEXT NOT NULL,
    phase TEXT,
    progress_percent INTEGER,
    message TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT attempt_heartbeats_pkey PRIMARY KEY (id, created_at),
    CONSTRAINT attempt_heartbeats_phase_check CHECK (phase IN ('pulling_artifacts', 'resolving_secrets', 'executing', 'uploading_artifacts', 'completing')),
    CONSTRAINT attempt_heartbeats_progress_percent_check CHECK (progress_percent BETWEEN 0 AND 100)
)
 PARTITION BY RANGE (created_at)""",
    """\
CREATE INDEX attempt_heartbeats_attempt_id_created_at_idx ON attempt_heartbeats (attempt_id, created_at)""",
    """\
CREATE TABLE dead_letters (
    id UUID NOT NULL,
    message_digest TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    subscription TEXT NOT NULL,
    message_id TEXT NOT NULL,
    envelope_id TEXT,
    handler TEXT,
    payload TEXT,
    payload_bytes BIGINT NOT NULL,
    redrivable BOOLEAN NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    deliveries INTEGER DEFAULT '1' NOT NULL,
    first_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE NOT NULL,
    redrives INTEGER DEFAULT '0' NOT NULL,
    redriven_at TIMESTAMP WITH TIME ZONE,
    redriven_by TEXT,
    redrive_request_id UUID,
    redrive_outcome TEXT,
    discarded_at TIMESTAMP WITH TIME ZONE,
    discarded_by TEXT,
    CONSTRAINT dead_letters_pkey PRIMARY KEY (id),
    CONSTRAINT dead_letters_message_digest_key UNIQUE (message_digest),
    CONSTRAINT dead_letters_one_end_check CHECK (redriven_at IS NULL OR discarded_at IS NULL)
)""",
    """\
CREATE INDEX dead_letters_first_at_id_idx ON dead_letters (first_at, id)""",
    """\
CREATE INDEX dead_letters_last_at_idx ON dead_letters (last_at)""",
    """\
CREATE TABLE feed_epochs (
    number INTEGER NOT NULL,
    system_identifier TEXT NOT NULL,
    timeline INTEGER NOT NULL,
    previous_end_xid XID8,
    begun_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT feed_epochs_pkey PRIMARY KEY (number)
)""",
    """\
CREATE TABLE leaders (
    name TEXT NOT NULL,
    holder UUID,
    term BIGINT DEFAULT '0' NOT NULL,
    elected_at TIMESTAMP WITH TIME ZONE,
    expires_at TIMESTAMP WITH TIME ZONE,
    swept_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT leaders_pkey PRIMARY KEY (name)
)
 WITH (fillfactor = 10)""",
    """\
CREATE TABLE message_failures (
    message_digest TEXT NOT NULL,
    handler TEXT NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    deaths INTEGER DEFAULT '0' NOT NULL,
    first_failed_at TIMESTAMP WITH TIME ZONE,
    last_failed_at TIMESTAMP WITH TIME ZONE,
    working_process UUID,
    working_since TIMESTAMP WITH TIME ZONE,
    last_reason TEXT,
    CONSTRAINT message_failures_pkey PRIMARY KEY (message_digest)
)""",
    """\
CREATE INDEX message_failures_last_failed_at_idx ON message_failures (last_failed_at)""",
    """\
CREATE TABLE placement_class_versions (
    runner_kind TEXT NOT NULL,
    version BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT placement_class_versions_pkey PRIMARY KEY (runner_kind),
    CONSTRAINT placement_class_versions_runner_kind_check CHECK (runner_kind IN ('ansible', 'kubernetes', 'helm', 'opentofu', 'ssh', 'verification'))
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE TABLE placement_classes (
    id UUID NOT NULL,
    runner_kind TEXT NOT NULL,
    job_type TEXT NOT NULL,
    zone TEXT,
    labels JSONB NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT placement_classes_pkey PRIMARY KEY (id),
    CONSTRAINT placement_classes_runner_kind_check CHECK (runner_kind IN ('ansible', 'kubernetes', 'helm', 'opentofu', 'ssh', 'verification'))
)""",
    """\
CREATE INDEX placement_classes_runner_kind_idx ON placement_classes (runner_kind)""",
    """\
CREATE TABLE processed_messages (
    message_digest TEXT NOT NULL,
    handler TEXT NOT NULL,
    envelope_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    processed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT processed_messages_pkey PRIMARY KEY (message_digest)
)""",
    """\
CREATE INDEX processed_messages_processed_at_idx ON processed_messages (processed_at)""",
    """\
CREATE TABLE runner_instances (
    id TEXT NOT NULL,
    runner_kind TEXT NOT NULL,
    version TEXT NOT NULL,
    capabilities TEXT[] NOT NULL,
    zone TEXT,
    labels JSONB NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_seen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    session_id UUID NOT NULL,
    lapsed_claims INTEGER DEFAULT '0' NOT NULL,
    drained_at TIMESTAMP WITH TIME ZONE,
    drained_by TEXT,
    contested_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT runner_instances_pkey PRIMARY KEY (id),
    CONSTRAINT runner_instances_runner_kind_check CHECK (runner_kind IN ('ansible', 'kubernetes', 'helm', 'opentofu', 'ssh', 'verification')),
    CONSTRAINT runner_instances_id_check CHECK (id ~ '^[A-Za-z0-9._-]{1,128}$')
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE TABLE runner_sessions (
    runner_instance_id TEXT NOT NULL,
    session_id UUID NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE NOT NULL,
    replaced_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT runner_sessions_pkey PRIMARY KEY (runner_instance_id, session_id)
)""",
    """\
CREATE INDEX runner_sessions_replaced_at_idx ON runner_sessions (replaced_at)""",
    """\
CREATE TABLE runner_statuses (
    runner_instance_id TEXT NOT NULL,
    runner_kind TEXT NOT NULL,
    status TEXT NOT NULL,
    capacity_total INTEGER NOT NULL,
    capacity_used INTEGER NOT NULL,
    last_error TEXT,
    sequence BIGINT DEFAULT '0' NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT runner_statuses_pkey PRIMARY KEY (runner_instance_id),
    CONSTRAINT runner_statuses_status_check CHECK (status IN ('ready', 'busy', 'draining', 'unhealthy', 'offline')),
    CONSTRAINT runner_statuses_runner_kind_check CHECK (runner_kind IN ('ansible', 'kubernetes', 'helm', 'opentofu', 'ssh', 'verification')),
    CONSTRAINT runner_statuses_capacity_check CHECK (capacity_total >= 0 AND capacity_used >= 0)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE TABLE service_ticks (
    one_row BOOLEAN DEFAULT 'true' NOT NULL,
    last_tick_at TIMESTAMP WITH TIME ZONE NOT NULL,
    outage_ended_at TIMESTAMP WITH TIME ZONE,
    breaker_began_at TIMESTAMP WITH TIME ZONE,
    breaker_ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT service_ticks_pkey PRIMARY KEY (one_row),
    CONSTRAINT service_ticks_one_row_check CHECK (one_row)
)
 WITH (fillfactor = 10)""",
    """\
CREATE TABLE state (
    key TEXT NOT NULL,
    document JSONB NOT NULL,
    version BIGINT NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT state_pkey PRIMARY KEY (key),
    CONSTRAINT state_version_check CHECK (version >= 1)
)""",
    """\
CREATE TABLE execution_attempts (
    id UUID NOT NULL,
    operation_id UUID NOT NULL,
    plan_id UUID NOT NULL,
    plan_node_id UUID NOT NULL,
    node_run_id UUID NOT NULL,
    requested_by_service TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    job_type TEXT NOT NULL,
    job_spec_ref JSONB NOT NULL,
    status TEXT NOT NULL,
    failure_category TEXT,
    failure_message TEXT,
    result JSONB,
    runner_kind TEXT NOT NULL,
    runner_instance_id TEXT,
    priority INTEGER DEFAULT '100' NOT NULL,
    timeout_seconds INTEGER NOT NULL,
    queue_timeout_seconds INTEGER,
    placement JSONB NOT NULL,
    placement_class_id UUID,
    concurrency_key TEXT,
    claimable BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    leased_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    cancel_requested_at TIMESTAMP WITH TIME ZONE,
    cancel_reason TEXT,
    limit_at TIMESTAMP WITH TIME ZONE,
    last_lease_number INTEGER DEFAULT '0' NOT NULL,
    unstarted_leases INTEGER DEFAULT '0' NOT NULL,
    unconfirmed_leases INTEGER DEFAULT '0' NOT NULL,
    backoff_runner_id TEXT,
    backoff_until TIMESTAMP WITH TIME ZONE,
    stop_confirmed BOOLEAN,
    last_event_number INTEGER DEFAULT '0' NOT NULL,
    last_event_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_feed_epoch INTEGER NOT NULL,
    last_feed_xid XID8 NOT NULL,
    CONSTRAINT execution_attempts_pkey PRIMARY KEY (id),
    CONSTRAINT execution_attempts_idempotency_key_key UNIQUE (idempotency_key),
    CONSTRAINT execution_attempts_status_check CHECK (status IN ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost')),
    CONSTRAINT execution_attempts_failure_category_check CHECK (failure_category IN ('validation', 'runner_unavailable', 'target_unreachable', 'permission_denied', 'command_failed', 'timeout', 'cancelled', 'heartbeat_lost', 'internal')),
    CONSTRAINT execution_attempts_runner_kind_check CHECK (runner_kind IN ('ansible', 'kubernetes', 'helm', 'opentofu', 'ssh', 'verification')),
    CONSTRAINT execution_attempts_job_type_check CHECK (job_type ~ '^(ansible|kubernetes|helm|opentofu|ssh|verify)([.][a-z0-9_]{1,48}){1,4}$'),
    CONSTRAINT execution_attempts_kind_of_job_check CHECK ((split_part(job_type, '.', 1), runner_kind) IN (('ansible', 'ansible'), ('kubernetes', 'kubernetes'), ('helm', 'helm'), ('opentofu', 'opentofu'), ('ssh', 'ssh'), ('verify', 'verification'))),
    CONSTRAINT execution_attempts_timeout_seconds_check CHECK (timeout_seconds BETWEEN 1 AND 604800),
    CONSTRAINT execution_attempts_queue_timeout_seconds_check CHECK (queue_timeout_seconds >= 1),
    CONSTRAINT execution_attempts_finished_at_check CHECK ((status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost')) = (finished_at IS NOT NULL)),
    CONSTRAINT execution_attempts_failure_category_when_check CHECK ((status IN ('failed', 'cancelled', 'timed_out', 'lost')) = (failure_category IS NOT NULL)),
    CONSTRAINT execution_attempts_stop_confirmed_check CHECK ((status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost')) = (stop_confirmed IS NOT NULL)),
    CONSTRAINT execution_attempts_started_at_check CHECK (status NOT IN ('running', 'succeeded', 'failed', 'timed_out') OR started_at IS NOT NULL),
    CONSTRAINT execution_attempts_queued_check CHECK (status <> 'queued' OR (leased_at, started_at, runner_instance_id) IS NULL),
    CONSTRAINT execution_attempts_leased_at_check CHECK (leased_at IS NOT NULL OR started_at IS NULL),
    CONSTRAINT execution_attempts_ended_check CHECK (NOT (status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost')) OR (NOT claimable AND limit_at IS NULL)),
    CONSTRAINT execution_attempts_cancelled_is_not_claimable_check CHECK (NOT claimable OR cancel_requested_at IS NULL),
    CONSTRAINT execution_attempts_placement_class_id_check CHECK ((status IN ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost')) = (placement_class_id IS NULL)),
    CONSTRAINT execution_attempts_placement_class_id_fkey FOREIGN KEY(placement_class_id) REFERENCES placement_classes (id)
)
 WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE INDEX execution_attempts_claimable_idx ON execution_attempts (placement_class_id, priority, created_at, id) WHERE claimable""",
    """\
CREATE INDEX execution_attempts_claimable_key_idx ON execution_attempts (concurrency_key) WHERE claimable AND concurrency_key IS NOT NULL""",
    """\
CREATE INDEX execution_attempts_created_at_idx ON execution_attempts (created_at, id)""",
    """\
CREATE INDEX execution_attempts_limit_at_idx ON execution_attempts (limit_at) WHERE limit_at IS NOT NULL""",
    """\
CREATE INDEX execution_attempts_live_class_idx ON execution_attempts (placement_class_id) WHERE placement_class_id IS NOT NULL""",
    """\
CREATE UNIQUE INDEX execution_attempts_one_per_key_idx ON execution_attempts (concurrency_key) WHERE status IN ('leased', 'running') AND concurrency_key IS NOT NULL""",
    """\
CREATE INDEX execution_attempts_operation_id_plan_node_id_created_at_idx ON execution_attempts (operation_id, plan_node_id, created_at)""",
    """\
CREATE INDEX execution_attempts_status_priority_created_at_idx ON execution_attempts (status, priority, created_at)""",
    """\
CREATE INDEX execution_attempts_waiting_for_key_idx ON execution_attempts (concurrency_key, priority, created_at, id) WHERE status = 'queued' AND concurrency_key IS NOT NULL""",
    """\
CREATE TABLE artifact_refs (
    id UUID NOT NULL,
    storage TEXT NOT NULL,
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    content_type TEXT NOT NULL,
    digest TEXT NOT NULL,
    byte_size BIGINT NOT NULL,
    retention_class TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    attempt_id UUID NOT NULL,
    operation_id UUID NOT NULL,
    state TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    held_at TIMESTAMP WITH TIME ZONE,
    held_by TEXT,
    held_reason TEXT,
    CONSTRAINT artifact_refs_pkey PRIMARY KEY (id),
    CONSTRAINT artifact_refs_storage_check CHECK (storage IN ('s3', 'minio')),
    CONSTRAINT artifact_refs_retention_class_check CHECK (retention_class IN ('short', 'normal', 'long', 'legal_hold')),
    CONSTRAINT artifact_refs_state_check CHECK (state IN ('verifying', 'ready', 'removing')),
    CONSTRAINT artifact_refs_digest_check CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
    CONSTRAINT artifact_refs_byte_size_check CHECK (byte_size >= 0),
    CONSTRAINT artifact_refs_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id)
)""",
    """\
CREATE INDEX artifact_refs_attempt_id_idx ON artifact_refs (attempt_id)""",
    """\
CREATE INDEX artifact_refs_bucket_key_idx ON artifact_refs (bucket, key)""",
    """\
CREATE INDEX artifact_refs_digest_idx ON artifact_refs (digest)""",
    """\
CREATE INDEX artifact_refs_expires_at_idx ON artifact_refs (expires_at) WHERE held_at IS NULL""",
    """\
CREATE TABLE concurrency_holds (
    concurrency_key TEXT NOT NULL,
    attempt_id UUID NOT NULL,
    lease_number INTEGER NOT NULL,
    held_at TIMESTAMP WITH TIME ZONE NOT NULL,
    attempt_ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT concurrency_holds_pkey PRIMARY KEY (concurrency_key),
    CONSTRAINT concurrency_holds_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id)
)""",
    """\
CREATE INDEX concurrency_holds_attempt_id_idx ON concurrency_holds (attempt_id)""",
    """\
CREATE TABLE log_streams (
    attempt_id UUID NOT NULL,
    lease_number INTEGER NOT NULL,
    stream TEXT NOT NULL,
    next_offset BIGINT DEFAULT '0' NOT NULL,
    raw_size BIGINT DEFAULT '0' NOT NULL,
    stored_size BIGINT DEFAULT '0' NOT NULL,
    line_count BIGINT DEFAULT '0' NOT NULL,
    final BOOLEAN DEFAULT 'false' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT log_streams_pkey PRIMARY KEY (attempt_id, lease_number, stream),
    CONSTRAINT log_streams_stream_check CHECK (stream IN ('stdout', 'stderr', 'event_stream', 'system')),
    CONSTRAINT log_streams_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE TABLE runner_leases (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    runner_instance_id TEXT NOT NULL,
    lease_token_hash TEXT NOT NULL,
    token_key_id TEXT NOT NULL,
    status TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    released_at TIMESTAMP WITH TIME ZONE,
    lease_number INTEGER NOT NULL,
    session_id UUID NOT NULL,
    claim_request_id UUID NOT NULL,
    last_sequence BIGINT DEFAULT '0' NOT NULL,
    phase TEXT,
    progress_percent INTEGER,
    started_at TIMESTAMP WITH TIME ZONE,
    check_at TIMESTAMP WITH TIME ZONE NOT NULL,
    completion_digest TEXT,
    late_word_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT runner_leases_pkey PRIMARY KEY (id),
    CONSTRAINT runner_leases_attempt_id_lease_number_key UNIQUE (attempt_id, lease_number),
    CONSTRAINT runner_leases_status_check CHECK (status IN ('active', 'released', 'expired', 'revoked')),
    CONSTRAINT runner_leases_phase_check CHECK (phase IN ('pulling_artifacts', 'resolving_secrets', 'executing', 'uploading_artifacts', 'completing')),
    CONSTRAINT runner_leases_progress_percent_check CHECK (progress_percent BETWEEN 0 AND 100),
    CONSTRAINT runner_leases_released_at_check CHECK ((status = 'active') = (released_at IS NULL)),
    CONSTRAINT runner_leases_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id)
)
 WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)""",
    """\
CREATE INDEX runner_leases_attempt_id_status_idx ON runner_leases (attempt_id, status)""",
    """\
CREATE INDEX runner_leases_check_at_idx ON runner_leases (check_at) WHERE status = 'active'""",
    """\
CREATE INDEX runner_leases_claim_idx ON runner_leases (runner_instance_id, session_id, claim_request_id)""",
    """\
CREATE UNIQUE INDEX runner_leases_one_active_idx ON runner_leases (attempt_id) WHERE status = 'active'""",
    """\
CREATE INDEX runner_leases_runner_instance_id_status_idx ON runner_leases (runner_instance_id, status)""",
    """\
CREATE TABLE raw_log_refs (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    stream TEXT NOT NULL,
    artifact_ref_id UUID NOT NULL,
    byte_size BIGINT NOT NULL,
    line_count BIGINT NOT NULL,
    masked BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    lease_number INTEGER NOT NULL,
    stream_offset BIGINT NOT NULL,
    raw_size BIGINT NOT NULL,
    raw_hmac TEXT NOT NULL,
    CONSTRAINT raw_log_refs_pkey PRIMARY KEY (id),
    CONSTRAINT raw_log_refs_attempt_id_lease_number_stream_stream_offset_key UNIQUE (attempt_id, lease_number, stream, stream_offset),
    CONSTRAINT raw_log_refs_stream_check CHECK (stream IN ('stdout', 'stderr', 'event_stream', 'system')),
    CONSTRAINT raw_log_refs_sizes_check CHECK (byte_size >= 0 AND line_count >= 0 AND stream_offset >= 0 AND raw_size >= 0),
    CONSTRAINT raw_log_refs_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id),
    CONSTRAINT raw_log_refs_artifact_ref_id_fkey FOREIGN KEY(artifact_ref_id) REFERENCES artifact_refs (id)
)""",
    """\
CREATE INDEX raw_log_refs_artifact_ref_id_idx ON raw_log_refs (artifact_ref_id)""",
    """\
CREATE INDEX raw_log_refs_attempt_id_stream_idx ON raw_log_refs (attempt_id, stream)""",
    """\
CREATE TABLE runner_output_refs (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    name TEXT NOT NULL,
    output_type TEXT NOT NULL,
    artifact_ref_id UUID NOT NULL,
    schema_ref TEXT,
    digest TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT runner_output_refs_pkey PRIMARY KEY (id),
    CONSTRAINT runner_output_refs_output_type_check CHECK (output_type IN ('json', 'yaml', 'text', 'archive', 'binary', 'resource_refs', 'evidence_bundle')),
    CONSTRAINT runner_output_refs_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id),
    CONSTRAINT runner_output_refs_artifact_ref_id_fkey FOREIGN KEY(artifact_ref_id) REFERENCES artifact_refs (id)
)""",
    """\
CREATE INDEX runner_output_refs_artifact_ref_id_idx ON runner_output_refs (artifact_ref_id)""",
    """\
CREATE INDEX runner_output_refs_attempt_id_name_idx ON runner_output_refs (attempt_id, name)""",
    """\
CREATE TABLE evidence_refs (
    id UUID NOT NULL,
    attempt_id UUID NOT NULL,
    output_ref_id UUID,
    evidence_type TEXT NOT NULL,
    status TEXT NOT NULL,
    subject_ref TEXT NOT NULL,
    artifact_ref_id UUID,
    recorded_at TIMESTAMP WITH TIME ZONE NOT NULL,
    request_id UUID NOT NULL,
    CONSTRAINT evidence_refs_pkey PRIMARY KEY (id),
    CONSTRAINT evidence_refs_attempt_id_request_id_key UNIQUE (attempt_id, request_id),
    CONSTRAINT evidence_refs_evidence_type_check CHECK (evidence_type IN ('assertion', 'probe', 'log_excerpt', 'resource_snapshot', 'signed_report')),
    CONSTRAINT evidence_refs_status_check CHECK (status IN ('passed', 'failed', 'inconclusive')),
    CONSTRAINT evidence_refs_attempt_id_fkey FOREIGN KEY(attempt_id) REFERENCES execution_attempts (id),
    CONSTRAINT evidence_refs_output_ref_id_fkey FOREIGN KEY(output_ref_id) REFERENCES runner_output_refs (id),
    CONSTRAINT evidence_refs_artifact_ref_id_fkey FOREIGN KEY(artifact_ref_id) REFERENCES artifact_refs (id)
)""",
    """\
CREATE INDEX evidence_refs_artifact_ref_id_idx ON evidence_refs (artifact_ref_id)""",
    """\
CREATE INDEX evidence_refs_output_ref_id_idx ON evidence_refs (output_ref_id)""",
)

FUNCTIONS = (
    """\
CREATE FUNCTION clock_now() RETURNS timestamptz
LANGUAGE sql STABLE AS 'SELECT now()'""",
    """\
CREATE FUNCTION clock_fact() RETURNS timestamptz
LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'""",
    """\
CREATE FUNCTION fact_after(last timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE AS 'SELECT greatest(clock_fact(), last)'""",
    """\
CREATE FUNCTION current_feed_epoch() RETURNS integer
LANGUAGE sql STABLE AS 'SELECT max(number) FROM feed_epochs'""",
    """\
CREATE FUNCTION feed_xid_after(last_epoch integer, last_xid xid8) RETURNS xid8
LANGUAGE sql VOLATILE AS '
    SELECT CASE WHEN last_epoch = current_feed_epoch()
                THEN greatest(pg_current_xact_id(), last_xid)
                ELSE pg_current_xact_id() END'""",
    """\
CREATE FUNCTION refuse_move() RETURNS trigger
LANGUAGE plpgsql AS '
BEGIN
    RAISE EXCEPTION ''% cannot go from % to %'', TG_TABLE_NAME,
        CASE TG_OP WHEN ''INSERT'' THEN ''nothing'' ELSE OLD.status END, NEW.status
        USING ERRCODE = ''EP001'';
END'""",
    """\
CREATE FUNCTION refuse_change() RETURNS trigger
LANGUAGE plpgsql AS '
BEGIN
    RAISE EXCEPTION ''this column of % does not change (any more)'', TG_TABLE_NAME
        USING ERRCODE = ''EP002'';
END'""",
)

TRIGGERS = (
    """\
CREATE TRIGGER execution_attempts_first_status BEFORE INSERT ON execution_attempts
FOR EACH ROW WHEN (NEW.status <> 'queued') EXECUTE FUNCTION refuse_move()""",
    """\
CREATE TRIGGER execution_attempts_move BEFORE UPDATE OF status ON execution_attempts
FOR EACH ROW WHEN (OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (('queued', 'cancelled'), ('queued', 'leased'), ('leased', 'lost'), ('leased', 'running'), ('running', 'cancelled'), ('running', 'failed'), ('running', 'lost'), ('running', 'succeeded'), ('running', 'timed_out')))
EXECUTE FUNCTION refuse_move()""",
    """\
CREATE TRIGGER execution_attempts_immutable
BEFORE UPDATE OF id, operation_id, plan_id, plan_node_id, node_run_id, requested_by_service, idempotency_key, request_digest, job_type, job_spec_ref, runner_kind, priority, timeout_seconds, queue_timeout_seconds, placement, concurrency_key, created_at ON execution_attempts
FOR EACH ROW WHEN (ROW(OLD.id, OLD.operation_id, OLD.plan_id, OLD.plan_node_id, OLD.node_run_id, OLD.requested_by_service, OLD.idempotency_key, OLD.request_digest, OLD.job_type, OLD.job_spec_ref, OLD.runner_kind, OLD.priority, OLD.timeout_seconds, OLD.queue_timeout_seconds, OLD.placement, OLD.concurrency_key, OLD.created_at)
    IS DISTINCT FROM ROW(NEW.id, NEW.operation_id, NEW.plan_id, NEW.plan_node_id, NEW.node_run_id, NEW.requested_by_service, NEW.idempotency_key, NEW.request_digest, NEW.job_type, NEW.job_spec_ref, NEW.runner_kind, NEW.priority, NEW.timeout_seconds, NEW.queue_timeout_seconds, NEW.placement, NEW.concurrency_key, NEW.created_at))
EXECUTE FUNCTION refuse_change()""",
    """\
CREATE TRIGGER execution_attempts_placement_class
BEFORE UPDATE OF placement_class_id ON execution_attempts
FOR EACH ROW WHEN (OLD.placement_class_id IS DISTINCT FROM NEW.placement_class_id
    AND NEW.placement_class_id IS NOT NULL)
EXECUTE FUNCTION refuse_change()""",
    """\
CREATE TRIGGER execution_attempts_terminal BEFORE UPDATE ON execution_attempts
FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL AND ROW(OLD.status, OLD.failure_category, OLD.failure_message, OLD.result, OLD.runner_instance_id, OLD.leased_at, OLD.started_at, OLD.finished_at, OLD.cancel_requested_at, OLD.cancel_reason, OLD.limit_at, OLD.claimable, OLD.placement_class_id, OLD.last_lease_number, OLD.unstarted_leases, OLD.backoff_runner_id, OLD.backoff_until)
    IS DISTINCT FROM ROW(NEW.status, NEW.failure_category, NEW.failure_message, NEW.result, NEW.runner_instance_id, NEW.leased_at, NEW.started_at, NEW.finished_at, NEW.cancel_requested_at, NEW.cancel_reason, NEW.limit_at, NEW.claimable, NEW.placement_class_id, NEW.last_lease_number, NEW.unstarted_leases, NEW.backoff_runner_id, NEW.backoff_until))
EXECUTE FUNCTION refuse_change()""",
    """\
CREATE TRIGGER runner_leases_first_status BEFORE INSERT ON runner_leases
FOR EACH ROW WHEN (NEW.status <> 'active') EXECUTE FUNCTION refuse_move()""",
    """\
CREATE TRIGGER runner_leases_move BEFORE UPDATE OF status ON runner_leases
FOR EACH ROW WHEN (OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN (('active', 'expired'), ('active', 'released'), ('active', 'revoked')))
EXECUTE FUNCTION refuse_move()""",
)

FIRST_ROWS = (
    """\
INSERT INTO placement_class_versions (runner_kind) VALUES ('ansible'), ('kubernetes'), ('helm'), ('opentofu'), ('ssh'), ('verification')""",
    """\
INSERT INTO feed_epochs (number, system_identifier, timeline, begun_at)
SELECT 1, s.system_identifier::text, c.timeline_id, clock_fact()
FROM pg_control_system() s, pg_control_checkpoint() c""",
    """\
INSERT INTO service_ticks (last_tick_at) VALUES (clock_fact())""",
    """\
INSERT INTO leaders (name) VALUES ('scheduler')""",
)

DROPS = (
    "DROP TABLE evidence_refs",
    "DROP TABLE runner_output_refs",
    "DROP TABLE raw_log_refs",
    "DROP TABLE runner_leases",
    "DROP TABLE log_streams",
    "DROP TABLE concurrency_holds",
    "DROP TABLE artifact_refs",
    "DROP TABLE execution_attempts",
    "DROP TABLE state",
    "DROP TABLE service_ticks",
    "DROP TABLE runner_statuses",
    "DROP TABLE runner_sessions",
    "DROP TABLE runner_instances",
    "DROP TABLE processed_messages",
    "DROP TABLE placement_classes",
    "DROP TABLE placement_class_versions",
    "DROP TABLE message_failures",
    "DROP TABLE leaders",
    "DROP TABLE feed_epochs",
    "DROP TABLE dead_letters",
    "DROP TABLE attempt_heartbeats",
    "DROP TABLE attempt_events",
    "DROP FUNCTION refuse_change()",
    "DROP FUNCTION refuse_move()",
    "DROP FUNCTION feed_xid_after(integer, xid8)",
    "DROP FUNCTION current_feed_epoch()",
    "DROP FUNCTION fact_after(timestamptz)",
    "DROP FUNCTION clock_fact()",
    "DROP FUNCTION clock_now()",
)


def upgrade() -> None:
    """Make everything, in the order in which the parts need each other."""
    for statement in (*TABLES, *FUNCTIONS, *TRIGGERS, *FIRST_ROWS):
        op.get_bind().exec_driver_sql(statement)


def downgrade() -> None:
    """Remove everything, with all data."""
    for statement in DROPS:
        op.get_bind().exec_driver_sql(statement)
