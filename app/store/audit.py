"""What must hold of everything stored, each as one statement that finds what breaks it.

Nothing here writes. A statement returns `subject` (the attempt, lease, key or runner) and `detail`,
at most `$1` rows; no row: it holds. All of them read one snapshot, so a service at work is no
obstacle: what is promised holds after every commit, and only what a sweep does in its own time is
given that time. Two things may follow a lease's end and are no breach: its late word, and its last
log lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain import lifecycle as lc
from app.store import audit_scheduler
from app.store.audit_kept import KEPT

_TERMINAL = lc.sql_list(lc.TERMINAL)
_RANKS = ", ".join(
    f"('{lc.EVENT_OF_MOVE[status]}', {rank})"
    for rank, statuses in enumerate([*([one] for one in lc.OPEN), lc.TERMINAL])
    for status in statuses
)
_STEPS = ", ".join(
    f"({lc.OPEN.index(source)}, '{lc.EVENT_OF_MOVE[target]}')"
    for source in lc.OPEN
    for target in sorted(lc.TRANSITIONS[source])
)
_LEASE_ENDS = "'lease_expired', 'lease_released', 'lease_revoked'"

# Time is over, and the sweeps, which pause around our own outages, have had 20 s to act.
_LONG_DUE = """alive AND greatest(due_at, outage_ended_at + $2::interval,
    breaker_began_at + $2::interval) + interval '20 s' < clock_now()"""
_SERVICE = """SELECT last_tick_at > clock_now() - interval '3 s' AS alive, outage_ended_at,
        breaker_began_at FROM service_ticks"""


# Timelines whose oldest part was removed by retention say nothing about their attempt any more.
_WHOLE = """a.created_at >= (SELECT coalesce(max(p.ends_at), '-infinity') FROM removed_partitions p
    WHERE p.parent = 'attempt_events')"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold; `needs` names the terms that its statement takes after `$1`."""

    name: str
    sentence: str
    statement: str
    needs: tuple[str, ...] = ()


_ENDS_ONCE = f"""
-- audit.ends_once
SELECT a.id::text AS subject, a.status || ' with terminal events: ' || coalesce(
    string_agg(e.event_type, ', ' ORDER BY e.event_number), 'none') AS detail
FROM execution_attempts a
LEFT JOIN attempt_events e ON e.attempt_id = a.id AND e.event_type IN ({_TERMINAL})
WHERE {_WHOLE}
GROUP BY a.id, a.status
HAVING count(e.id) <> (a.status IN ({_TERMINAL}))::int OR bool_or(e.event_type <> a.status)
LIMIT $1
"""

_LEGAL_STEPS = f"""
-- audit.legal_steps
SELECT attempt_id::text AS subject,
    'event ' || event_number || ' (' || event_type || ') cannot follow what came before' AS detail
FROM (
    SELECT e.attempt_id, e.event_number, e.event_type, coalesce(max(r.rank) OVER (
        PARTITION BY e.attempt_id ORDER BY e.event_number
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS before
    FROM attempt_events e JOIN (VALUES {_RANKS}) r(event_type, rank) USING (event_type)
    WHERE NOT EXISTS (SELECT FROM execution_attempts a
        WHERE a.id = e.attempt_id AND NOT {_WHOLE})) s
WHERE (before, event_type) NOT IN ((-1, 'created'), (1, 'leased'), (2, 'leased'), {_STEPS})
LIMIT $1
"""

_GIVES_STATUS = f"""
-- audit.gives_status
SELECT a.id::text AS subject,
    a.status || ', but its timeline says ' || coalesce(f.folded, 'nothing') AS detail
FROM execution_attempts a LEFT JOIN (
    SELECT e.attempt_id, CASE max(r.rank) WHEN 0 THEN 'queued' WHEN 1 THEN 'leased'
        WHEN 2 THEN 'running' ELSE max(e.event_type) FILTER (WHERE r.rank = 3) END AS folded
    FROM attempt_events e JOIN (VALUES {_RANKS}) r(event_type, rank) USING (event_type)
    GROUP BY e.attempt_id) f ON f.attempt_id = a.id
WHERE a.status IS DISTINCT FROM f.folded AND {_WHOLE} LIMIT $1
"""

