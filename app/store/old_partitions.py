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

# Outside a transaction nobody waits behind us. Longer than PostgreSQL's deadlock_timeout, after
# which a vacuum of the old partition gives way.
_LONG_LOCK_TIMEOUT = "1500ms"
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


# Detached ones are known by their note alone. A name tells the bounds: it was made by us.
_LIST = """
-- old_partitions.list_all
WITH attached AS (
    SELECT c.relname::text AS name, i.inhdetachpending
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent IN ('attempt_heartbeats'::regclass, 'attempt_events'::regclass)
), begun AS (
    SELECT n.name FROM removed_partitions n WHERE n.removed_at IS NULL
)
SELECT a.name, b.name IS NOT NULL AS noted, clock_now() AS now,
    CASE WHEN a.inhdetachpending THEN 'pending' ELSE 'attached' END AS stage
FROM attached a LEFT JOIN begun b ON b.name = a.name
UNION ALL
SELECT b.name, true, clock_now(), 'detached' FROM begun b
WHERE NOT EXISTS (SELECT FROM attached a WHERE a.name = b.name)
"""


async def list_old(
    conn: Connection, beats_kept: dt.timedelta, events_kept: dt.timedelta | None
) -> list[Partition]:
    """Partitions that ended so long ago, the oldest first, and those whose removal has begun."""
    kept = {"attempt_heartbeats": beats_kept, "attempt_events": events_kept}
    old = []
    for row in await conn.fetch(_LIST):
        one = _partition(row["name"], row["noted"], row["stage"])
        if one is None:
            continue
        age = kept[one.parent]
        if one.stage != "attached" or (age is not None and one.ends_at <= row["now"] - age):
            old.append(one)
    return sorted(old, key=lambda one: (one.stage == "attached", one.ends_at))


def _partition(name: str, noted: bool, stage: Stage) -> Partition | None:
    """None for one that somebody else attached under a name of their own."""
    fits = _NAME.fullmatch(name)
    if fits is None:
        return None
    parent, year, month, day = fits.groups()
    start = dt.date(int(year), int(month), int(day or 1))
    end = start + dt.timedelta(days=1) if day else next_month(start)
    return Partition(name, parent, _midnight(start), _midnight(end), stage, noted)


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


_SIZE = """
-- old_partitions.size
SELECT coalesce(pg_total_relation_size(to_regclass($1)), 0)
"""


async def size(conn: Connection, partition: Partition) -> int:
    """Its bytes on disk, with indexes; 0 if it is gone."""
    return int(await conn.fetchval(_SIZE, partition.name))


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

    `outside` any transaction nobody waits for it. Inside of one all beats wait while it does, so
    there it gives up after `LOCK_TIMEOUT`. LockNotAvailableError when it gave up.
    """
    if outside:
        await conn.execute(f"SET lock_timeout = '{_LONG_LOCK_TIMEOUT}'")
    else:
        await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
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
    """Drop a detached one, which nobody uses any more, and note it in the same transaction."""
    await conn.execute(f"SET LOCAL lock_timeout = '{_LONG_LOCK_TIMEOUT}'")
    await conn.execute(f"DROP TABLE IF EXISTS {partition.name}")
    await conn.execute(_MARK_REMOVED, partition.name)
