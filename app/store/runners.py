"""Statements on runners, their sessions and what they report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.errors import DatabaseUnavailable
from app.domain.records import Runner
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Profile:
    """What a session says of itself once and for all; `labels` is a JSON text."""

    runner_kind: str
    version: str
    capabilities: list[str]
    zone: str | None
    labels: str


@dataclass(frozen=True, slots=True)
class Registered:
    """A runner's row as it stands, locked."""

    session_id: UUID
    same_profile: bool


# Two first registrations at once: one inserts, the other waits for it and then finds the row.
_ADD = """
-- runners.add_once
INSERT INTO runner_instances (id, runner_kind, version, capabilities, zone, labels,
    registered_at, last_seen_at, session_id)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, clock_fact(), clock_fact(), $7)
ON CONFLICT (id) DO NOTHING RETURNING id
"""


async def add_once(conn: Connection, runner_id: str, session_id: UUID, profile: Profile) -> bool:
    """Insert the runner; False if the id is registered already."""
    added = await conn.fetchval(
        _ADD,
        runner_id,
        profile.runner_kind,
        profile.version,
        profile.capabilities,
        profile.zone,
        profile.labels,
        session_id,
    )
    return added is not None


_LOCK = """
-- runners.lock
SELECT session_id, (runner_kind, version, zone, labels) IS NOT DISTINCT FROM
    ($2, $3, $5, $6::jsonb) AND (SELECT array_agg(c ORDER BY c) FROM unnest(capabilities) c)
    IS NOT DISTINCT FROM (SELECT array_agg(c ORDER BY c) FROM unnest($4::text[]) c)
    AS same_profile
FROM runner_instances WHERE id = $1 FOR NO KEY UPDATE
"""


async def lock(conn: Connection, runner_id: str, profile: Profile) -> Registered:
    """Lock a registered runner's row and compare its profile.

    DatabaseUnavailable if it was removed in the same moment: the repeat registers it anew.
    """
    row = await conn.fetchrow(
        _LOCK,
        runner_id,
        profile.runner_kind,
        profile.version,
        profile.capabilities,
        profile.zone,
        profile.labels,
    )
    if row is None:
        raise DatabaseUnavailable
    return Registered(row["session_id"], row["same_profile"])


_SESSION_HISTORY = """
-- runners.session_history
SELECT EXISTS (SELECT FROM runner_sessions WHERE runner_instance_id = $1 AND session_id = $2
        AND replaced_at IS NOT NULL) AS replaced,
    (SELECT count(*) FROM runner_sessions WHERE runner_instance_id = $1
        AND began_at > clock_now() - interval '1 minute') AS recent
"""


async def session_history(conn: Connection, runner_id: str, session_id: UUID) -> tuple[bool, int]:
    """Whether another took over from this session, and how many began in the last minute."""
    row = await conn.fetchrow(_SESSION_HISTORY, runner_id, session_id)
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return row["replaced"], row["recent"]


_BEGIN_SESSION = """
-- runners.begin_session
WITH begun AS (
    INSERT INTO runner_sessions (runner_instance_id, session_id, began_at)
    VALUES ($1, $2, clock_fact()) ON CONFLICT DO NOTHING
), replaced AS (
    UPDATE runner_sessions SET replaced_at = clock_fact()
    WHERE runner_instance_id = $1 AND session_id <> $2 AND replaced_at IS NULL
), reported AS (
    INSERT INTO runner_statuses (runner_instance_id, runner_kind, status, capacity_total,
        capacity_used, updated_at)
    VALUES ($1, $3, 'ready', $8, 0, clock_fact())
    ON CONFLICT (runner_instance_id) DO UPDATE SET runner_kind = $3, status = 'ready',
        capacity_total = $8, last_error = NULL, sequence = 0, updated_at = clock_fact()
)
UPDATE runner_instances SET session_id = $2, runner_kind = $3, version = $4, capabilities = $5,
    zone = $6, labels = $7::jsonb, registered_at = clock_fact(), last_seen_at = clock_fact(),
    lapsed_claims = 0
WHERE id = $1
"""


async def begin_session(
    conn: Connection, runner_id: str, session_id: UUID, profile: Profile, capacity: int
) -> None:
    """Make this the runner's session, in place of any other. The caller holds the row."""
    await conn.execute(
        _BEGIN_SESSION,
        runner_id,
        session_id,
        profile.runner_kind,
        profile.version,
        profile.capabilities,
        profile.zone,
        profile.labels,
        capacity,
    )


_MARK_CONTESTED = """
-- runners.mark_contested
UPDATE runner_instances SET contested_at = clock_fact() WHERE id = $1
"""


async def mark_contested(conn: Connection, runner_id: str) -> None:
    """Note for operators that several processes fight for this id."""
    await conn.execute(_MARK_CONTESTED, runner_id)


_LIST_LIVE_LEASES = """
-- runners.list_live_leases
SELECT id FROM runner_leases WHERE runner_instance_id = $1 AND status = 'active' ORDER BY id
"""


async def list_live_leases(conn: Connection, runner_id: str) -> list[UUID]:
    """The active leases of a runner."""
    return [row["id"] for row in await conn.fetch(_LIST_LIVE_LEASES, runner_id)]


_MARK_SEEN = """
-- runners.mark_seen
UPDATE runner_instances SET last_seen_at = clock_fact() WHERE id = $1
"""


async def mark_seen(conn: Connection, runner_id: str) -> None:
    """The runner was heard of just now."""
    await conn.execute(_MARK_SEEN, runner_id)


