"""Statements on schedules and the history of what they fired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.schedules import Misfire, Timing
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as stored; `data` is JSON text."""

    name: str
    cron: str | None
    time_zone: str
    at: datetime | None
    to: str
    data: str
    misfire: Misfire
    misfire_limit: int
    jitter_seconds: int
    version: int
    next_due_at: datetime | None
    next_fire_at: datetime | None
    last_due_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime
    updated_by: str

    @property
    def timing(self) -> Timing:
        """When it comes due."""
        return Timing(self.cron, self.time_zone, self.at, self.jitter_seconds)


_COLUMNS = """s.name, s.cron, s.time_zone, s.at, s."to", s.data, s.misfire, s.misfire_limit,
    s.jitter_seconds, s.version, s.next_due_at, s.next_fire_at, s.last_due_at, s.paused_at,
    s.paused_by, s.created_at, s.updated_at, s.updated_by"""

_FIND = f"""
-- schedules.find
SELECT {_COLUMNS} FROM schedules s WHERE s.name = $1
"""

_LOCK = f"""
-- schedules.lock
SELECT {_COLUMNS} FROM schedules s WHERE s.name = $1 FOR NO KEY UPDATE
"""

_NOW = """
-- schedules.now
SELECT clock_now()
"""


async def find(conn: Connection, name: str) -> Schedule | None:
    """The schedule, or None."""
    row = await conn.fetchrow(_FIND, name)
    return None if row is None else Schedule(**dict(row))


async def lock(conn: Connection, name: str) -> Schedule | None:
    """The schedule, locked until the transaction ends, or None."""
    row = await conn.fetchrow(_LOCK, name)
    return None if row is None else Schedule(**dict(row))


async def now(conn: Connection) -> datetime:
    """The database's time, by which due times are compared."""
    moment: datetime = await conn.fetchval(_NOW)
    return moment


@dataclass(frozen=True, slots=True)
class Draft:
    """What a schedule is to be."""

    name: str
    timing: Timing
    to: str
    data: str
    misfire: Misfire
    misfire_limit: int
    next_due_at: datetime | None
    next_fire_at: datetime | None
    by: str

    @property
    def values(self) -> tuple[object, ...]:
        """The values in the order of the statements."""
        timing = self.timing
        return (
            self.name, timing.cron, timing.time_zone, timing.at, self.to, self.data, self.misfire,
            self.misfire_limit, timing.jitter_seconds, self.next_due_at, self.next_fire_at, self.by,
        )  # fmt: skip


_CREATE = f"""
-- schedules.create_once
INSERT INTO schedules AS s (name, cron, time_zone, at, "to", data, misfire, misfire_limit,
    jitter_seconds, next_due_at, next_fire_at, created_at, updated_at, updated_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_fact(), clock_fact(), $12)
ON CONFLICT (name) DO NOTHING RETURNING {_COLUMNS}
"""

_REPLACE = f"""
-- schedules.replace
UPDATE schedules s SET cron = $2, time_zone = $3, at = $4, "to" = $5, data = $6, misfire = $7,
    misfire_limit = $8, jitter_seconds = $9, next_due_at = $10, next_fire_at = $11,
    version = s.version + 1, updated_at = clock_fact(), updated_by = $12
WHERE s.name = $1 RETURNING {_COLUMNS}
"""


async def create_once(conn: Connection, draft: Draft) -> Schedule | None:
    """Create the schedule; None if there is one of that name."""
    row = await conn.fetchrow(_CREATE, *draft.values)
    return None if row is None else Schedule(**dict(row))


async def replace(conn: Connection, draft: Draft) -> Schedule:
    """Replace the schedule, which the caller has locked."""
    row = await conn.fetchrow(_REPLACE, *draft.values)
    assert row is not None  # noqa: S101 - it is locked
    return Schedule(**dict(row))


_PAUSE = f"""
-- schedules.pause
UPDATE schedules s SET paused_at = clock_fact(), paused_by = $2, next_due_at = NULL,
    next_fire_at = NULL, version = s.version + 1
WHERE s.name = $1 AND s.paused_at IS NULL RETURNING {_COLUMNS}
"""

