"""The part of the schema that SQLAlchemy cannot declare: functions, triggers and first rows.

Like `store/tables.py` this is the declaration; migrations carry their own frozen copy, and a test
proves both equal. All of it derives from the lifecycle table where it speaks of a status.
"""

from __future__ import annotations

from app.domain import lifecycle as lc

ILLEGAL_MOVE = "EP001"
IMMUTABLE = "EP002"

IMMUTABLE_COLUMNS = (
    "id",
    "operation_id",
    "plan_id",
    "plan_node_id",
    "node_run_id",
    "requested_by_service",
    "idempotency_key",
    "request_digest",
    "job_type",
    "job_spec_ref",
    "runner_kind",
    "priority",
    "timeout_seconds",
    "queue_timeout_seconds",
    "placement",
    "concurrency_key",
    "created_at",
)

FROZEN_AT_THE_END = (
    "status",
    "failure_category",
    "failure_message",
    "result",
    "runner_instance_id",
    "leased_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
    "cancel_reason",
    "limit_at",
    "claimable",
    "placement_class_id",
    "last_lease_number",
    "unstarted_leases",
    "backoff_runner_id",
    "backoff_until",
)
"""Of a terminal attempt only its event counters, `stop_confirmed` and the count of leases whose
holder has not given its word may still change."""

FUNCTIONS = (
    # Expiry compares with this: the start of the transaction, so never early.
    """\
CREATE FUNCTION clock_now() RETURNS timestamptz
LANGUAGE sql STABLE AS 'SELECT now()'""",
    # Facts carry this: a transaction that waited for a lock must not write an older time.
    """\
CREATE FUNCTION clock_fact() RETURNS timestamptz
LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'""",
    """\
CREATE FUNCTION fact_after(last timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE AS 'SELECT greatest(clock_fact(), last)'""",
    # Volatile, so that it looks after it has the table's lock, and not with the snapshot of a
    # statement that began before: whoever begins an epoch holds that lock alone, so nothing is
    # written to the epoch before once the new one can be seen.
    """\
CREATE FUNCTION current_feed_epoch() RETURNS integer
LANGUAGE sql VOLATILE AS 'SELECT max(number) FROM feed_epochs'""",
    # The transaction's id, but never below that of the attempt's last event in this epoch: so an
    # attempt's own order survives a transaction that took its id early and its turn late.
    """\
CREATE FUNCTION feed_xid_after(last_epoch integer, last_xid xid8) RETURNS xid8
LANGUAGE sql VOLATILE AS '
    SELECT CASE WHEN last_epoch = current_feed_epoch()
                THEN greatest(pg_current_xact_id(), last_xid)
                ELSE pg_current_xact_id() END'""",
    # No event created from this moment on may be removed; NULL: nobody needs any. What a
    # subscription has not delivered, what waits parked and what is being replayed; a paused one
    # counts for 30 days, and so does what is parked.
    """\
CREATE FUNCTION events_needed_since() RETURNS timestamptz
LANGUAGE sql STABLE AS '
    SELECT min(bound) FROM (
        SELECT least(c.created_from, c.replay_created_from) AS bound FROM callback_cursors c
        WHERE c.paused_at IS NULL OR c.paused_at > clock_now() - interval ''30 days''
        UNION ALL
        SELECT p.created_from FROM callback_parked p
        JOIN callback_cursors c ON c.subscription_id = p.subscription_id
        WHERE p.parked_at > clock_now() - interval ''30 days''
            AND (c.paused_at IS NULL OR c.paused_at > clock_now() - interval ''30 days'')) s'""",
    f"""\
CREATE FUNCTION refuse_move() RETURNS trigger
LANGUAGE plpgsql AS '
BEGIN
    RAISE EXCEPTION ''% cannot go from % to %'', TG_TABLE_NAME,
        CASE TG_OP WHEN ''INSERT'' THEN ''nothing'' ELSE OLD.status END, NEW.status
        USING ERRCODE = ''{ILLEGAL_MOVE}'';
END'""",
    f"""\
CREATE FUNCTION refuse_change() RETURNS trigger
LANGUAGE plpgsql AS '
BEGIN
    RAISE EXCEPTION ''this column of % does not change (any more)'', TG_TABLE_NAME
        USING ERRCODE = ''{IMMUTABLE}'';
END'""",
)


def _legal_pairs(moves: object) -> str:
    pairs = [
        f"('{source}', '{target}')"
        for source, targets in moves.items()  # type: ignore[attr-defined]
        for target in sorted(targets)
    ]
    return ", ".join(pairs)


def _row(prefix: str, columns: tuple[str, ...]) -> str:
    return "ROW(" + ", ".join(f"{prefix}.{column}" for column in columns) + ")"


TRIGGERS = (
    """\
CREATE TRIGGER execution_attempts_first_status BEFORE INSERT ON execution_attempts
FOR EACH ROW WHEN (NEW.status <> 'queued') EXECUTE FUNCTION refuse_move()""",
    f"""\
CREATE TRIGGER execution_attempts_move BEFORE UPDATE OF status ON execution_attempts
FOR EACH ROW WHEN (OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN ({_legal_pairs(lc.TRANSITIONS)}))
EXECUTE FUNCTION refuse_move()""",
    f"""\
CREATE TRIGGER execution_attempts_immutable
BEFORE UPDATE OF {", ".join(IMMUTABLE_COLUMNS)} ON execution_attempts
FOR EACH ROW WHEN ({_row("OLD", IMMUTABLE_COLUMNS)}
    IS DISTINCT FROM {_row("NEW", IMMUTABLE_COLUMNS)})
EXECUTE FUNCTION refuse_change()""",
    """\
CREATE TRIGGER execution_attempts_placement_class
BEFORE UPDATE OF placement_class_id ON execution_attempts
FOR EACH ROW WHEN (OLD.placement_class_id IS DISTINCT FROM NEW.placement_class_id
    AND NEW.placement_class_id IS NOT NULL)
EXECUTE FUNCTION refuse_change()""",
    f"""\
CREATE TRIGGER execution_attempts_terminal BEFORE UPDATE ON execution_attempts
FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL AND {_row("OLD", FROZEN_AT_THE_END)}
    IS DISTINCT FROM {_row("NEW", FROZEN_AT_THE_END)})
EXECUTE FUNCTION refuse_change()""",
    """\
CREATE TRIGGER runner_leases_first_status BEFORE INSERT ON runner_leases
FOR EACH ROW WHEN (NEW.status <> 'active') EXECUTE FUNCTION refuse_move()""",
    f"""\
CREATE TRIGGER runner_leases_move BEFORE UPDATE OF status ON runner_leases
FOR EACH ROW WHEN (OLD.status <> NEW.status
    AND (OLD.status, NEW.status) NOT IN ({_legal_pairs(lc.LEASE_TRANSITIONS)}))
EXECUTE FUNCTION refuse_move()""",
)

FIRST_ROWS = (
    "INSERT INTO placement_class_versions (runner_kind) VALUES "
    + ", ".join(f"('{kind}')" for kind in lc.RunnerKind),
    """\
INSERT INTO feed_epochs (number, system_identifier, timeline, begun_at)
SELECT 1, s.system_identifier::text, c.timeline_id, clock_fact()
FROM pg_control_system() s, pg_control_checkpoint() c""",
    "INSERT INTO service_ticks (last_tick_at) VALUES (clock_fact())",
    "INSERT INTO leaders (name) VALUES ('scheduler')",
)
