"""Reads behind `why does it wait`; nothing here writes or locks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.store.database import Connection

MAX_POSITION = 10_000
_MAX_RUNNERS = 5_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of an attempt's row decides why it waits."""

    id: UUID
    status: str
    runner_kind: str
    job_type: str
    placement: str
    placement_class_id: UUID | None
    concurrency_key: str | None
    claimable: bool
    priority: int
    created_at: datetime
    cancel_requested_at: datetime | None
    backoff_runner_id: str | None
    backing_off_seconds: float | None
    lease_active: bool
    first_in_line: UUID | None


_FIND = """
-- placements.find
SELECT a.id, a.status, a.runner_kind, a.job_type, a.placement, a.placement_class_id,
    a.concurrency_key, a.claimable, a.priority, a.created_at, a.cancel_requested_at,
    CASE WHEN a.backoff_until > clock_now() THEN a.backoff_runner_id END AS backoff_runner_id,
    CASE WHEN a.backoff_until > clock_now()
        THEN extract(epoch FROM a.backoff_until - clock_now())::float8 END AS backing_off_seconds,
    EXISTS (SELECT FROM runner_leases l WHERE l.attempt_id = a.id AND l.status = 'active')
        AS lease_active,
    (SELECT w.id FROM execution_attempts w WHERE w.status = 'queued'
        AND w.concurrency_key = a.concurrency_key
     ORDER BY w.priority, w.created_at, w.id LIMIT 1) AS first_in_line
FROM execution_attempts a WHERE a.id = $1
"""


async def find(conn: Connection, attempt_id: UUID) -> Waiting | None:
    """The attempt as far as its waiting goes, or None."""
    row = await conn.fetchrow(_FIND, attempt_id)
    return None if row is None else Waiting(**dict(row))


_COUNT_AHEAD = """
-- placements.count_ahead
SELECT count(*) FROM (SELECT FROM execution_attempts a
    WHERE a.claimable AND a.placement_class_id = $1
        AND (a.priority, a.created_at, a.id) < ($2, $3, $4) LIMIT $5) q
"""


async def count_ahead(conn: Connection, waiting: Waiting) -> int:
    """How many claimable attempts of its class go before it, counted up to MAX_POSITION."""
    return int(
        await conn.fetchval(
            _COUNT_AHEAD,
            waiting.placement_class_id,
            waiting.priority,
            waiting.created_at,
            waiting.id,
            MAX_POSITION,
        )
    )


@dataclass(frozen=True, slots=True)
class FleetRunner:
    """A runner of the attempt's kind."""

    id: str
    capabilities: list[str]
    zone: str | None
    labels: str
    status: str
    drained: bool
    full: bool


_LIST_RUNNERS = """
-- placements.list_runners
SELECT r.id, r.capabilities, r.zone, r.labels, r.drained_at IS NOT NULL AS drained,
    CASE WHEN greatest(r.last_seen_at, b.beat_at) < clock_now() - $2::interval THEN 'offline'
        WHEN r.lapsed_claims >= 5 THEN 'unhealthy' ELSE s.status END AS status,
    b.used >= s.capacity_total AS full
FROM runner_instances r JOIN runner_statuses s ON s.runner_instance_id = r.id
CROSS JOIN LATERAL (SELECT count(*) AS used,
        max(l.expires_at) FILTER (WHERE l.last_sequence > 0) - $3::interval AS beat_at
    FROM runner_leases l WHERE l.runner_instance_id = r.id AND l.status = 'active') b
WHERE r.runner_kind = $1 ORDER BY r.last_seen_at DESC LIMIT $4
"""


async def list_runners(
    conn: Connection, runner_kind: str, offline_after: timedelta, lease_time: timedelta
) -> list[FleetRunner]:
    """The runners of a kind, those heard of last first."""
    rows = await conn.fetch(_LIST_RUNNERS, runner_kind, offline_after, lease_time, _MAX_RUNNERS)
    return [FleetRunner(**dict(row)) for row in rows]