_TIMES = f"""
-- audit.times
SELECT id::text AS subject, 'times or category do not fit ' || status AS detail
FROM execution_attempts WHERE
    (status = 'queued' AND (leased_at, started_at, finished_at) IS DISTINCT FROM (NULL, NULL, NULL))
    OR (status = 'leased' AND (leased_at IS NULL OR started_at IS NOT NULL))
    OR (status = 'running' AND started_at IS NULL)
    OR (status IN ({_TERMINAL})) <> (finished_at IS NOT NULL)
    OR (failure_category IS NOT NULL) <> (status IN ({_TERMINAL}) AND status <> 'succeeded')
    OR created_at > coalesce(leased_at, created_at)
    OR coalesce(leased_at, created_at) > coalesce(started_at, leased_at, created_at)
    OR coalesce(started_at, leased_at, created_at) > coalesce(finished_at, 'infinity')
LIMIT $1
"""

_CREATION = """
-- audit.creation
SELECT a.id::text AS subject, 'differs from its created event' AS detail
FROM execution_attempts a
JOIN attempt_events e ON e.attempt_id = a.id AND e.event_type = 'created'
WHERE (a.operation_id::text, a.plan_node_id::text, a.node_run_id::text, a.job_type, a.runner_kind,
        a.priority::text, a.created_at)
    IS DISTINCT FROM (e.payload->>'operation_id', e.payload->>'plan_node_id',
        e.payload->>'node_run_id', e.payload->>'job_type', e.payload->>'runner_kind',
        e.payload->>'priority', e.created_at)
LIMIT $1
"""

_CREATED_ONCE = f"""
-- audit.created_once
SELECT a.id::text AS subject, count(e.id) || ' created events' AS detail
FROM execution_attempts a
LEFT JOIN attempt_events e ON e.attempt_id = a.id AND e.event_type = 'created'
WHERE {_WHOLE}
GROUP BY a.id HAVING count(e.id) <> 1 LIMIT $1
"""

_EVENT_NUMBERS = f"""
-- audit.event_numbers
SELECT a.id::text AS subject, count(e.id) || ' events, the last one numbered '
    || coalesce(max(e.event_number), 0) || '; the attempt says ' || a.last_event_number AS detail
FROM execution_attempts a LEFT JOIN attempt_events e ON e.attempt_id = a.id
WHERE {_WHOLE}
GROUP BY a.id
HAVING (count(e.id), count(DISTINCT e.event_number), min(e.event_number), max(e.event_number),
        max(e.created_at))
    IS DISTINCT FROM (a.last_event_number::bigint, a.last_event_number::bigint, 1,
        a.last_event_number, a.last_event_at)
LIMIT $1
"""

_FEED_ORDER = """
-- audit.feed_order
SELECT attempt_id::text AS subject,
    'event ' || event_number || ' stands before the one it follows' AS detail
FROM (
    SELECT attempt_id, event_number, created_at, feed_epoch, feed_xid, lag(created_at) OVER w AS at,
        lag(feed_epoch) OVER w AS epoch, lag(feed_xid) OVER w AS xid
    FROM attempt_events WINDOW w AS (PARTITION BY attempt_id ORDER BY event_number)) s
WHERE (feed_epoch, feed_xid) < (epoch, xid) OR created_at < at LIMIT $1
"""

_ORPHANS = """
-- audit.orphans
SELECT attempt_id::text AS subject, 'no such attempt, but it has ' || what AS detail
FROM (
    SELECT DISTINCT attempt_id, 'events' AS what FROM attempt_events
    UNION ALL SELECT DISTINCT attempt_id, 'heartbeats' FROM attempt_heartbeats) s
WHERE NOT EXISTS (SELECT FROM execution_attempts a WHERE a.id = s.attempt_id) LIMIT $1
"""

_ONE_ACTIVE = """
-- audit.one_active
SELECT attempt_id::text AS subject, count(*) || ' active leases' AS detail
FROM runner_leases WHERE status = 'active' GROUP BY attempt_id HAVING count(*) > 1 LIMIT $1
"""

