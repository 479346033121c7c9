"""Statements of the election: one row, a holder, a term and an expiry by the database's clock."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from app.store.database import Connection

_HOLD = """
-- leaders.hold
UPDATE leaders SET term = term + (holder IS DISTINCT FROM $2)::int,
    elected_at = CASE WHEN holder IS DISTINCT FROM $2 THEN clock_fact() ELSE elected_at END,
    holder = $2, expires_at = clock_fact() + $3
WHERE name = $1 AND (holder = $2 OR holder IS NULL OR expires_at <= clock_fact())
RETURNING term
"""


async def hold(conn: Connection, name: str, holder: UUID, ttl: timedelta) -> int | None:
    """Take or renew the leadership; return the term, or None while somebody else holds it."""
    term: int | None = await conn.fetchval(_HOLD, name, holder, ttl)
    return term


_RESIGN = """
-- leaders.resign
UPDATE leaders SET holder = NULL, expires_at = NULL WHERE name = $1 AND holder = $2
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
