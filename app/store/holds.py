"""Concurrency keys: who has one, who is next in line, and what frees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.store.database import Connection

_LOCK_KEYS = """
-- holds.lock_keys
SELECT pg_advisory_xact_lock(hashtextextended('key:' || k.key, 0))
FROM (SELECT unnest($1::text[]) AS key ORDER BY 1) k
"""

# Claimable is the first in line of a key that nobody holds, and nobody else. An attempt that a
# more urgent one has overtaken steps back. The limit is for the planner, which would otherwise
# expect so many of them that it read the whole table; what is beyond it is met by the next pass.
_MOVE_UP = """
-- holds.move_up
WITH line AS (
    SELECT k.key, f.id FROM unnest($1::text[]) k(key) CROSS JOIN LATERAL (
        SELECT a.id FROM execution_attempts a
        WHERE a.status = 'queued' AND a.concurrency_key = k.key
        ORDER BY a.priority, a.created_at, a.id LIMIT 1) f
    WHERE NOT EXISTS (SELECT FROM concurrency_holds h WHERE h.concurrency_key = k.key)
), concerned AS (
    SELECT id, true AS first FROM line
    UNION ALL
    (SELECT a.id, false FROM execution_attempts a
     WHERE a.claimable AND a.concurrency_key = ANY($1::text[])
        AND a.id NOT IN (SELECT id FROM line)
     LIMIT 100)
), wrong AS (
    SELECT a.id, c.first FROM concerned c JOIN execution_attempts a ON a.id = c.id
    WHERE a.status = 'queued' AND a.claimable <> c.first AND a.cancel_requested_at IS NULL
    ORDER BY a.id FOR NO KEY UPDATE OF a
), moved AS (
    UPDATE execution_attempts a SET claimable = w.first FROM wrong w
    WHERE a.id = w.id AND a.status = 'queued'
    RETURNING a.id, a.claimable, a.runner_kind, a.placement_class_id
)
SELECT runner_kind, placement_class_id FROM moved WHERE claimable
"""


async def move_up(conn: Connection, keys: Sequence[str]) -> list[tuple[str, UUID]]:
    """Make the first in line of each free key claimable; return kind and class of each.

    In a transaction of its own, after whatever changed the line has been committed; the advisory
    locks let one such pass a key see what the one before it wrote.
    """
    await conn.execute(_LOCK_KEYS, list(keys))
    rows = await conn.fetch(_MOVE_UP, list(keys))
    return [(row["runner_kind"], row["placement_class_id"]) for row in rows]


# The distinct keys of those who wait, by a loose scan: one probe a key, not one a waiter.
_LIST_WAITED_FOR = """
-- holds.list_waited_for
WITH RECURSIVE line AS (
    (SELECT concurrency_key FROM execution_attempts
     WHERE status = 'queued' AND concurrency_key IS NOT NULL AND concurrency_key > $1
     ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (SELECT a.concurrency_key FROM execution_attempts a
        WHERE a.status = 'queued' AND a.concurrency_key IS NOT NULL
            AND a.concurrency_key > line.concurrency_key
        ORDER BY a.concurrency_key LIMIT 1)
    FROM line WHERE line.concurrency_key IS NOT NULL
)
SELECT concurrency_key FROM line WHERE concurrency_key IS NOT NULL LIMIT $2
"""


async def list_waited_for(conn: Connection, after: str, limit: int) -> list[str]:
    """At most `limit` keys, above `after`, that somebody queued waits for."""
    rows = await conn.fetch(_LIST_WAITED_FOR, after, limit)
    return [row["concurrency_key"] for row in rows]


# A hold is justified by an attempt that is leased or running, or that ended without the word of a
# runner that had started it, until key_hold_seconds have passed; some job types wait for an
# operator or the late word for ever.
_RELEASE_DUE = """
-- holds.release_due
DELETE FROM concurrency_holds h USING (
    SELECT h.concurrency_key FROM concurrency_holds h
    JOIN execution_attempts a ON a.id = h.attempt_id
    WHERE a.status = 'queued' OR a.stop_confirmed
        OR (a.finished_at IS NOT NULL AND NOT a.job_type LIKE ANY ($2::text[])
            AND coalesce(h.attempt_ended_at, a.finished_at) + $1 <= clock_now())
    ORDER BY h.concurrency_key LIMIT $3 FOR UPDATE OF h SKIP LOCKED) d
WHERE h.concurrency_key = d.concurrency_key
RETURNING h.concurrency_key
"""


async def release_due(
    conn: Connection, hold_time: timedelta, held_for_ever: Sequence[str], limit: int
) -> list[str]:
    """Remove at most `limit` holds that their attempts no longer justify; return their keys."""
    rows = await conn.fetch(_RELEASE_DUE, hold_time, list(held_for_ever), limit)
    return [row["concurrency_key"] for row in rows]


@dataclass(frozen=True, slots=True)
class Hold:
    """Who has a key, and since when."""

    concurrency_key: str
    attempt_id: UUID
    attempt_status: str
    lease_number: int
    held_at: datetime
    attempt_ended_at: datetime | None
    waiting: int


_SELECT = """
SELECT h.concurrency_key, h.attempt_id, a.status AS attempt_status, h.lease_number, h.held_at,
    h.attempt_ended_at, (SELECT count(*) FROM (SELECT FROM execution_attempts w
        WHERE w.status = 'queued' AND w.concurrency_key = h.concurrency_key LIMIT 1000) q)
    AS waiting
FROM concurrency_holds h JOIN execution_attempts a ON a.id = h.attempt_id
"""

_LIST = f"""
-- holds.list_holds
{_SELECT} WHERE h.concurrency_key > $1 ORDER BY h.concurrency_key LIMIT $2
"""

_FIND = f"""
-- holds.find
{_SELECT} WHERE h.concurrency_key = $1
"""


async def list_holds(conn: Connection, after: str, limit: int) -> list[Hold]:
    """At most `limit` holds, by key, above `after`."""
    return [Hold(**dict(row)) for row in await conn.fetch(_LIST, after, limit)]


async def find(conn: Connection, key: str) -> Hold | None:
    """The hold on this key, or None."""
    row = await conn.fetchrow(_FIND, key)
    return None if row is None else Hold(**dict(row))


_FREE = """
-- holds.free
WITH target AS (
    SELECT a.id, a.last_event_at FROM execution_attempts a
    WHERE a.id = (SELECT attempt_id FROM concurrency_holds WHERE concurrency_key = $1)
        AND a.finished_at IS NOT NULL
    FOR NO KEY UPDATE OF a
), freed AS (
    DELETE FROM concurrency_holds h USING target t
    WHERE h.concurrency_key = $1 AND h.attempt_id = t.id
    RETURNING h.attempt_id, h.lease_number
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + 1,
        last_event_at = fact_after(t.last_event_at), last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM freed f JOIN target t ON t.id = f.attempt_id WHERE a.id = f.attempt_id
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid,
        f.lease_number
)
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
    feed_xid, created_at)
SELECT gen_random_uuid(), n.id, n.last_event_number, 'key_freed', jsonb_build_object(
        'lease_number', n.lease_number, 'concurrency_key', $1::text, 'by', $2::text,
        'reason', $3::text),
    n.last_feed_epoch, n.last_feed_xid, n.last_event_at
FROM noted n
RETURNING attempt_id
"""


async def free(conn: Connection, key: str, by: str, reason: str) -> UUID | None:
    """Free a key whose holder has ended, and note by whom and why; that attempt, or None."""
    attempt_id: UUID | None = await conn.fetchval(_FREE, key, by, reason)
    return attempt_id