_LEASE_OF_OPEN = """
-- audit.lease_of_open
SELECT l.id::text AS subject, 'active on an attempt that is ' || a.status AS detail
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
WHERE l.status = 'active' AND a.status NOT IN ('leased', 'running') LIMIT $1
"""

_LEASE_NUMBERS = """
-- audit.lease_numbers
SELECT a.id::text AS subject, count(l.id) || ' leases up to number '
    || coalesce(max(l.lease_number), 0) || ', ' || count(l.started_at) || ' started' AS detail
FROM execution_attempts a LEFT JOIN runner_leases l ON l.attempt_id = a.id
GROUP BY a.id
HAVING count(l.id) <> a.last_lease_number OR max(l.lease_number) <> count(l.id)
    OR min(l.lease_number) <> 1 OR count(l.started_at) > $2::int
LIMIT $1
"""

_IN_TURN = """
-- audit.in_turn
SELECT y.id::text AS subject, 'began before the one before it ended' AS detail
FROM runner_leases x JOIN runner_leases y
    ON y.attempt_id = x.attempt_id AND y.lease_number = x.lease_number + 1
WHERE x.released_at IS NULL OR x.released_at > y.created_at LIMIT $1
"""

_SESSION = """
-- audit.session
SELECT l.id::text AS subject, 'active, but its session does not speak for the runner' AS detail
FROM runner_leases l LEFT JOIN runner_instances r ON r.id = l.runner_instance_id
WHERE l.status = 'active' AND l.session_id IS DISTINCT FROM r.session_id LIMIT $1
"""

# A runner may report less capacity than it has leases; but then it is given no further one.
_CAPACITY = """
-- audit.capacity
SELECT s.runner_instance_id AS subject,
    count(l.id) || ' active leases for a capacity of ' || s.capacity_total AS detail
FROM runner_statuses s
JOIN runner_leases l ON l.runner_instance_id = s.runner_instance_id AND l.status = 'active'
GROUP BY s.runner_instance_id
HAVING count(l.id) > s.capacity_total AND max(l.created_at) > s.updated_at LIMIT $1
"""

_LEASE_TOLD = f"""
-- audit.lease_told
SELECT l.id::text AS subject, l.status || ' with events: '
    || coalesce(string_agg(e.event_type, ', ' ORDER BY e.event_number), 'none') AS detail
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN attempt_events e ON e.attempt_id = l.attempt_id
    AND e.event_type IN ('leased', {_LEASE_ENDS}) AND e.payload->>'lease_id' = l.id::text
WHERE {_WHOLE}
GROUP BY l.id
HAVING count(*) FILTER (WHERE e.event_type = 'leased') <> 1
    OR count(*) FILTER (WHERE e.event_type <> 'leased')
        <> (l.status <> 'active' AND l.completion_digest IS NULL)::int
    OR bool_or(e.event_type NOT IN ('leased', 'lease_' || l.status))
    OR (l.completion_digest IS NOT NULL AND l.status <> 'released')
LIMIT $1
"""

_NOTHING_AFTER = f"""
-- audit.nothing_after
SELECT f.attempt_id::text AS subject, 'event ' || f.event_number || ' (' || f.event_type
    || ') came under a lease that event ' || e.event_number || ' had ended' AS detail
FROM attempt_events e JOIN attempt_events f ON f.attempt_id = e.attempt_id
    AND f.event_number > e.event_number AND f.payload->>'lease_id' = e.payload->>'lease_id'
WHERE e.event_type IN ({_LEASE_ENDS}) AND f.event_type IN ('leased', 'started', 'heartbeat',
    'artifact_created', 'output_recorded', 'evidence_recorded', 'succeeded', 'failed')
UNION ALL
SELECT a.id::text, 'a heartbeat was recorded after its end'
FROM execution_attempts a JOIN attempt_heartbeats h ON h.attempt_id = a.id
WHERE h.created_at > a.finished_at + interval '10 s'
LIMIT $1
"""

_LOGS_IN_GRACE = """
-- audit.logs_in_grace
SELECT l.id::text AS subject, 'a log chunk was stored after the grace' AS detail
FROM runner_leases l JOIN raw_log_refs r
    ON r.attempt_id = l.attempt_id AND r.lease_number = l.lease_number
CROSS JOIN service_ticks t
WHERE r.created_at > l.released_at + $2::interval + interval '20 s'
    AND coalesce(t.outage_ended_at < l.released_at, true)
LIMIT $1
"""

