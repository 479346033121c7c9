"""Statements of the election: one row, a holder, a term and an expiry by the database's clock.

Every term has a row of its own in `leader_terms`, its history. That row is also the fence: whoever
must write only as leader locks it (`prove`) in the transaction of the write, and whoever takes over
closes it first. So a takeover waits for writes that have begun, and none begins after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.errors import LeadershipLost
from app.store.database import Connection

SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Fence:
    """One term of one process: what a write names that must happen under it or not at all."""

    name: str
    holder: UUID
    term: int


# The expiry is looked at without a lock: a renewal must never wait for a sweep's transaction.
_PROVE = """
-- leaders.prove
SELECT t.term FROM leader_terms t WHERE t.name = $1 AND t.holder = $2 AND t.term = $3
    AND t.until_at IS NULL AND EXISTS (SELECT FROM leaders l WHERE l.name = t.name
        AND l.holder = t.holder AND l.term = t.term AND l.expires_at > clock_fact())
FOR SHARE OF t
"""

# A transaction that is left open keeps the next leader waiting: it must end well within the expiry.
_HURRY = """
-- leaders.hurry
SELECT set_config('idle_in_transaction_session_timeout', '3000', true)
"""


async def prove(conn: Connection, fence: Fence) -> None:
    """Prove the term for the rest of this transaction: nobody else leads before it has ended.

    To be called before the write. Raises LeadershipLost.
    """
    await conn.execute(_HURRY)
    if await conn.fetchval(_PROVE, fence.name, fence.holder, fence.term) is None:
        raise LeadershipLost


_RENEW = """
-- leaders.renew
UPDATE leaders l SET renewed_at = clock_fact(), expires_at = clock_fact() + $3
WHERE l.name = $1 AND l.holder = $2 AND EXISTS (SELECT FROM leader_terms t
    WHERE t.name = l.name AND t.term = l.term AND t.holder = l.holder AND t.until_at IS NULL)
RETURNING l.term
"""

# A row that was deleted by hand. Terms go on from where their history ends.
_ENSURE = """
-- leaders.ensure
INSERT INTO leaders (name) SELECT $1 WHERE NOT EXISTS (SELECT FROM leaders WHERE name = $1)
ON CONFLICT (name) DO NOTHING
"""

# A renewal that lies in the future, by more than a lease of leadership, was made before the
# database's clock was set back; a leader that lives has renewed since.
_LOCK_FREE = """
-- leaders.lock_free
SELECT l.term FROM leaders l WHERE l.name = $1
    AND (l.holder IS NULL OR l.holder = $2 OR l.expires_at <= clock_fact()
        OR l.renewed_at > clock_fact() + greatest(l.expires_at - l.renewed_at, $3))
FOR NO KEY UPDATE SKIP LOCKED
"""

_CLOSE = """
-- leaders.close
UPDATE leader_terms t SET until_at = greatest(t.from_at, least(l.expires_at, clock_fact())),
    renewed_at = greatest(t.from_at, l.renewed_at), ended_by = 'expiry'
