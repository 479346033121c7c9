"""What must hold of callbacks; each as one statement, as in `store/audit.py`.

The log of deliveries is what they go by, so events that are older than what is kept of it are not
judged, and neither is what came before the filters were as they are now.
"""

from __future__ import annotations

from app.store.audit import Check

_PLACE = "(e.feed_epoch, e.feed_xid, e.attempt_id, e.event_number)"
_SINCE = "(c.since_epoch, c.since_xid, c.since_attempt_id, c.since_event_number)"
_CURSOR = "(c.feed_epoch, c.feed_xid, c.attempt_id, c.event_number)"
_WANTED = """(s.event_types IS NULL OR 'attempt.' || e.event_type = ANY(s.event_types))
        AND (s.operation_ids IS NULL OR a.operation_id = ANY(s.operation_ids))
        AND (s.job_types IS NULL OR a.job_type = ANY(s.job_types))"""
_LOGGED = """(SELECT q.id AS subscription_id, coalesce(min(d.sent_at),
            clock_now() - interval '1 day') AS logged_from
        FROM callback_subscriptions q LEFT JOIN callback_deliveries d ON d.subscription_id = q.id
            AND d.kind <> 'test' GROUP BY q.id)"""

_DELIVERED = f"""
-- audit_callbacks.delivered
SELECT s.name AS subject, 'event ' || e.event_number || ' of attempt ' || e.attempt_id
    || ' lies behind the cursor, was not accepted and is not parked' AS detail
FROM callback_subscriptions s JOIN callback_cursors c ON c.subscription_id = s.id
JOIN {_LOGGED} l ON l.subscription_id = s.id
JOIN attempt_events e ON {_PLACE} > {_SINCE} AND {_PLACE} <= {_CURSOR}
    AND e.created_at >= l.logged_from
JOIN execution_attempts a ON a.id = e.attempt_id
WHERE {_WANTED}
    AND NOT EXISTS (SELECT FROM callback_deliveries d WHERE d.subscription_id = s.id
        AND d.result = 'delivered' AND d.event_ids @> ARRAY[e.id])
    AND NOT EXISTS (SELECT FROM callback_parked p WHERE p.subscription_id = s.id
        AND p.attempt_id = e.attempt_id AND p.event_number <= e.event_number)
LIMIT $1
"""

_IN_ORDER = f"""
-- audit_callbacks.in_order
WITH first AS (
    SELECT d.subscription_id, x.event_id, min(d.sent_at) AS arrived, min(x.place) AS place
    FROM callback_deliveries d CROSS JOIN unnest(d.event_ids) WITH ORDINALITY AS x(event_id, place)
    WHERE d.result = 'delivered' AND d.kind <> 'test' GROUP BY 1, 2
)
SELECT name AS subject, 'event ' || event_number || ' of attempt ' || attempt_id
    || ' arrived after event ' || before AS detail
FROM (
    SELECT s.name, e.attempt_id, e.event_number, max(e.event_number) OVER (
        PARTITION BY s.id, e.attempt_id ORDER BY f.arrived, f.place
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM first f JOIN callback_subscriptions s ON s.id = f.subscription_id
    JOIN callback_cursors c ON c.subscription_id = s.id
    JOIN {_LOGGED} l ON l.subscription_id = s.id
    JOIN attempt_events e ON e.id = f.event_id AND {_PLACE} > {_SINCE}
        AND e.created_at >= l.logged_from) o
WHERE event_number < before LIMIT $1
"""

_PARKED = f"""
-- audit_callbacks.parked
SELECT s.name AS subject, 'attempt ' || p.attempt_id || ' is parked from event ' || p.event_number
    || ', which lies beyond the cursor or does not exist' AS detail
FROM callback_parked p JOIN callback_subscriptions s ON s.id = p.subscription_id
JOIN callback_cursors c ON c.subscription_id = s.id
WHERE NOT p.asked AND p.parked_at > clock_now() - interval '30 days' AND NOT EXISTS (
    SELECT FROM attempt_events e WHERE e.attempt_id = p.attempt_id
        AND e.event_number = p.event_number AND e.created_at >= p.created_from
        AND {_PLACE} <= {_CURSOR})
LIMIT $1
"""

_INVENTED = """
-- audit_callbacks.invented
SELECT s.name AS subject, 'event ' || d.event_number || ' of attempt ' || d.attempt_id
    || ' was sent and does not exist' AS detail
FROM callback_deliveries d JOIN callback_subscriptions s ON s.id = d.subscription_id
WHERE d.kind <> 'test' AND d.attempt_id IS NOT NULL
    AND d.sent_at > clock_now() - interval '7 days' AND NOT EXISTS (
        SELECT FROM attempt_events e WHERE e.attempt_id = d.attempt_id
            AND e.event_number = d.event_number AND e.id = d.event_ids[1])
LIMIT $1
"""

_GOES_ON = f"""
-- audit_callbacks.goes_on
SELECT s.name AS subject, 'has not moved for a minute, though event ' || e.event_number
    || ' of attempt ' || e.attempt_id || ' waits' AS detail
FROM callback_subscriptions s JOIN callback_cursors c ON c.subscription_id = s.id
JOIN service_ticks t ON t.last_tick_at > clock_now() - interval '3 s'
    AND coalesce(t.outage_ended_at, '-infinity') < clock_now() - interval '60 s'
JOIN LATERAL (
    SELECT e.attempt_id, e.event_number FROM attempt_events e
    JOIN execution_attempts a ON a.id = e.attempt_id
    WHERE {_PLACE} > {_CURSOR} AND e.created_at >= c.created_from
        AND e.created_at < clock_now() - interval '60 s'
        AND e.feed_xid < pg_snapshot_xmin(pg_current_snapshot()) AND {_WANTED} LIMIT 1) e ON true
WHERE c.paused_at IS NULL AND c.failures = 0
    AND greatest(c.since_at, c.last_success_at, c.last_failure_at) < clock_now() - interval '60 s'
LIMIT $1
"""

CHECKS = (
    Check(
        "callback-delivered",
        "What lies behind a subscription's cursor was accepted, or is parked.",
        _DELIVERED,
    ),
    Check("callback-order", "An attempt's events first arrived in their order.", _IN_ORDER),
    Check("callback-parked", "What is parked begins with an event that was passed.", _PARKED),
    Check("callback-invented", "Only events that exist were sent.", _INVENTED),
    Check("callback-goes-on", "A subscription that could go on does.", _GOES_ON),
)
