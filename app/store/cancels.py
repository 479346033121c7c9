"""Marking attempts as to be cancelled. What ends by it is decided in `store/ends.py`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from app.store.database import Connection

# From here on it is never claimable; whatever ends its lease ends it. The grace is a limit.
_MARK = """
-- cancels.mark_once
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[]) AS i(attempt_id, reason)
), marked AS (
    UPDATE execution_attempts a SET cancel_requested_at = t.at, cancel_reason = i.reason,
        claimable = false,
        limit_at = CASE WHEN a.status = 'queued' THEN a.limit_at
            ELSE least(a.limit_at, t.at + $3) END,
        last_event_number = a.last_event_number + 1, last_event_at = t.at,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM input i CROSS JOIN LATERAL (
        SELECT fact_after(b.last_event_at) AS at FROM execution_attempts b
        WHERE b.id = i.attempt_id) t
    WHERE a.id = i.attempt_id AND a.finished_at IS NULL AND a.cancel_requested_at IS NULL
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid,
        a.cancel_reason
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), m.id, m.last_event_number, 'cancel_requested',
        jsonb_strip_nulls(jsonb_build_object('reason', nullif(m.cancel_reason, ''))),
        m.last_feed_epoch, m.last_feed_xid, m.last_event_at
    FROM marked m
)
SELECT id FROM marked
"""


async def mark_once(
    conn: Connection, attempt_ids: Sequence[UUID], reasons: Sequence[str], grace: timedelta
) -> list[UUID]:
    """Note the first wish to cancel of each of these attempts, which the caller has locked."""
    rows = await conn.fetch(_MARK, list(attempt_ids), list(reasons), grace)
    return [row["id"] for row in rows]


_LIST_OPEN_OF_OPERATION = """
-- cancels.list_open_of_operation
SELECT id FROM execution_attempts WHERE operation_id = $1 AND finished_at IS NULL
    AND cancel_requested_at IS NULL
ORDER BY id LIMIT $2
"""


async def list_open_of_operation(conn: Connection, operation_id: UUID, limit: int) -> list[UUID]:
    """At most `limit` attempts of an operation that have not ended and are not to be cancelled."""
    rows = await conn.fetch(_LIST_OPEN_OF_OPERATION, operation_id, limit)
    return [row["id"] for row in rows]
