"""Removal of partitions whose time is over.

A partition that is due is noted first (`removed_partitions`), then detached, then dropped. Whoever
finds the work of somebody who died in between goes on with it; a table that was detached by hand is
not noted and so never touched. Detaching concurrently needs a session outside any transaction; one
that gave up half-way has to be finalised before any other can begin.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.store.database import Connection
from app.store.partitions import LOCK_TIMEOUT, next_month

Stage: TypeAlias = Literal["attached", "pending", "detached"]

_NAME = re.compile(r"(attempt_heartbeats|attempt_events)_(\d{4})(\d{2})(\d{2})?")


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, or what is left of one whose removal has begun."""

    name: str
    parent: str
    starts_at: dt.datetime
    ends_at: dt.datetime
    stage: Stage
    noted: bool
    byte_size: int


# Detached ones are known by their note alone. A name tells the bounds: it was made by us.
_LIST = """
-- old_partitions.list_all
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS byte_size, n.name IS NOT NULL AS noted,
    CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending'
        ELSE 'attached' END AS stage
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = ANY(
    ARRAY['attempt_heartbeats', 'attempt_events']::regclass[])
LEFT JOIN removed_partitions n ON n.name = c.relname AND n.removed_at IS NULL
WHERE c.relkind = 'r' AND c.relname ~ '^attempt_(heartbeats|events)_[0-9]+$'
    AND c.relnamespace = (SELECT relnamespace FROM pg_class
        WHERE oid = 'attempt_heartbeats'::regclass)
    AND (i.inhrelid IS NOT NULL OR n.name IS NOT NULL)
ORDER BY c.relname
"""

_CLOCK = """
-- old_partitions.clock
SELECT clock_now() AS now
"""


async def list_old(
    conn: Connection, beats_kept: dt.timedelta, events_kept: dt.timedelta | None
) -> list[Partition]:
    """Partitions that ended so long ago, the oldest first, and those whose removal has begun."""
    now: dt.datetime = await conn.fetchval(_CLOCK)
    found = [_partition(**dict(row)) for row in await conn.fetch(_LIST)]
    kept = {"attempt_heartbeats": beats_kept, "attempt_events": events_kept}

    def is_over(one: Partition) -> bool:
        age = kept[one.parent]
        return one.stage != "attached" or (age is not None and one.ends_at <= now - age)

    return sorted(filter(is_over, found), key=lambda one: (one.stage == "attached", one.ends_at))


def _partition(name: str, byte_size: int, noted: bool, stage: Stage) -> Partition:
    fits = _NAME.fullmatch(name)
    assert fits is not None  # noqa: S101 - the statement's own pattern, and we made it
    parent, year, month, day = fits.groups()
    start = dt.date(int(year), int(month), int(day or 1))
    end = start + dt.timedelta(days=1) if day else next_month(start)
    return Partition(name, parent, _midnight(start), _midnight(end), stage, noted, byte_size)


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)


# An open attempt needs its beats since its first lease, and all its events. What subscriptions
# have yet to deliver stands behind `events_needed_since`.
_IS_NEEDED = """
-- old_partitions.is_needed
SELECT CASE $1::text WHEN 'attempt_heartbeats' THEN EXISTS (
    SELECT FROM execution_attempts a WHERE a.status IN ('leased', 'running') AND a.leased_at < $2)
ELSE EXISTS (
    SELECT FROM execution_attempts a WHERE a.status IN ('queued', 'leased', 'running')
        AND a.created_at < $2) OR coalesce(events_needed_since() < $2, false) END
"""


async def is_needed(conn: Connection, partition: Partition) -> bool:
    """Whether an open attempt, or a subscription that has not delivered it, still needs it."""
    return bool(await conn.fetchval(_IS_NEEDED, partition.parent, partition.ends_at))


_NOTE = """
-- old_partitions.note
INSERT INTO removed_partitions (name, parent, starts_at, ends_at, begun_at)
VALUES ($1, $2, $3, $4, clock_fact()) ON CONFLICT (name) DO UPDATE SET removed_at = NULL
"""


async def note(conn: Connection, one: Partition) -> None:
    """Note that its removal begins: from here on, whoever finds it goes on."""
    await conn.execute(_NOTE, one.name, one.parent, one.starts_at, one.ends_at)


_IS_PENDING = """
-- old_partitions.is_pending
SELECT i.inhdetachpending FROM pg_inherits i
WHERE i.inhparent = to_regclass($1) AND i.inhrelid = to_regclass($2)
"""


async def detach(conn: Connection, partition: Partition, *, outside: bool) -> None:
    """Detach it, unless it is; one that somebody left half detached is finalised instead.

    `outside` any transaction nobody waits for it. Inside of one all beats wait while it does. In
    both cases it gives up (LockNotAvailableError) when a lock is not there after `LOCK_TIMEOUT`.
    """
    await conn.execute(f"SET {'' if outside else 'LOCAL'} lock_timeout = '{LOCK_TIMEOUT}'")
    pending = await conn.fetchval(_IS_PENDING, partition.parent, partition.name)
    if pending is not None:
        how = "FINALIZE" if pending else "CONCURRENTLY" if outside else ""
        await conn.execute(
            f"ALTER TABLE {partition.parent} DETACH PARTITION {partition.name} {how}"
        )


_MARK_REMOVED = """
-- old_partitions.mark_removed
UPDATE removed_partitions SET removed_at = clock_fact() WHERE name = $1
"""


async def drop(conn: Connection, partition: Partition) -> None:
    """Drop a detached one, and note it in the same transaction."""
    await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    await conn.execute(f"DROP TABLE IF EXISTS {partition.name}")
    await conn.execute(_MARK_REMOVED, partition.name)