_LATE_WORDS = f"""
-- audit.late_words
SELECT l.id::text AS subject, count(e.id) || ' late words' AS detail
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN attempt_events e ON e.attempt_id = l.attempt_id
    AND e.event_type = 'late_result' AND e.payload->>'lease_id' = l.id::text
WHERE {_WHOLE}
GROUP BY l.id
HAVING count(e.id) <> (l.late_word_at IS NOT NULL)::int
    OR (l.late_word_at IS NOT NULL AND (l.status = 'active' OR l.completion_digest IS NOT NULL))
LIMIT $1
"""

_STOP_CONFIRMED = """
-- audit.stop_confirmed
SELECT a.id::text AS subject, a.unconfirmed_leases || ' counted, ' || count(l.id)
    || ' started leases ended without a word, stop_confirmed '
    || coalesce(a.stop_confirmed::text, 'unset') AS detail
FROM execution_attempts a LEFT JOIN runner_leases l ON l.attempt_id = a.id
    AND l.started_at IS NOT NULL AND l.status IN ('expired', 'revoked') AND l.late_word_at IS NULL
GROUP BY a.id
HAVING a.unconfirmed_leases <> count(l.id)
    OR a.stop_confirmed <> (a.unconfirmed_leases = 0)
    OR (a.stop_confirmed IS NULL) <> (a.finished_at IS NULL)
LIMIT $1
"""

_ONE_A_KEY = """
-- audit.one_a_key
SELECT concurrency_key AS subject, count(*) || ' attempts at work' AS detail
FROM execution_attempts WHERE concurrency_key IS NOT NULL AND status IN ('leased', 'running')
GROUP BY concurrency_key HAVING count(*) > 1 LIMIT $1
"""

_HELD = """
-- audit.held
SELECT a.id::text AS subject, CASE WHEN h.attempt_id IS NULL THEN 'nobody holds its key'
    ELSE 'its key is held by ' || h.attempt_id || ', lease ' || h.lease_number END AS detail
FROM execution_attempts a
LEFT JOIN concurrency_holds h ON h.concurrency_key = a.concurrency_key
WHERE a.concurrency_key IS NOT NULL AND a.status IN ('leased', 'running')
    AND (h.attempt_id, h.lease_number) IS DISTINCT FROM (a.id, a.last_lease_number)
LIMIT $1
"""

_HOLD_JUSTIFIED = f"""
-- audit.hold_justified
WITH service AS ({_SERVICE})
SELECT h.concurrency_key AS subject, 'held by ' || a.id || ', which is ' || a.status AS detail
FROM concurrency_holds h JOIN execution_attempts a ON a.id = h.attempt_id CROSS JOIN service
CROSS JOIN LATERAL (SELECT CASE WHEN a.stop_confirmed THEN a.last_event_at
    WHEN a.job_type NOT LIKE 'opentofu.%' THEN h.attempt_ended_at + $3::interval END AS due_at) d
WHERE a.concurrency_key IS DISTINCT FROM h.concurrency_key OR a.status = 'queued'
    OR h.attempt_ended_at IS DISTINCT FROM a.finished_at
    OR (due_at IS NOT NULL AND {_LONG_DUE})
LIMIT $1
"""

_OVERDUE = f"""
-- audit.overdue
WITH service AS ({_SERVICE}), due AS (
    SELECT id, 'is ' || status || ' beyond its limit' AS what, limit_at AS due_at
    FROM execution_attempts WHERE limit_at < clock_now()
    UNION ALL
    SELECT attempt_id, 'has a lease that expired and was not ended', expires_at
    FROM runner_leases WHERE status = 'active' AND expires_at < clock_now())
SELECT id::text AS subject, what AS detail FROM due CROSS JOIN service WHERE {_LONG_DUE}
ORDER BY due_at LIMIT $1
"""

