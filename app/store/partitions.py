"""Partitions of the two append-only tables: days of heartbeats, months of events.

They are made ahead; a missing one is made by whoever meets it. Creating one beside and attaching
it takes no lock that would hold up a heartbeat, and waits for none longer than `LOCK_TIMEOUT`.
How they go again: `store/old_partitions.py`.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from app.store.database import Connection

DAYS_AHEAD = 60
LOCK_TIMEOUT = "200ms"
"""Whoever wants a table's lock for longer would hold up everybody who comes after."""

_LOCK = 7_302_771_541
PARENTS = ("attempt_heartbeats", "attempt_events")


def is_missing(error: asyncpg.CheckViolationError) -> bool:
    """Whether this violation says that no partition takes the row (and not that a CHECK failed)."""
    return error.constraint_name is None and error.table_name in PARENTS


async def ensure_near(conn: Connection) -> int:
    """Make the partitions of today, its neighbours and the next month; return how many were made.

    Enough for the batch that met a missing one; the rest is made ahead of time by a loop.
    """
    return await ensure(conn, days_ahead=2)


# Two instances that meet the same gap make it once: the second waits here and finds it made.
_TODAY = """
-- partitions.today
SELECT pg_advisory_xact_lock($1), (clock_fact() AT TIME ZONE 'UTC')::date AS today
"""


async def ensure(conn: Connection, *, days_ahead: int = DAYS_AHEAD) -> int:
    """Make every partition from yesterday to `days_ahead` days ahead; return how many were made.

    Gives up (LockNotAvailableError) rather than wait for a lock for over `LOCK_TIMEOUT`.
    """
    await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    row = await conn.fetchrow(_TODAY, _LOCK)
    assert row is not None  # noqa: S101 - a SELECT without FROM
    first = row["today"] - dt.timedelta(days=1)
    last = row["today"] + dt.timedelta(days=days_ahead)
    wanted = [
        ("attempt_heartbeats", f"{day:%Y%m%d}", day, day + dt.timedelta(days=1))
        for day in _days(first, last)
    ]
    wanted += [
        ("attempt_events", f"{month:%Y%m}", month, next_month(month))
        for month in _months(first, last)
    ]
    existing = await _list_existing(conn)
    made = 0
    for parent, suffix, start, end in wanted:
        if f"{parent}_{suffix}" not in existing:
            await _make(conn, parent, suffix, start, end)
            made += 1
    return made


_EXISTING = """
-- partitions.list_existing
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = ANY($1::text[]::regclass[])
"""


async def _list_existing(conn: Connection) -> set[str]:
    return {row["relname"] for row in await conn.fetch(_EXISTING, list(PARENTS))}


async def _make(conn: Connection, parent: str, suffix: str, start: dt.date, end: dt.date) -> None:
    """Create the table beside its parent, then attach it; names and dates are our own."""
    name = f"{parent}_{suffix}"
    await conn.execute(f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)")
    await conn.execute(
        f"ALTER TABLE {parent} ATTACH PARTITION {name} "
        f"FOR VALUES FROM ('{start} 00:00+00') TO ('{end} 00:00+00')"
    )


def _days(first: dt.date, last: dt.date) -> list[dt.date]:
    return [first + dt.timedelta(days=n) for n in range((last - first).days + 1)]


def _months(first: dt.date, last: dt.date) -> list[dt.date]:
    months = [first.replace(day=1)]
    while next_month(months[-1]) <= last:
        months.append(next_month(months[-1]))
    return months


def next_month(day: dt.date) -> dt.date:
    """The first day of the month after this day's."""
    return (day.replace(day=28) + dt.timedelta(days=4)).replace(day=1)
