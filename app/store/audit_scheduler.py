"""What must hold of terms, schedules and the outbox: statements like those of `store/audit.py`."""

from __future__ import annotations

_TERMS = """
-- audit_scheduler.terms
SELECT name || ' term ' || term AS subject, CASE
    WHEN from_at < lag(until_at) OVER w THEN 'began before the one before it ended'
    WHEN until_at IS NULL AND lead(term) OVER w IS NOT NULL THEN 'goes on beside a later one'
    ELSE 'ended before it began' END AS detail
FROM leader_terms t
WHERE EXISTS (SELECT FROM leader_terms x WHERE x.name = t.name AND x.term < t.term
        AND x.until_at > t.from_at)
    OR (t.until_at IS NULL AND EXISTS (
        SELECT FROM leader_terms x WHERE x.name = t.name AND x.term > t.term))
    OR t.until_at < t.from_at
WINDOW w AS (PARTITION BY name ORDER BY term)
LIMIT $1
"""

_LEADER = """
-- audit_scheduler.leader
SELECT l.name AS subject, 'term ' || l.term || ' of the leader is not the open one of the history'
    AS detail
FROM leaders l LEFT JOIN leader_terms t ON t.name = l.name AND t.until_at IS NULL
WHERE l.holder IS NOT NULL AND (l.term, l.holder) IS DISTINCT FROM (t.term, t.holder)
LIMIT $1
"""

# What was written under a term was written before the next one began.
_STALE = """
-- audit_scheduler.stale
SELECT f.schedule AS subject, 'its fire of ' || f.due_at || ' was written under term ' || f.term
    || ', which was not the leader''s then' AS detail
FROM schedule_fires f LEFT JOIN leader_terms t ON t.name = 'scheduler' AND t.term = f.term
WHERE f.kind = 'due' AND f.fired_at > clock_now() - interval '30 d'
    AND (t.term IS NULL OR f.fired_at < t.from_at OR EXISTS (SELECT FROM leader_terms n
        WHERE n.name = t.name AND n.term > t.term AND n.from_at < f.fired_at))
LIMIT $1
"""

_ONE_FIRE = """
-- audit_scheduler.one_fire
SELECT schedule AS subject, count(*) || ' fires of ' || due_at AS detail
FROM schedule_fires WHERE kind = 'due' GROUP BY schedule, due_at HAVING count(*) > 1 LIMIT $1
"""

_HAS_MESSAGE = """
-- audit_scheduler.has_message
SELECT f.schedule AS subject, 'its fire of ' || f.due_at || CASE
    WHEN f.outcome = 'skipped' THEN ' was skipped and has a message'
    WHEN o.id IS NULL THEN ' has no message, sent or waiting'
    ELSE ' was sent and waits' END AS detail
FROM schedule_fires f LEFT JOIN outbox o ON o.id = f.id
WHERE (f.outcome = 'fired' AND (f.sent_at IS NULL) = (o.id IS NULL))
    OR (f.outcome = 'skipped' AND (f.sent_at IS NOT NULL OR o.id IS NOT NULL))
UNION ALL
SELECT o.schedule, 'its message ' || o.id || ' was not fired by anything' FROM outbox o
WHERE NOT EXISTS (SELECT FROM schedule_fires f WHERE f.id = o.id)
LIMIT $1
"""

_HAS_EFFECT = """
-- audit_scheduler.has_effect
SELECT f.schedule AS subject,
    'its fire of ' || f.due_at || ' is done, without its attempt' AS detail
FROM schedule_fires f JOIN schedules s ON s.name = f.schedule AND s."to" = 'attempt.create'
    AND position('"idempotency_key"' IN s.data) = 0 AND s.updated_at < f.fired_at
WHERE f.sent_as IN ('done', 'duplicate') AND NOT EXISTS (
    SELECT FROM execution_attempts a WHERE a.idempotency_key = f.id::text)
LIMIT $1
"""

# Somebody led all the while, and had twenty seconds for it.
_LATE = """
-- audit_scheduler.late
SELECT s.name AS subject, 'came due at ' || s.next_fire_at || ' and was not settled' AS detail
FROM schedules s JOIN leaders l ON l.name = 'scheduler'
WHERE s.next_fire_at < clock_now() - interval '30 s'
    AND l.elected_at < clock_now() - interval '30 s' AND l.expires_at > clock_now()
ORDER BY s.next_fire_at LIMIT $1
"""

_BEHIND = """
-- audit_scheduler.behind
SELECT s.name AS subject, 'its next time lies before its last one' AS detail
FROM schedules s WHERE s.next_due_at <= s.last_due_at LIMIT $1
"""

STATEMENTS = (
    ("terms", "Terms of the leader follow each other and do not overlap.", _TERMS),
    ("leader", "Whoever leads has the one open term of the history.", _LEADER),
    ("stale-terms", "Nothing was written under a term that was over.", _STALE),
    ("one-fire", "A due time of a schedule is settled once.", _ONE_FIRE),
    ("has-message", "What a schedule fired has one message, sent or waiting.", _HAS_MESSAGE),
    ("has-effect", "What a schedule was to create is there.", _HAS_EFFECT),
    ("fires-on-time", "No schedule waits while somebody leads.", _LATE),
    ("goes-forward", "A schedule moves forward only.", _BEHIND),
)
"""Name, sentence and statement of each check."""
