"""Who works on which subscription: a lease each, taken by any instance, counted by its term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from app.domain.callbacks import Subscription
from app.domain.feed import Cursor
from app.store.callbacks import SUBSCRIPTION_COLUMNS, cursor_of, subscription_of
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to work on one subscription."""

    subscription_id: UUID
    holder: UUID
    term: int

    @property
    def key(self) -> tuple[UUID, UUID, int]:
        """What every statement under it repeats."""
        return self.subscription_id, self.holder, self.term


_TAKE = """
-- callback_leases.take
UPDATE callback_cursors c SET holder = $1, term = c.term + 1,
    lease_expires_at = clock_fact() + $2::interval
FROM (
    SELECT subscription_id FROM callback_cursors
    WHERE paused_at IS NULL AND (holder IS NULL OR lease_expires_at <= clock_fact())
    ORDER BY random() LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
) free
WHERE c.subscription_id = free.subscription_id
RETURNING c.subscription_id, c.term
"""


async def take(conn: Connection, holder: UUID, ttl: timedelta, limit: int) -> list[Fence]:
    """Take subscriptions that nobody works on."""
    rows = await conn.fetch(_TAKE, holder, ttl, limit)
    return [Fence(row["subscription_id"], holder, row["term"]) for row in rows]


_RENEW = """
-- callback_leases.renew
UPDATE callback_cursors c SET lease_expires_at = clock_fact() + $2::interval
FROM (
    SELECT r.subscription_id FROM callback_cursors r
    JOIN unnest($3::uuid[], $4::bigint[]) AS h(subscription_id, term)
        ON r.subscription_id = h.subscription_id AND r.term = h.term
    WHERE r.holder = $1 ORDER BY r.subscription_id FOR NO KEY UPDATE OF r SKIP LOCKED
) mine
WHERE c.subscription_id = mine.subscription_id
RETURNING c.subscription_id
"""

_LOST = """
-- callback_leases.lost
SELECT h.subscription_id FROM unnest($2::uuid[], $3::bigint[]) AS h(subscription_id, term)
LEFT JOIN callback_cursors c ON c.subscription_id = h.subscription_id
    AND c.holder = $1 AND c.term = h.term
WHERE c.subscription_id IS NULL
"""


async def renew(
    conn: Connection, holder: UUID, held: Sequence[Fence], ttl: timedelta
) -> tuple[set[UUID], set[UUID]]:
    """Prolong what is held; those prolonged, and those that somebody else has or that are gone.

    One that is in neither set is being worked on at this very moment: try again.
    """
    ids, terms = [one.subscription_id for one in held], [one.term for one in held]
    renewed = await conn.fetch(_RENEW, holder, ttl, ids, terms)
    lost = await conn.fetch(_LOST, holder, ids, terms)
    return {row["subscription_id"] for row in renewed}, {row["subscription_id"] for row in lost}


_RELEASE = """
-- callback_leases.release
UPDATE callback_cursors SET holder = NULL, lease_expires_at = NULL
WHERE subscription_id = $1 AND holder = $2 AND term = $3
"""


async def release(conn: Connection, fence: Fence) -> None:
    """Give it back, so that another need not wait for the lease's end."""
    await conn.execute(_RELEASE, fence.subscription_id, fence.holder, fence.term)


@dataclass(frozen=True, slots=True)
class State:
    """A subscription as its worker finds it."""

    subscription: Subscription
    cursor: Cursor
    failures: int
    waits_seconds: float
    """Until the next try; 0: now."""
    paused: bool
    replay: Replay | None
    parked_due: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """A range that is being sent again."""

    cursor: Cursor
    until: Cursor
    from_time: datetime | None
    to_time: datetime | None
    failures: int
    waits_seconds: float


_LOAD = f"""
-- callback_leases.load
SELECT {SUBSCRIPTION_COLUMNS}, c.feed_epoch, c.feed_xid, c.attempt_id, c.event_number,
    c.created_from, c.failures, c.paused_at IS NOT NULL AS paused,
    coalesce(extract(epoch FROM c.next_try_at - clock_fact())::float8, 0) AS waits_seconds,
    c.replay_cursor, c.replay_until, c.replay_from_time, c.replay_to_time, c.replay_failures,
    coalesce(extract(epoch FROM c.replay_next_try_at - clock_fact())::float8, 0)
        AS replay_waits_seconds,
    EXISTS (SELECT FROM callback_parked p WHERE p.subscription_id = s.id
        AND p.next_try_at <= clock_fact()) AS parked_due
FROM callback_cursors c JOIN callback_subscriptions s ON s.id = c.subscription_id
WHERE c.subscription_id = $1 AND c.holder = $2 AND c.term = $3
"""


async def load(conn: Connection, fence: Fence) -> State | None:
    """The subscription; None: it is somebody else's, or gone."""
    row = await conn.fetchrow(_LOAD, fence.subscription_id, fence.holder, fence.term)
    if row is None:
        return None
    return State(
        subscription_of(row),
        cursor_of(row),
        row["failures"],
        max(0.0, row["waits_seconds"]),
        row["paused"],
        _replay(row),
        row["parked_due"],
    )


def _replay(row: asyncpg.Record) -> Replay | None:
    if row["replay_cursor"] is None:
        return None
    return Replay(
        Cursor.decode(row["replay_cursor"]),
        Cursor.decode(row["replay_until"]),
        row["replay_from_time"],
        row["replay_to_time"],
        row["replay_failures"],
        max(0.0, row["replay_waits_seconds"]),
    )


@dataclass(frozen=True, slots=True)
class Due:
    """What a worker should look at now."""

    subscription_id: UUID
    live: bool
    """It waits for nothing (any more)."""
    apart: bool
    """Something parked, or a replay, is due."""


_DUE = """
-- callback_leases.due
SELECT c.subscription_id, c.next_try_at IS NULL OR c.next_try_at <= clock_fact() AS live,
    (c.replay_cursor IS NOT NULL
        AND (c.replay_next_try_at IS NULL OR c.replay_next_try_at <= clock_fact()))
    OR EXISTS (SELECT FROM callback_parked p WHERE p.subscription_id = c.subscription_id
        AND p.next_try_at <= clock_fact()) AS apart
FROM callback_cursors c WHERE c.holder = $1 AND c.paused_at IS NULL
"""


async def list_due(conn: Connection, holder: UUID) -> list[Due]:
    """Of all subscriptions that one holder serves: what is due."""
    return [Due(**dict(row)) for row in await conn.fetch(_DUE, holder)]