_RESUME = f"""
-- schedules.resume
UPDATE schedules s SET paused_at = NULL, paused_by = NULL, next_due_at = $2, next_fire_at = $3,
    version = s.version + 1
WHERE s.name = $1 AND s.paused_at IS NOT NULL RETURNING {_COLUMNS}
"""

_REMOVE = """
-- schedules.remove
DELETE FROM schedules WHERE name = $1 RETURNING name
"""

_LIST = f"""
-- schedules.list_after
SELECT {_COLUMNS} FROM schedules s WHERE s.name > $1 ORDER BY s.name LIMIT $2
"""


async def pause(conn: Connection, name: str, by: str) -> Schedule | None:
    """Let it come due no more; None if it is paused already, or not there."""
    row = await conn.fetchrow(_PAUSE, name, by)
    return None if row is None else Schedule(**dict(row))


async def resume(
    conn: Connection, name: str, due_at: datetime | None, fire_at: datetime | None
) -> Schedule | None:
    """Let it come due again, next at that time; None if it is not paused, or not there."""
    row = await conn.fetchrow(_RESUME, name, due_at, fire_at)
    return None if row is None else Schedule(**dict(row))


async def remove(conn: Connection, name: str) -> bool:
    """Remove the schedule; what it fired stays, and is still sent. False if it is not there."""
    return await conn.fetchval(_REMOVE, name) is not None


async def list_after(conn: Connection, name: str, limit: int) -> list[Schedule]:
    """Schedules by name, after this one."""
    return [Schedule(**dict(row)) for row in await conn.fetch(_LIST, name, limit)]


_LIST_DUE = f"""
-- schedules.list_due
SELECT {_COLUMNS}, clock_now() AS now FROM schedules s WHERE s.next_fire_at <= clock_now()
ORDER BY s.next_fire_at LIMIT $1
"""


