"""How subscriptions are worked on: one worker each, by a lease; every write is under its term.

A worker first takes the subscription's row by an UPDATE that repeats holder and term, and then
writes what goes with it, in one transaction; it waits for whoever is at the row, and the statements
after it see what that one wrote. A worker that was overtaken changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.callbacks import PauseReason, Result
from app.domain.feed import Cursor, FeedEvent
from app.store.callback_leases import Fence
from app.store.callback_log import Logged, write
from app.store.callbacks import place
from app.store.database import Connection

_PARKED_OF = """
-- callback_work.parked_of
SELECT attempt_id FROM callback_parked
WHERE subscription_id = $1 AND attempt_id = ANY($2::uuid[])
"""


async def parked_of(conn: Connection, fence: Fence, attempt_ids: Sequence[UUID]) -> set[UUID]:
    """Which of these attempts are parked."""
    rows = await conn.fetch(_PARKED_OF, fence.subscription_id, list(attempt_ids))
    return {row["attempt_id"] for row in rows}


# --- moving on -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Park:
    """An attempt to be passed over, from this event on."""

    event: FeedEvent
    failures: int = 0
    wait: timedelta = timedelta(0)
    result: Result | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that got nothing accepted."""

    event_id: UUID
    result: Result
    status: int | None
    detail: str
    wait: timedelta


_ADVANCE = """
-- callback_work.advance
UPDATE callback_cursors SET feed_epoch = $4, feed_xid = $5::xid8, attempt_id = $6,
    event_number = $7, created_from = $8, delivered = delivered + $9, failures = 0,
    failing_since = NULL, next_try_at = NULL,
    last_success_at = CASE WHEN $9 > 0 THEN clock_fact() ELSE last_success_at END
WHERE subscription_id = $1 AND holder = $2 AND term = $3
    AND (feed_epoch, feed_xid, attempt_id, event_number) <= ($4, $5::xid8, $6, $7)
RETURNING subscription_id
"""

_REVIVE = """
-- callback_work.revive
UPDATE callback_parked SET next_try_at = clock_fact()
WHERE subscription_id = $1 AND next_try_at > clock_fact()
"""


async def advance(
    conn: Connection,
    fence: Fence,
    to: Cursor,
    delivered: int,
    parks: Sequence[Park],
    log: Sequence[Logged],
    *,
    was_failing: bool,
    max_parked: int,
) -> bool:
    """Move on to a place; what is parked was passed over. False: overtaken, nothing was changed."""
    moved = await conn.fetchval(_ADVANCE, *fence.key, *place(to), to.created_from, delivered)
    if moved is None:
        return False
    if was_failing and delivered:
        await conn.execute(_REVIVE, fence.subscription_id)
    await _park(conn, fence, parks, max_parked)
    await write(conn, fence.subscription_id, log)
    return True


# Parked already: it begins at the earlier event of the two, and sends the others twice at most.
_PARK = """
-- callback_work.park
INSERT INTO callback_parked (subscription_id, attempt_id, event_number, event_id, created_from,
    parked_at, failures, next_try_at, last_result, last_status)
SELECT $1, p.attempt_id, p.event_number, p.event_id, p.created_from, t.now, p.failures,
    t.now + make_interval(secs => p.wait), p.last_result, p.last_status
FROM unnest($2::uuid[], $3::int[], $4::uuid[], $5::timestamptz[], $6::int[], $7::float8[],
    $8::text[], $9::int[]) AS p(attempt_id, event_number, event_id, created_from, failures, wait,
    last_result, last_status)
CROSS JOIN clock_fact() AS t(now)
ON CONFLICT (subscription_id, attempt_id) DO UPDATE SET
    event_number = EXCLUDED.event_number, created_from = EXCLUDED.created_from
WHERE callback_parked.event_number > EXCLUDED.event_number
"""

_PAUSE_IF_MANY = """
-- callback_work.pause_if_many
UPDATE callback_cursors SET paused_at = clock_fact(), pause_reason = 'too_many_parked',
    holder = NULL
WHERE subscription_id = $1 AND paused_at IS NULL AND $2 < (SELECT count(*) FROM callback_parked
    WHERE subscription_id = $1 AND NOT asked)
"""


