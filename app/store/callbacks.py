"""Callback subscriptions: who wants which events. How they are worked on: `callback_work`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from app.domain.callbacks import PauseReason, Result, Subscription
from app.domain.feed import Cursor
from app.domain.ids import new_id
from app.store.database import Connection

SUBSCRIPTION_COLUMNS = """s.id, s.name, s.url, s.topic, s.event_types, s.operation_ids,
    s.job_types, s.headers, s.oidc_audience, s.max_batch, s.timeout_seconds,
    s.pause_after_seconds, s.secret_version, s.secret_key_id,
    CASE WHEN s.previous_until > clock_fact() THEN s.previous_key_id END AS previous_key_id,
    CASE WHEN s.previous_until > clock_fact() THEN s.previous_until END AS previous_until"""

_NAMES = tuple(Subscription.__dataclass_fields__)


def subscription_of(row: asyncpg.Record) -> Subscription:
    """The subscription of a row with SUBSCRIPTION_COLUMNS."""
    values: dict[str, Any] = {name: row[name] for name in _NAMES}
    return Subscription(**{**values, "headers": json.loads(row["headers"])})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller may set; a PUT replaces all of it."""

    url: str | None
    topic: str | None
    event_types: list[str] | None
    operation_ids: list[UUID] | None
    job_types: list[str] | None
    headers: Mapping[str, str]
    oidc_audience: str | None
    max_batch: int
    timeout_seconds: int
    pause_after_seconds: int

    def values(self) -> tuple[Any, ...]:
        """In the order of the statements below."""
        return (
            *(self.url, self.topic, self.event_types, self.operation_ids, self.job_types),
            *(json.dumps(dict(self.headers), sort_keys=True), self.oidc_audience),
            *(self.max_batch, self.timeout_seconds, self.pause_after_seconds),
        )


_COUNT = """
-- callbacks.count
SELECT count(*) FROM callback_subscriptions
"""


async def count(conn: Connection) -> int:
    """How many there are."""
    found: int = await conn.fetchval(_COUNT)
    return found


_CREATE = """
-- callbacks.create
INSERT INTO callback_subscriptions (id, name, url, topic, event_types, operation_ids, job_types,
    headers, oidc_audience, max_batch, timeout_seconds, pause_after_seconds, secret_version,
    secret_key_id, created_at, created_by, updated_at, updated_by)
SELECT $1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10, $11, $12, 1, $13, t.now, $14, t.now, $14
FROM clock_fact() AS t(now)
ON CONFLICT DO NOTHING RETURNING id
"""

_BEGIN_AT = """
-- callbacks.begin_at
INSERT INTO callback_cursors (subscription_id, feed_epoch, feed_xid, attempt_id, event_number,
    created_from, since_epoch, since_xid, since_attempt_id, since_event_number, since_at)
VALUES ($1, $2, $3::xid8, $4, $5, $6, $2, $3::xid8, $4, $5, clock_fact())
"""


async def create(
    conn: Connection, name: str, wanted: Wanted, key_id: str, by: str, begin: Cursor
) -> UUID | None:
    """Create it where the cursor says; its id, or None if the name is taken."""
    identifier: UUID | None = await conn.fetchval(
        _CREATE, new_id(), name, *wanted.values(), key_id, by
    )
    if identifier is not None:
        await conn.execute(_BEGIN_AT, identifier, *place(begin), begin.created_from)
    return identifier


def place(cursor: Cursor) -> tuple[int, int, UUID, int]:
    """The four columns of a place in the feed."""
    return cursor.epoch, cursor.xid, cursor.attempt_id, cursor.event_number


# Only if something differs, so that an honest repeat changes nothing.
_REPLACE = """
-- callbacks.replace
UPDATE callback_subscriptions s SET url = $2, topic = $3, event_types = $4, operation_ids = $5,
    job_types = $6, headers = $7::jsonb, oidc_audience = $8, max_batch = $9,
    timeout_seconds = $10, pause_after_seconds = $11, updated_at = clock_fact(), updated_by = $12
WHERE s.name = $1 AND ROW(s.url, s.topic, s.event_types, s.operation_ids, s.job_types, s.headers,
    s.oidc_audience, s.max_batch, s.timeout_seconds, s.pause_after_seconds)
    IS DISTINCT FROM ROW($2::text, $3::text, $4::text[], $5::uuid[], $6::text[], $7::jsonb,
    $8::text, $9::int, $10::int, $11::int)
RETURNING s.id
"""

# Whoever works on it read with the old filters: what it is at is not counted, and begun anew.
_BEGIN_TERM = """
-- callbacks.begin_term
UPDATE callback_cursors SET term = term + 1, holder = NULL, lease_expires_at = NULL,
    since_epoch = feed_epoch, since_xid = feed_xid, since_attempt_id = attempt_id,
    since_event_number = event_number, since_at = clock_fact()
WHERE subscription_id = $1
"""