async def list_due(conn: Connection, limit: int) -> tuple[datetime | None, list[Schedule]]:
    """The schedules whose time has come, longest ago first, and the time of this look."""
    rows = [dict(row) for row in await conn.fetch(_LIST_DUE, limit)]
    moments = [row.pop("now") for row in rows]
    return (moments[0] if moments else None), [Schedule(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class Step:
    """A schedule's way from one next time to the following one."""

    name: str
    version: int
    due_at: datetime
    next_due_at: datetime | None
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewFire:
    """A due time that is being settled: a message, or a run of due times that were skipped."""

    id: UUID
    schedule: str
    due_at: datetime
    to: str
    data: str | None
    """The rendered data; None: skipped."""
    skipped_until: datetime | None = None
    skipped_count: int | None = None


# One statement, so that a schedule's next time, the history and the message are one fact. A step
# that finds its schedule changed since the look moves nothing, and so fires nothing.
_FIRE = """
-- schedules.fire
WITH moved AS (
    UPDATE schedules s SET next_due_at = u.next_due_at, next_fire_at = u.next_fire_at,
        last_due_at = u.due_at
    FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
        AS u(name, version, due_at, next_due_at, next_fire_at)
    WHERE s.name = u.name AND s.version = u.version AND s.next_due_at = u.due_at
    RETURNING s.name
), fired AS (
    INSERT INTO schedule_fires AS f (id, schedule, due_at, kind, outcome, fired_at, term,
        skipped_until, skipped_count)
    SELECT n.id, n.schedule, n.due_at, 'due',
        CASE WHEN n.data IS NULL THEN 'skipped' ELSE 'fired' END, clock_fact(), $13,
        n.skipped_until, n.skipped_count
    FROM unnest($6::uuid[], $7::text[], $8::timestamptz[], $9::text[], $10::text[],
        $11::timestamptz[], $12::int[])
        AS n(id, schedule, due_at, "to", data, skipped_until, skipped_count)
    JOIN moved m ON m.name = n.schedule
    ON CONFLICT DO NOTHING RETURNING f.id, f.outcome
), sent AS (
    INSERT INTO outbox (id, schedule, "to", data, created_at, next_try_at)
    SELECT n.id, n.schedule, n."to", n.data, clock_fact(), clock_fact()
    FROM unnest($6::uuid[], $7::text[], $9::text[], $10::text[]) AS n(id, schedule, "to", data)
    JOIN fired f ON f.id = n.id AND f.outcome = 'fired'
    RETURNING id
)
SELECT count(*) FROM sent
"""


async def fire(conn: Connection, steps: Sequence[Step], fires: Sequence[NewFire], term: int) -> int:
    """Move the schedules on and put their messages into the outbox; how many messages.

    The caller has proved the term. A schedule that was changed meanwhile is left alone, and a due
    time that was settled before is not settled again.
    """
    count: int = await conn.fetchval(
        _FIRE,
        [one.name for one in steps],
        [one.version for one in steps],
        [one.due_at for one in steps],
        [one.next_due_at for one in steps],
        [one.next_fire_at for one in steps],
        [one.id for one in fires],
        [one.schedule for one in fires],
        [one.due_at for one in fires],
        [one.to for one in fires],
        [one.data for one in fires],
        [one.skipped_until for one in fires],
        [one.skipped_count for one in fires],
        term,
    )
    return count


@dataclass(frozen=True, slots=True)
class Fire:
    """One line of a schedule's history."""

    id: UUID
    schedule: str
    due_at: datetime
    kind: str
    outcome: str
    fired_at: datetime
    term: int | None
    request_id: UUID | None
    triggered_by: str | None
    skipped_until: datetime | None
    skipped_count: int | None
    sent_at: datetime | None
    sent_as: str | None


_FIRE_COLUMNS = """f.id, f.schedule, f.due_at, f.kind, f.outcome, f.fired_at, f.term, f.request_id,
    f.triggered_by, f.skipped_until, f.skipped_count, f.sent_at, f.sent_as"""

_TRIGGER = f"""
-- schedules.trigger_once
WITH fired AS (
    INSERT INTO schedule_fires AS f (id, schedule, due_at, kind, outcome, fired_at, request_id,
        triggered_by)
    VALUES ($1, $2, $3, 'trigger', 'fired', clock_fact(), $4, $5)
    ON CONFLICT (id) DO NOTHING RETURNING {_FIRE_COLUMNS}
), sent AS (
    INSERT INTO outbox (id, schedule, "to", data, created_at, next_try_at)
    SELECT id, schedule, $6, $7, fired_at, fired_at FROM fired
)
SELECT {_FIRE_COLUMNS} FROM fired f
"""

_FIND_FIRE = f"""
-- schedules.find_fire
SELECT {_FIRE_COLUMNS} FROM schedule_fires f WHERE f.id = $1
"""


async def trigger_once(conn: Connection, fire_: NewFire, request_id: UUID, by: str) -> Fire | None:
    """Put a message out of turn into the outbox; None if this request did before."""
    row = await conn.fetchrow(
        _TRIGGER,
        fire_.id,
        fire_.schedule,
        fire_.due_at,
        request_id,
        by,
        fire_.to,
        fire_.data,
    )
    return None if row is None else Fire(**dict(row))


async def find_fire(conn: Connection, fire_id: UUID) -> Fire | None:
    """One line of a history, or None."""
    row = await conn.fetchrow(_FIND_FIRE, fire_id)
    return None if row is None else Fire(**dict(row))


_LIST_FIRES = f"""
-- schedules.list_fires
SELECT {_FIRE_COLUMNS} FROM schedule_fires f WHERE f.schedule = $1
    AND ($2::timestamptz IS NULL OR (f.fired_at, f.id) < ($2, $3::uuid))
ORDER BY f.fired_at DESC, f.id DESC LIMIT $4
"""


async def list_fires(
    conn: Connection, name: str, before: tuple[datetime, UUID] | None, limit: int
) -> list[Fire]:
    """A schedule's history, newest first."""
    moment, last = before or (None, None)
    return [Fire(**dict(row)) for row in await conn.fetch(_LIST_FIRES, name, moment, last, limit)]


_FORGET = """
-- schedules.remove_old_fires
DELETE FROM schedule_fires WHERE id IN (
    SELECT f.id FROM schedule_fires f WHERE f.fired_at < clock_now() - $1::interval
        AND NOT EXISTS (SELECT FROM outbox o WHERE o.id = f.id)
    ORDER BY f.fired_at LIMIT $2)
"""


async def remove_old_fires(conn: Connection, age: timedelta, limit: int) -> int:
    """Forget fires of so long ago that have been sent; how many."""
    return int((await conn.execute(_FORGET, age, limit)).rsplit(" ", 1)[-1])
