"""Whether anybody could have reached us: without that, nobody's silence means anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from app.store.database import Connection

_TICK = """
-- ticks.tick
UPDATE service_ticks SET last_tick_at = clock_fact(),
    latest_tick_at = greatest(latest_tick_at, clock_fact()), outage_ended_at = CASE
    WHEN clock_fact() - last_tick_at > interval '3 s' THEN clock_fact() ELSE outage_ended_at END
"""


async def tick(conn: Connection) -> None:
    """Say that a service was able to receive signs of life just now."""
    await conn.execute(_TICK)


@dataclass(frozen=True, slots=True)
class Calm:
    """What a sweep must know before it ends anything, by the database's clock."""

    alive: bool
    """Some instance ticked within three seconds."""
    after_outage: bool
    """Our own outage ended less than a lease time ago."""
    soon_after_outage: bool
    """It ended less than two lease times ago: what lapses now counts against nobody."""
    breaker_on: bool
    """A sudden silence of many runners is being waited out."""
    breaker_ready: bool
    """The last one began long enough ago for another."""


_READ = """
-- ticks.read
SELECT clock_fact() - last_tick_at <= interval '3 s' AS alive,
    coalesce(outage_ended_at + $1 > clock_fact(), false) AS after_outage,
    coalesce(outage_ended_at + 2 * $1::interval > clock_fact(), false) AS soon_after_outage,
    coalesce(breaker_began_at + $1 > clock_fact(), false) AS breaker_on,
    coalesce(breaker_began_at + 10 * $1::interval <= clock_fact(), true) AS breaker_ready
FROM service_ticks
"""


async def read(conn: Connection, lease_time: timedelta) -> Calm:
    """Read it in one statement."""
    row = await conn.fetchrow(_READ, lease_time)
    assert row is not None  # noqa: S101 - the schema's one row
    return Calm(**dict(row))


# Late: less than a third of a lease left, which is true for all of a silenced fleet before its
# first lease expires. Leases without a beat say nothing about the network.
_COUNT_LATE = """
-- ticks.count_late
SELECT count(*) FILTER (WHERE expires_at < clock_now() + $1::interval / 3) AS late,
    count(*) AS beating
FROM runner_leases WHERE status = 'active' AND last_sequence > 0
"""

_BREAK = """
-- ticks.begin_breaker
UPDATE service_ticks SET breaker_began_at = clock_fact()
WHERE coalesce(breaker_began_at + 10 * $1::interval <= clock_fact(), true)
RETURNING breaker_began_at
"""


async def count_late(conn: Connection, lease_time: timedelta) -> tuple[int, int]:
    """How many of the active leases that had a beat are late, and how many there are."""
    row = await conn.fetchrow(_COUNT_LATE, lease_time)
    assert row is not None  # noqa: S101 - an aggregate always has a row
    return row["late"], row["beating"]


async def begin_breaker(conn: Connection, lease_time: timedelta) -> bool:
    """Begin to wait a mass silence out; False if one began within ten lease times."""
    return await conn.fetchval(_BREAK, lease_time) is not None