async def replace(conn: Connection, name: str, wanted: Wanted, by: str) -> bool:
    """Set all of it; False if it was like this already, or there is none of this name."""
    identifier = await conn.fetchval(_REPLACE, name, *wanted.values(), by)
    if identifier is None:
        return False
    await conn.execute(_BEGIN_TERM, identifier)
    return True


_REMOVE = """
-- callbacks.remove
DELETE FROM callback_subscriptions WHERE name = $1 RETURNING id
"""


async def remove(conn: Connection, name: str) -> bool:
    """Remove it and all that waits at it; its log stays until its age removes it."""
    return await conn.fetchval(_REMOVE, name) is not None


_FIND = f"""
-- callbacks.find
SELECT {SUBSCRIPTION_COLUMNS} FROM callback_subscriptions s WHERE s.name = $1
"""

_LOCK = f"""
-- callbacks.lock
SELECT {SUBSCRIPTION_COLUMNS} FROM callback_subscriptions s WHERE s.name = $1 FOR NO KEY UPDATE
"""


async def find(conn: Connection, name: str, *, lock: bool = False) -> Subscription | None:
    """The subscription of this name."""
    row = await conn.fetchrow(_LOCK if lock else _FIND, name)
    return None if row is None else subscription_of(row)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a subscription stands."""

    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    cursor: Cursor
    delivered: int
    parked: int
    failures: int
    failing_since: datetime | None
    next_try_at: datetime | None
    paused_at: datetime | None
    pause_reason: PauseReason | None
    last_success_at: datetime | None
    last_failure_at: datetime | None
    last_result: Result | None
    last_status: int | None
    last_detail: str | None
    last_event_id: UUID | None
    gap_until: datetime | None
    replay_request_id: UUID | None
    replay_running: bool
    replay_sent: int
    replay_asked_at: datetime | None
    is_served: bool
    """Some worker holds its lease."""


_LIST = f"""
-- callbacks.list
SELECT {SUBSCRIPTION_COLUMNS}, s.created_at, s.created_by, s.updated_at, s.updated_by,
    c.feed_epoch, c.feed_xid, c.attempt_id, c.event_number, c.created_from, c.delivered,
    (SELECT count(*) FROM callback_parked p WHERE p.subscription_id = s.id AND NOT p.asked)
        AS parked,
    c.failures, c.failing_since, c.next_try_at, c.paused_at, c.pause_reason, c.last_success_at,
    c.last_failure_at, c.last_result, c.last_status, c.last_detail, c.last_event_id, c.gap_until,
    c.replay_request_id, c.replay_cursor IS NOT NULL AS replay_running, c.replay_sent,
    c.replay_asked_at, coalesce(c.lease_expires_at > clock_fact(), false) AS is_served
FROM callback_subscriptions s JOIN callback_cursors c ON c.subscription_id = s.id
WHERE s.name > $1 AND ($2::text IS NULL OR s.name = $2)
ORDER BY s.name LIMIT $3
"""


async def list_standing(
    conn: Connection, after: str, limit: int, name: str | None = None
) -> list[tuple[Subscription, Standing]]:
    """At most `limit` subscriptions by name, above `after`, and how they stand."""
    rows = await conn.fetch(_LIST, after, name, limit)
    return [(subscription_of(row), _standing(row)) for row in rows]


def cursor_of(row: asyncpg.Record) -> Cursor:
    """The place that a subscription has got to."""
    return Cursor(
        row["feed_epoch"],
        row["feed_xid"],
        row["attempt_id"],
        row["event_number"],
        row["created_from"],
    )


def _standing(row: asyncpg.Record) -> Standing:
    names = [name for name in Standing.__dataclass_fields__ if name != "cursor"]
    reason, result = row["pause_reason"], row["last_result"]
    return Standing(
        **{
            **{name: row[name] for name in names},
            "pause_reason": None if reason is None else PauseReason(reason),
            "last_result": None if result is None else Result(result),
        },
        cursor=cursor_of(row),
    )


# A repeat of the same request finds its version made, and shows the same secret again.
_ROTATE = """
-- callbacks.rotate
UPDATE callback_subscriptions SET secret_version = secret_version + 1,
    previous_key_id = secret_key_id, secret_key_id = $3,
    previous_until = clock_fact() + $4::interval, rotate_request_id = $2,
    updated_at = clock_fact(), updated_by = $5
WHERE name = $1 AND rotate_request_id IS DISTINCT FROM $2
RETURNING id
"""


async def rotate(
    conn: Connection, name: str, request_id: UUID, key_id: str, overlap: timedelta, by: str
) -> bool:
    """Begin a new version of the secret; False if this very request did so before."""
    return await conn.fetchval(_ROTATE, name, request_id, key_id, overlap, by) is not None


_RESUME = """
-- callbacks.resume
UPDATE callback_cursors SET paused_at = NULL, pause_reason = NULL, failures = 0,
    failing_since = NULL, next_try_at = NULL, replay_failures = 0, replay_next_try_at = NULL
