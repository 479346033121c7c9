"""What must hold of the feed and its epochs; each as one statement, as in `store/audit.py`."""

from __future__ import annotations

from app.store.audit import Check

_EPOCH_NUMBERS = """
-- audit_feed.epoch_numbers
SELECT number::text AS subject, 'is the epoch in place ' || place || ', which '
    || CASE WHEN previous_end_xid IS NULL THEN 'tells no end' ELSE 'tells an end' END
    || ' of one before' AS detail
FROM (SELECT number, previous_end_xid, begun_at, facts_until,
        row_number() OVER (ORDER BY number) AS place FROM feed_epochs) e
WHERE number <> place OR (previous_end_xid IS NULL) <> (place = 1) OR begun_at > facts_until
LIMIT $1
"""

_EPOCH_ENDS = """
-- audit_feed.epoch_ends
SELECT e.attempt_id::text AS subject, 'event ' || e.event_number || ' is in epoch ' || e.feed_epoch
    || CASE WHEN p.number IS NULL THEN ', which never began' ELSE ', beyond its end' END AS detail
FROM attempt_events e LEFT JOIN feed_epochs p ON p.number = e.feed_epoch
LEFT JOIN feed_epochs n ON n.number = e.feed_epoch + 1
WHERE p.number IS NULL OR e.feed_xid > n.previous_end_xid LIMIT $1
"""

_FEED_PLACE = """
-- audit_feed.feed_place
SELECT a.id::text AS subject, 'remembers a place before that of its event ' || e.event_number
    AS detail
FROM execution_attempts a
JOIN attempt_events e ON e.attempt_id = a.id AND e.event_number = a.last_event_number
WHERE (e.feed_epoch, e.feed_xid) > (a.last_feed_epoch, a.last_feed_xid) LIMIT $1
"""

# After a restore into another cluster nothing can be said until the service began a new epoch.
_FEED_BEGUN = """
-- audit_feed.feed_begun
SELECT e.attempt_id::text AS subject, 'event ' || e.event_number
    || ' is of a transaction that has not begun' AS detail
FROM (SELECT number, system_identifier FROM feed_epochs ORDER BY number DESC LIMIT 1) p
JOIN pg_control_system() s ON s.system_identifier::text = p.system_identifier
JOIN attempt_events e ON e.feed_epoch = p.number
WHERE e.feed_xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT $1
"""

# Facts that may have been dated ahead of a clock that was set back bound nothing.
_FEED_BOUND = """
-- audit_feed.feed_bound
SELECT attempt_id::text AS subject,
    'event ' || event_number || ' is dated over two hours before one that it follows' AS detail
FROM (
    SELECT e.attempt_id, e.event_number, e.created_at, max(e.created_at) FILTER (
            WHERE e.created_at > coalesce(p.facts_until + interval '2 h', '-infinity'))
        OVER (PARTITION BY e.feed_epoch ORDER BY e.feed_xid, e.attempt_id, e.event_number
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest
    FROM attempt_events e JOIN feed_epochs p ON p.number = e.feed_epoch) s
WHERE created_at < latest - interval '2 h' LIMIT $1
"""

CHECKS = (
    Check(
        "epoch-numbers",
        "Epochs of the feed count 1, 2, 3, and tell the end of the one before.",
        _EPOCH_NUMBERS,
    ),
    Check("epoch-ends", "Nothing was written to an epoch after its end.", _EPOCH_ENDS),
    Check("feed-place", "An attempt remembers a place not before its last event.", _FEED_PLACE),
    Check("feed-begun", "No event is of a transaction that has not begun.", _FEED_BEGUN),
    Check("feed-bound", "The order of the feed and that of the clock are close.", _FEED_BOUND),
)
