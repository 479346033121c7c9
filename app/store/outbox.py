"""Statements on messages that wait to be sent, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits; its id is the envelope's, `data` is JSON text."""

    id: UUID
    schedule: str
    to: str
    data: str
    age_seconds: float


_LIST_DUE = """
-- outbox.list_due
SELECT w.id, w.schedule, w."to", w.data, w.age_seconds FROM (
    SELECT o.id, o.schedule, o."to", o.data, o.next_try_at,
        extract(epoch FROM clock_fact() - o.created_at)::float8 AS age_seconds,
        sum(octet_length(o.data)) OVER (ORDER BY o.next_try_at, o.id) - octet_length(o.data)
            AS before
    FROM (SELECT id, schedule, "to", data, created_at, next_try_at FROM outbox
        WHERE next_try_at <= clock_now() ORDER BY next_try_at, id LIMIT $1) o) w
WHERE w.before < $2 ORDER BY w.next_try_at, w.id
"""


async def list_due(conn: Connection, limit: int, limit_bytes: int) -> list[Waiting]:
    """Messages whose turn it is: at most so many, and the one that fills the bytes is the last."""
    return [Waiting(**dict(row)) for row in await conn.fetch(_LIST_DUE, limit, limit_bytes)]


_MARK_SENT = """
-- outbox.mark_sent
WITH sent AS (
    DELETE FROM outbox o USING unnest($1::uuid[], $2::text[]) AS u(id, sent_as)
    WHERE o.id = u.id RETURNING o.id, u.sent_as
)
UPDATE schedule_fires f SET sent_at = clock_fact(), sent_as = s.sent_as FROM sent s
WHERE f.id = s.id
"""

_PUT_OFF = """
-- outbox.put_off
UPDATE outbox o SET tries = o.tries + 1, last_reason = u.reason,
    next_try_at = clock_fact() + least(interval '1 s' * 2 ^ least(o.tries, 10), interval '60 s')
        * (0.8 + 0.2 * random())
FROM unnest($1::uuid[], $2::text[]) AS u(id, reason) WHERE o.id = u.id
"""


async def mark_sent(conn: Connection, ids: Sequence[UUID], sent_as: Sequence[str]) -> None:
    """Remove messages that were sent, and note in the history what they became."""
    await conn.execute(_MARK_SENT, list(ids), list(sent_as))


async def put_off(conn: Connection, ids: Sequence[UUID], reasons: Sequence[str]) -> None:
    """Try these messages again later, ever more slowly."""
    await conn.execute(_PUT_OFF, list(ids), list(reasons))


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits to be sent."""

    waiting: int
    oldest_seconds: float | None
    last_reason: str | None


_BACKLOG = """
-- outbox.backlog
SELECT count(*) AS waiting,
    extract(epoch FROM clock_fact() - min(created_at))::float8 AS oldest_seconds,
    (array_agg(last_reason ORDER BY tries DESC) FILTER (WHERE last_reason IS NOT NULL))[1]
        AS last_reason
FROM outbox
"""


async def backlog(conn: Connection) -> Backlog:
    """How many messages wait, since when the oldest, and why it was put off."""
    row = await conn.fetchrow(_BACKLOG)
    assert row is not None  # noqa: S101 - an aggregate always has a row
    return Backlog(**dict(row))
