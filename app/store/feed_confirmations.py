"""Whether an operator has said that a database which moved still owns the bucket's objects."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.database import Connection

_READ = """
-- feed_confirmations.read
SELECT number, number = 1 OR objects_confirmed_at IS NOT NULL AS confirmed
FROM feed_epochs ORDER BY number DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The feed's current epoch. The first one needs no confirmation."""

    number: int
    confirmed: bool


async def read(conn: Connection) -> Epoch:
    """The current epoch, and whether objects may be removed in it."""
    row = await conn.fetchrow(_READ)
    assert row is not None  # noqa: S101 - the schema's first row
    return Epoch(**dict(row))


_CONFIRM = """
-- feed_confirmations.confirm_once
UPDATE feed_epochs SET objects_confirmed_at = clock_fact(), objects_confirmed_by = $2
WHERE number = $1 AND number = (SELECT max(number) FROM feed_epochs)
    AND objects_confirmed_at IS NULL
"""


async def confirm_once(conn: Connection, number: int, by: str) -> bool:
    """Confirm the epoch if it is the current one; True if it is confirmed now."""
    await conn.execute(_CONFIRM, number, by)
    epoch = await read(conn)
    return epoch.number == number and epoch.confirmed