WHERE subscription_id = $1
"""

_RETRY_PARKED = """
-- callbacks.retry_parked
UPDATE callback_parked SET next_try_at = clock_fact() WHERE subscription_id = $1
"""

_MOVE_ON = """
-- callbacks.move_on
UPDATE callback_cursors SET feed_epoch = $2, feed_xid = $3::xid8, attempt_id = $4,
    event_number = $5, created_from = $6, since_epoch = $2, since_xid = $3::xid8,
    since_attempt_id = $4, since_event_number = $5, since_at = clock_fact(), gap_until = $6,
    term = term + 1, holder = NULL, lease_expires_at = NULL
WHERE subscription_id = $1
"""


async def resume(conn: Connection, subscription_id: UUID) -> None:
    """Let it go on at once, whatever it waits for; what is parked is tried again too."""
    await conn.execute(_RESUME, subscription_id)
    await conn.execute(_RETRY_PARKED, subscription_id)


async def move_on(conn: Connection, subscription_id: UUID, begin: Cursor) -> None:
    """Begin again at this place, and keep in mind that everything before it may be missing."""
    await conn.execute(_MOVE_ON, subscription_id, *place(begin), begin.created_from)


_REPLAY_RANGE = """
-- callbacks.replay_range
UPDATE callback_cursors SET replay_request_id = $2, replay_cursor = $3, replay_until = $4,
    replay_created_from = $5, replay_from_time = $6, replay_to_time = $7,
    replay_asked_at = clock_fact(), replay_sent = 0, replay_failures = 0, replay_next_try_at = NULL
WHERE subscription_id = $1 AND replay_request_id IS DISTINCT FROM $2 AND replay_cursor IS NULL
RETURNING subscription_id
"""


async def replay_range(
    conn: Connection,
    subscription_id: UUID,
    request_id: UUID,
    begin: Cursor,
    until: Cursor,
    times: tuple[datetime | None, datetime | None],
) -> bool:
    """Send what lies between two places again; False: another replay runs, or this one did."""
    done = await conn.fetchval(
        _REPLAY_RANGE,
        *(subscription_id, request_id, begin.encode(), until.encode(), begin.created_from, *times),
    )
    return done is not None


_REPLAY_ATTEMPT = """
-- callbacks.replay_attempt
UPDATE callback_cursors SET replay_request_id = $2, replay_asked_at = clock_fact(), replay_sent = 0
WHERE subscription_id = $1 AND replay_request_id IS DISTINCT FROM $2 AND replay_cursor IS NULL
RETURNING subscription_id
"""

# Parked from its first event on: so it is sent in order, and what comes new waits behind it.
_PARK_WHOLE = """
-- callbacks.park_whole
INSERT INTO callback_parked (subscription_id, attempt_id, event_number, created_from, parked_at,
    asked, next_try_at)
SELECT $1, a.id, 1, a.created_at, t.now, true, t.now
FROM execution_attempts a CROSS JOIN clock_fact() AS t(now) WHERE a.id = $2
ON CONFLICT (subscription_id, attempt_id) DO UPDATE SET event_number = 1,
    created_from = EXCLUDED.created_from, next_try_at = EXCLUDED.next_try_at
RETURNING attempt_id
"""


async def replay_attempt(
    conn: Connection, subscription_id: UUID, request_id: UUID, attempt_id: UUID
) -> bool:
    """Send an attempt's events again; False: another replay runs, or this one did."""
    done = await conn.fetchval(_REPLAY_ATTEMPT, subscription_id, request_id)
    if done is not None:
        await conn.execute(_PARK_WHOLE, subscription_id, attempt_id)
    return done is not None


_LEVELS = """
-- callbacks.levels
SELECT CASE WHEN c.paused_at IS NOT NULL THEN 'paused' WHEN c.failures > 0 THEN 'failing'
        ELSE 'active' END AS state, count(*) AS subscriptions
FROM callback_cursors c GROUP BY 1
"""

_COUNT_PARKED = """
-- callbacks.count_parked
SELECT count(*) FROM callback_parked WHERE NOT asked
"""


async def levels(conn: Connection) -> tuple[dict[str, int], int]:
    """Subscriptions by state, and attempts that are parked anywhere."""
    rows = await conn.fetch(_LEVELS)
    parked: int = await conn.fetchval(_COUNT_PARKED)
    return {row["state"]: row["subscriptions"] for row in rows}, parked


_OLDEST_NEEDED = """
-- callbacks.oldest_needed
SELECT events_needed_since()
"""


async def oldest_needed(conn: Connection) -> datetime | None:
    """No event created at or after this moment may be removed; None: nobody needs any.

    What a subscription has not delivered, what waits parked and what is being replayed. A paused
    subscription counts for 30 days, and so does what is parked. Whoever comes back later finds its
    cursor expired, pauses, and shows the gap once it is resumed.
    """
    found: datetime | None = await conn.fetchval(_OLDEST_NEEDED)
    return found
