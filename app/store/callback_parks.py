"""What is parked: attempts that wait apart, sent from their own timelines up to the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from app.domain.feed import TYPE_PREFIX, Cursor, FeedEvent
from app.store.callback_leases import Fence
from app.store.callback_log import Logged, write
from app.store.callback_work import Failure
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Parked:
    """An attempt that waits apart."""

    attempt_id: UUID
    event_number: int
    created_from: datetime
    failures: int
    asked: bool


_DUE = """
-- callback_parks.due
SELECT attempt_id, event_number, created_from, failures, asked FROM callback_parked
WHERE subscription_id = $1 AND next_try_at <= clock_fact() ORDER BY next_try_at LIMIT $2
"""


async def due(conn: Connection, fence: Fence, limit: int) -> list[Parked]:
    """Parked attempts whose next try has come."""
    rows = await conn.fetch(_DUE, fence.subscription_id, limit)
    return [Parked(**dict(row)) for row in rows]


_TIMELINE = """
-- callback_parks.timeline
SELECT e.id, e.event_type, e.created_at, e.attempt_id, e.event_number, e.feed_epoch, e.feed_xid,
    a.operation_id, a.job_type, e.payload, c.created_from
FROM callback_cursors c
JOIN attempt_events e ON (e.feed_epoch, e.feed_xid, e.attempt_id, e.event_number)
    <= (c.feed_epoch, c.feed_xid, c.attempt_id, c.event_number)
JOIN execution_attempts a ON a.id = e.attempt_id
WHERE c.subscription_id = $1 AND e.attempt_id = $2 AND e.event_number >= $3
    AND e.created_at >= $4
ORDER BY e.event_number LIMIT $5
"""


async def timeline(conn: Connection, fence: Fence, parked: Parked, limit: int) -> list[FeedEvent]:
    """What a parked attempt still has to send, whatever its type, up to the cursor, in order."""
    rows = await conn.fetch(
        _TIMELINE,
        *(fence.subscription_id, parked.attempt_id, parked.event_number),
        *(parked.created_from, limit),
    )
    return [_event(row) for row in rows]


def _event(row: asyncpg.Record) -> FeedEvent:
    return FeedEvent(
        id=row["id"],
        type=TYPE_PREFIX + row["event_type"],
        timestamp=row["created_at"],
        attempt_id=row["attempt_id"],
        event_number=row["event_number"],
        data=row["payload"],
        operation_id=row["operation_id"],
        job_type=row["job_type"],
        cursor=Cursor(
            row["feed_epoch"],
            row["feed_xid"],
            row["attempt_id"],
            row["event_number"],
            row["created_from"],
        ),
    )


_HOLD = """
-- callback_parks.hold
UPDATE callback_cursors SET delivered = delivered + $4,
    gap_until = greatest(gap_until, $5),
    last_success_at = CASE WHEN $4 > 0 THEN clock_fact() ELSE last_success_at END
WHERE subscription_id = $1 AND holder = $2 AND term = $3 RETURNING subscription_id
"""

# Whether anything is left is asked after the row is held: the cursor cannot move meanwhile, and
# this statement sees every event at or below it.
_UNPARK = """
-- callback_parks.unpark
DELETE FROM callback_parked p WHERE p.subscription_id = $1 AND p.attempt_id = $2
    AND p.event_number = $3 AND NOT EXISTS (
        SELECT FROM callback_cursors c JOIN attempt_events e
            ON (e.feed_epoch, e.feed_xid, e.attempt_id, e.event_number)
            <= (c.feed_epoch, c.feed_xid, c.attempt_id, c.event_number)
        WHERE c.subscription_id = $1 AND e.attempt_id = $2 AND e.event_number >= $4
            AND e.created_at >= $5)
RETURNING p.attempt_id
"""

_MOVE_PARKED = """
-- callback_parks.move_parked
UPDATE callback_parked SET event_number = $4, event_id = NULL, created_from = $5, failures = 0,
    next_try_at = clock_fact(), last_result = NULL, last_status = NULL
WHERE subscription_id = $1 AND attempt_id = $2 AND event_number = $3
"""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a parked attempt has got."""

    next_number: int
    created_from: datetime
    delivered: int
    gap_until: datetime | None = None


async def step_parked(
    conn: Connection, fence: Fence, parked: Parked, step: Step, log: Sequence[Logged]
) -> bool:
    """Move a parked attempt on, and un-park it if nothing of it is left up to the cursor.

    True: it is un-parked.
    """
    held = await conn.fetchval(_HOLD, *fence.key, step.delivered, step.gap_until)
    if held is None:
        return False
    await write(conn, fence.subscription_id, log)
    row = (fence.subscription_id, parked.attempt_id, parked.event_number)
    to = (step.next_number, step.created_from)
    if await conn.fetchval(_UNPARK, *row, *to) is not None:
        return True
    await conn.execute(_MOVE_PARKED, *row, *to)
    return False


_REFUSE_PARKED = """
-- callback_parks.refuse_parked
UPDATE callback_parked SET failures = failures + 1, event_id = $4, last_result = $5,
    last_status = $6, next_try_at = clock_fact() + $7::interval
WHERE subscription_id = $1 AND attempt_id = $2 AND event_number = $3
"""


async def refuse_parked(
    conn: Connection, fence: Fence, parked: Parked, failure: Failure, log: Sequence[Logged]
) -> None:
    """Note that a parked event was refused again, and when it is tried next."""
    if await conn.fetchval(_HOLD, *fence.key, 0, None) is None:
        return
    await write(conn, fence.subscription_id, log)
    await conn.execute(
        _REFUSE_PARKED,
        *(fence.subscription_id, parked.attempt_id, parked.event_number),
        *(failure.event_id, failure.result, failure.status, failure.wait),
    )