FROM leaders l WHERE l.name = t.name AND t.name = $1 AND t.until_at IS NULL
"""

_TAKE = """
-- leaders.take
WITH past AS (
    SELECT coalesce(max(term), 0) AS term, max(greatest(until_at, renewed_at)) AS until_at
    FROM leader_terms WHERE name = $1
), taken AS (
    UPDATE leaders l SET holder = $2, label = $4, term = greatest(l.term, past.term) + 1,
        elected_at = greatest(clock_fact(), past.until_at),
        renewed_at = clock_fact(), expires_at = clock_fact() + $3
    FROM past WHERE l.name = $1
    RETURNING l.name, l.term, l.holder, l.label, l.elected_at
)
INSERT INTO leader_terms (name, term, holder, label, from_at)
SELECT name, term, holder, label, elected_at FROM taken
RETURNING term
"""


async def hold(
    conn: Connection, name: str, holder: UUID, ttl: timedelta, label: str = ""
) -> int | None:
    """Take or renew the leadership; return the term, or None while somebody else holds it.

    Closing the old term waits for transactions that proved it.
    """
    term: int | None = await conn.fetchval(_RENEW, name, holder, ttl)
    if term is not None:
        return term
    await conn.execute(_ENSURE, name)
    if await conn.fetchval(_LOCK_FREE, name, holder, ttl) is None:
        return None
    await conn.execute(_CLOSE, name)
    taken: int | None = await conn.fetchval(_TAKE, name, holder, ttl, label)
    return taken


_RESIGN = """
-- leaders.resign
WITH given AS (
    UPDATE leaders l SET holder = NULL, expires_at = NULL, renewed_at = clock_fact()
    WHERE l.name = $1 AND l.holder = $2 RETURNING l.name, l.term, l.renewed_at
)
UPDATE leader_terms t SET until_at = greatest(t.from_at, g.renewed_at),
    renewed_at = greatest(t.from_at, g.renewed_at), ended_by = 'resignation'
FROM given g WHERE t.name = g.name AND t.term = g.term AND t.until_at IS NULL
"""


async def resign(conn: Connection, name: str, holder: UUID) -> None:
    """Give the leadership up, so that the next one need not wait for its expiry."""
    await conn.execute(_RESIGN, name, holder)


_MARK_SWEPT = """
-- leaders.mark_swept
UPDATE leaders SET swept_at = clock_fact() WHERE name = $1 AND holder = $2
"""


async def mark_swept(conn: Connection, name: str, holder: UUID) -> None:
    """Note that the sweeps ran just now; shown by readyz of every instance."""
    await conn.execute(_MARK_SWEPT, name, holder)


@dataclass(frozen=True, slots=True)
class Held:
    """Who leads now. `alive`: the expiry has not come."""

    holder: UUID
    label: str
    term: int
    elected_at: datetime
    renewed_at: datetime
    expires_at: datetime
    alive: bool


_FIND = """
-- leaders.find
SELECT l.holder, l.label, l.term, l.elected_at, l.renewed_at, l.expires_at,
    l.expires_at > clock_fact() AS alive
FROM leaders l WHERE l.name = $1 AND l.holder IS NOT NULL AND l.expires_at IS NOT NULL
"""


async def find(conn: Connection, name: str) -> Held | None:
    """Who leads, or led last without having resigned."""
    row = await conn.fetchrow(_FIND, name)
    return None if row is None else Held(**dict(row))


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the history; `renewed_at` is its last sign of life, None while it goes on."""

    term: int
    holder: UUID
    label: str
    from_at: datetime
    renewed_at: datetime | None
    until_at: datetime | None
    ended_by: str | None
    gap_seconds: float | None
    """From the last sign of life of the term before; None for the first."""


_LIST_TERMS = """
-- leaders.list_terms
SELECT t.term, t.holder, t.label, t.from_at, t.renewed_at, t.until_at, t.ended_by,
    extract(epoch FROM t.from_at - lag(t.renewed_at) OVER (ORDER BY t.term))::float8 AS gap_seconds
FROM leader_terms t WHERE t.name = $1 ORDER BY t.term DESC LIMIT $2
"""


async def list_terms(conn: Connection, name: str, limit: int) -> list[Term]:
    """The last terms, the newest first."""
    return [Term(**dict(row)) for row in await conn.fetch(_LIST_TERMS, name, limit)]


_FORGET = """
-- leaders.remove_old_terms
DELETE FROM leader_terms WHERE (name, term) IN (
    SELECT t.name, t.term FROM leader_terms t WHERE t.until_at < clock_now() - $1::interval
    ORDER BY t.until_at LIMIT $2)
"""


async def remove_old_terms(conn: Connection, age: timedelta, limit: int) -> int:
    """Forget terms that ended so long ago; how many."""
    return int((await conn.execute(_FORGET, age, limit)).rsplit(" ", 1)[-1])