async def _park(conn: Connection, fence: Fence, parks: Sequence[Park], max_parked: int) -> None:
    if not parks:
        return
    columns = [
        (
            *(park.event.attempt_id, park.event.event_number, park.event.id),
            *(park.event.timestamp, park.failures, park.wait.total_seconds()),
            *(park.result, park.status),
        )
        for park in parks
    ]
    await conn.execute(_PARK, fence.subscription_id, *(list(one) for one in zip(*columns)))  # noqa: B905 - rows of one shape
    await conn.execute(_PAUSE_IF_MANY, fence.subscription_id, max_parked)


_FAIL = """
-- callback_work.fail
UPDATE callback_cursors c SET failures = c.failures + 1,
    failing_since = coalesce(c.failing_since, clock_fact()),
    next_try_at = clock_fact() + $4::interval, last_failure_at = clock_fact(), last_result = $5,
    last_status = $6, last_detail = $7, last_event_id = $8,
    paused_at = CASE WHEN $5 = 'gone' OR c.failing_since + make_interval(
        secs => s.pause_after_seconds) <= clock_fact() THEN clock_fact() END,
    pause_reason = CASE WHEN $5 = 'gone' THEN 'gone' WHEN c.failing_since + make_interval(
        secs => s.pause_after_seconds) <= clock_fact() THEN 'refused_too_long' END,
    holder = CASE WHEN $5 <> 'gone' AND (c.failing_since + make_interval(
        secs => s.pause_after_seconds) <= clock_fact()) IS NOT TRUE THEN c.holder END
FROM callback_subscriptions s
WHERE s.id = c.subscription_id AND c.subscription_id = $1 AND c.holder = $2 AND c.term = $3
    AND c.paused_at IS NULL
RETURNING c.pause_reason
"""


async def fail(
    conn: Connection, fence: Fence, failure: Failure, log: Sequence[Logged]
) -> PauseReason | None:
    """Note that nothing is accepted, and wait; the reason, if the subscription pauses by it."""
    row = await conn.fetchrow(
        _FAIL,
        *fence.key,
        failure.wait,
        failure.result,
        failure.status,
        failure.detail,
        failure.event_id,
    )
    if row is None:
        return None
    await write(conn, fence.subscription_id, log)
    return None if row["pause_reason"] is None else PauseReason(row["pause_reason"])


_PAUSE = """
-- callback_work.pause
UPDATE callback_cursors SET paused_at = clock_fact(), pause_reason = $4, holder = NULL
WHERE subscription_id = $1 AND holder = $2 AND term = $3 AND paused_at IS NULL
RETURNING subscription_id
"""


async def pause(conn: Connection, fence: Fence, reason: PauseReason) -> bool:
    """Send nothing until somebody resumes it."""
    return await conn.fetchval(_PAUSE, *fence.key, reason) is not None


# --- replays -------------------------------------------------------------------------------------

_REPLAYED = """
-- callback_work.replayed
UPDATE callback_cursors SET replay_cursor = $4, replay_created_from = $5,
    replay_until = CASE WHEN $4::text IS NULL THEN NULL ELSE replay_until END,
    replay_sent = replay_sent + $6, replay_failures = 0, replay_next_try_at = NULL
WHERE subscription_id = $1 AND holder = $2 AND term = $3 AND replay_cursor IS NOT NULL
RETURNING subscription_id
"""


async def replayed(
    conn: Connection,
    fence: Fence,
    to: Cursor | None,
    sent: int,
    parks: Sequence[Park],
    log: Sequence[Logged],
    *,
    max_parked: int,
) -> bool:
    """Move a replay on; None: it has come to its end. False: overtaken, nothing was changed."""
    text = None if to is None else to.encode()
    bound = None if to is None else to.created_from
    if await conn.fetchval(_REPLAYED, *fence.key, text, bound, sent) is None:
        return False
    await _park(conn, fence, parks, max_parked)
    await write(conn, fence.subscription_id, log)
    return True


_REPLAY_FAILED = """
-- callback_work.replay_failed
UPDATE callback_cursors SET replay_failures = replay_failures + 1,
    replay_next_try_at = clock_fact() + $4::interval
WHERE subscription_id = $1 AND holder = $2 AND term = $3 RETURNING subscription_id
"""


async def replay_failed(
    conn: Connection, fence: Fence, wait: timedelta, log: Sequence[Logged]
) -> None:
    """Note that nothing of a replay is accepted, and wait."""
    if await conn.fetchval(_REPLAY_FAILED, *fence.key, wait) is not None:
        await write(conn, fence.subscription_id, log)