_GOES_ON = """
-- audit.goes_on
SELECT a.id::text AS subject, CASE WHEN a.claimable
    THEN a.status || ' and claimable, but a runner holds it'
    ELSE a.status || ' without a lease, and nobody can claim it' END AS detail
FROM execution_attempts a LEFT JOIN runner_leases l ON l.attempt_id = a.id AND l.status = 'active'
WHERE a.finished_at IS NULL AND a.claimable = (l.id IS NOT NULL)
    AND (a.claimable OR a.status <> 'queued' OR a.concurrency_key IS NULL)
LIMIT $1
"""

_LIMITS = """
-- audit.limits
SELECT a.id::text AS subject, a.status || ' with limit_at ' || coalesce(a.limit_at::text, 'unset')
    AS detail
FROM execution_attempts a WHERE
    (a.status = 'queued' AND a.limit_at IS DISTINCT FROM
        a.created_at + make_interval(secs => a.queue_timeout_seconds))
    OR (a.status = 'leased' AND a.limit_at IS NULL AND (a.cancel_requested_at IS NOT NULL
        OR EXISTS (SELECT FROM runner_leases l WHERE l.attempt_id = a.id
            AND l.status <> 'released')))
    OR (a.status = 'running' AND (a.limit_at IS NULL
        OR a.limit_at > a.started_at + make_interval(secs => a.timeout_seconds)))
    OR (a.finished_at IS NOT NULL AND a.limit_at IS NOT NULL)
LIMIT $1
"""

CHECKS = (
    Check("ends-once", "An ended attempt has one terminal event, of its status.", _ENDS_ONCE),
    Check("legal-steps", "A timeline makes only moves that the lifecycle knows.", _LEGAL_STEPS),
    Check("gives-status", "A timeline adds up to the attempt's status.", _GIVES_STATUS),
    Check("times", "Times and category fit the status; no time goes backwards.", _TIMES),
    Check("creation", "What an attempt was created with has not changed.", _CREATION),
    Check("created-once", "An attempt has one created event.", _CREATED_ONCE),
    Check("event-numbers", "Events count 1, 2, 3 to the attempt's last one.", _EVENT_NUMBERS),
    Check("feed-order", "The feed and the clock keep an attempt's own order.", _FEED_ORDER),
    Check("orphans", "Every event and heartbeat belongs to an attempt.", _ORPHANS),
    Check("one-active", "An attempt has at most one active lease.", _ONE_ACTIVE),
    Check("lease-of-open", "An active lease is on a leased or running attempt.", _LEASE_OF_OPEN),
    Check(
        "lease-numbers",
        "Leases count 1, 2, 3; no more were started than the settings allow.",
        _LEASE_NUMBERS,
        ("max_started_leases",),
    ),
    Check("in-turn", "A lease begins when the one before it has ended.", _IN_TURN),
    Check("session", "An active lease belongs to its runner's current session.", _SESSION),
    Check("capacity", "No runner was given more than it can hold.", _CAPACITY),
    Check("lease-told", "A lease's begin and end are told once each.", _LEASE_TOLD),
    Check("nothing-after", "Nothing is written under a lease that has ended.", _NOTHING_AFTER),
    Check(
        "logs-in-grace",
        "Log lines of an ended lease came within its grace.",
        _LOGS_IN_GRACE,
        ("log_grace",),
    ),
    Check("late-words", "A late word is kept once, of a lease that ended without.", _LATE_WORDS),
    Check(
        "stop-confirmed",
        "Stop is confirmed when every started lease has had its word.",
        _STOP_CONFIRMED,
    ),
    Check("one-a-key", "One attempt a concurrency key is at work.", _ONE_A_KEY),
    Check("held", "Whoever is at work under a key holds it.", _HELD),
    Check(
        "hold-justified",
        "A held key has a holder that justifies it.",
        _HOLD_JUSTIFIED,
        ("lease_time", "key_hold"),
    ),
    Check("overdue", "No limit and no lease is long over.", _OVERDUE, ("lease_time",)),
    Check("goes-on", "An open attempt has a runner, or may get one.", _GOES_ON),
    Check("limits", "Every open attempt has the limits that its status asks for.", _LIMITS),
    *(Check(*one) for one in audit_scheduler.STATEMENTS),
    *(Check(*one) for one in KEPT),
)