@dataclass(frozen=True, slots=True)
class Report:
    """What a runner says of itself from time to time."""

    runner_id: str
    session_id: UUID
    sequence: int
    status: str
    capacity_total: int
    last_error: str | None


_REPORT = """
-- runners.report
WITH input AS (
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[], $5::int[], $6::text[])
    AS i(runner_id, session_id, sequence, status, capacity, last_error)
), current AS (
    SELECT r.id, i.sequence, i.status, i.capacity, i.last_error
    FROM runner_instances r JOIN input i ON i.runner_id = r.id
    WHERE r.session_id = i.session_id
    ORDER BY r.id FOR NO KEY UPDATE OF r
), seen AS (
    UPDATE runner_instances r SET last_seen_at = clock_fact() FROM current c WHERE r.id = c.id
)
UPDATE runner_statuses s SET status = c.status, capacity_total = c.capacity,
    last_error = c.last_error, sequence = c.sequence, updated_at = clock_fact()
FROM current c WHERE s.runner_instance_id = c.id AND s.sequence < c.sequence
RETURNING s.runner_instance_id
"""


async def report(conn: Connection, reports: Sequence[Report]) -> set[str]:
    """Store reports whose session speaks for the runner and whose sequence is newer.

    At most one a runner. The ids of those stored.
    """
    rows = await conn.fetch(
        _REPORT,
        [one.runner_id for one in reports],
        [one.session_id for one in reports],
        [one.sequence for one in reports],
        [one.status for one in reports],
        [one.capacity_total for one in reports],
        [one.last_error for one in reports],
    )
    return {row["runner_instance_id"] for row in rows}


# What is shown: offline beats draining beats unhealthy beats busy beats ready.
_SHOWN = """
SELECT r.id, r.runner_kind, r.version, r.capabilities, r.zone, r.labels, r.session_id,
    r.registered_at, greatest(r.last_seen_at, b.beat_at) AS last_seen_at,
    s.capacity_total, b.used AS capacity_used, s.last_error,
    CASE WHEN greatest(r.last_seen_at, b.beat_at) < clock_now() - {offline}
            OR s.status = 'offline' THEN 'offline'
        WHEN r.drained_at IS NOT NULL OR s.status = 'draining' THEN 'draining'
        WHEN r.lapsed_claims >= 5 OR s.status = 'unhealthy' THEN 'unhealthy'
        WHEN b.used >= s.capacity_total OR s.status = 'busy' THEN 'busy'
        ELSE 'ready' END AS status
FROM runner_instances r JOIN runner_statuses s ON s.runner_instance_id = r.id
CROSS JOIN LATERAL (SELECT count(*)::int AS used,
        max(l.expires_at) FILTER (WHERE l.last_sequence > 0) - {lease} AS beat_at
    FROM runner_leases l WHERE l.runner_instance_id = r.id AND l.status = 'active') b
"""

_FIND = (
    "-- runners.find\n"
    + _SHOWN.format(offline="$2::interval", lease="$3::interval")
    + "WHERE r.id = $1"
)


async def find(
    conn: Connection, runner_id: str, offline_after: timedelta, lease_time: timedelta
) -> Runner | None:
    """The runner as it is shown, or None."""
    row = await conn.fetchrow(_FIND, runner_id, offline_after, lease_time)
    return None if row is None else Runner.model_validate(dict(row))


@dataclass(frozen=True, slots=True)
class Session:
    """What a claim needs to know of its runner."""

    runner_kind: str
    capabilities: list[str]
    zone: str | None
    labels: str
    session_id: UUID
    known: bool


async def find_session(conn: Connection, runner_id: str, session_id: UUID) -> Session | None:
    """The runner's profile and current session; `known`: the given one was ever registered."""
    found = await find_sessions(conn, [(runner_id, session_id)])
    return found.get(runner_id)


_FIND_SESSIONS = """
-- runners.find_sessions
SELECT r.id, r.runner_kind, r.capabilities, r.zone, r.labels, r.session_id,
    EXISTS (SELECT FROM runner_sessions p WHERE p.runner_instance_id = r.id
        AND p.session_id = i.session_id) AS known
FROM unnest($1::text[], $2::uuid[]) AS i(runner_id, session_id)
JOIN runner_instances r ON r.id = i.runner_id
"""


async def find_sessions(conn: Connection, pairs: Sequence[tuple[str, UUID]]) -> dict[str, Session]:
    """As `find_session`, for many runners by their ids; nothing is asked for none."""
    if not pairs:
        return {}
    rows = await conn.fetch(_FIND_SESSIONS, *map(list, zip(*pairs, strict=True)))
    return {
        row["id"]: Session(**{name: value for name, value in row.items() if name != "id"})
        for row in rows
    }


_LIST = (
    "-- runners.list_runners\n"
    + _SHOWN.format(offline="$1::interval", lease="$2::interval")
    + """WHERE r.id > $3 AND ($4::text IS NULL OR r.runner_kind = $4)
    AND ($5 OR greatest(r.last_seen_at, b.beat_at) > clock_now() - interval '1 hour')
ORDER BY r.id LIMIT $6"""
)


async def list_runners(
    conn: Connection,
    offline_after: timedelta,
    lease_time: timedelta,
    *,
    after: str,
    runner_kind: str | None,
    include_offline: bool,
    limit: int,
) -> list[Runner]:
    """At most `limit` runners by id; those silent for over an hour only if asked for."""
    rows = await conn.fetch(
        _LIST, offline_after, lease_time, after, runner_kind, include_offline, limit
    )
    return [Runner.model_validate(dict(row)) for row in rows]
