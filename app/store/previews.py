"""What the next removal would take: the same judgement as its own, in statements that only read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from app.domain.lifecycle import RetentionClass
from app.store.database import Connection
from app.store.expiries import STANDING

Fate: TypeAlias = Literal["removed", "held", "evidence", "open", "shared"]


@dataclass(frozen=True, slots=True)
class Expired:
    """Expired artifacts of one kind and class, and what becomes of them."""

    fate: Fate
    kind: Literal["artifact", "log"]
    retention_class: RetentionClass
    objects: int
    rows: int
    byte_size: int


_EXPIRED = f"""
-- previews.list_expired
WITH picked AS (
    SELECT DISTINCT s.bucket, s.key FROM (
        (SELECT bucket, key FROM artifact_refs
            WHERE held_at IS NULL AND state <> 'removing' AND expires_at < clock_now()
            ORDER BY expires_at LIMIT $1)
        UNION ALL
        (SELECT bucket, key FROM artifact_refs WHERE state = 'removing' AND held_at IS NULL
            ORDER BY id LIMIT $1)) s
), {STANDING}, objects AS (
    SELECT CASE WHEN k.removable THEN 'removed' WHEN k.held THEN 'held'
            WHEN k.is_evidence THEN 'evidence' WHEN k.is_open THEN 'open' ELSE 'shared' END AS fate,
        CASE WHEN bool_or(s.is_log) THEN 'log' ELSE 'artifact' END AS kind,
        min(f.retention_class) AS retention_class, count(*) AS rows, max(f.byte_size) AS byte_size
    FROM keys k JOIN standing s ON s.bucket = k.bucket AND s.key = k.key
    JOIN artifact_refs f ON f.id = s.id
    GROUP BY k.bucket, k.key, k.removable, k.held, k.is_evidence, k.is_open
)
SELECT fate, kind, retention_class, count(*) AS objects, sum(rows)::bigint AS rows,
    sum(byte_size)::bigint AS byte_size
FROM objects GROUP BY fate, kind, retention_class ORDER BY fate, kind, retention_class
"""


async def list_expired(conn: Connection, limit: int) -> list[Expired]:
    """What has expired, by its fate; at most twice `limit` rows are read."""
    return [
        Expired(**{**dict(row), "retention_class": RetentionClass(row["retention_class"])})
        for row in await conn.fetch(_EXPIRED, limit)
    ]


# Each is counted up to $1 and no further.
_ROWS = """
-- previews.count_rows
SELECT
    (SELECT count(*) FROM (SELECT FROM artifact_refs
        WHERE expires_at IS NULL AND retention_class <> 'legal_hold' LIMIT $1) s) AS undated,
    (SELECT count(*) FROM (SELECT FROM processed_messages
        WHERE processed_at < clock_now() - $2::interval LIMIT $1) s) AS processed_messages,
    (SELECT count(*) FROM (SELECT FROM message_failures
        WHERE last_failed_at < clock_now() - $2::interval LIMIT $1) s) AS message_failures,
    (SELECT count(*) FROM (SELECT FROM dead_letters
        WHERE last_at < clock_now() - $3::interval LIMIT $1) s) AS dead_letters,
    (SELECT count(*) FROM (SELECT FROM artifact_uploads u
        JOIN execution_attempts a ON a.id = u.attempt_id
        WHERE u.closed_at < clock_now() - $6::interval AND a.finished_at IS NOT NULL
        LIMIT $1) s) AS tickets,
    (SELECT count(*) FROM (SELECT FROM runner_sessions
        WHERE replaced_at < clock_now() - $4::interval LIMIT $1) s) AS sessions,
    (SELECT count(*) FROM (SELECT FROM runner_instances r
        WHERE r.last_seen_at < clock_now() - $5::interval AND NOT EXISTS (
            SELECT FROM runner_leases l WHERE l.runner_instance_id = r.id AND (
                l.status = 'active' OR l.released_at > clock_now() - $5::interval))
        LIMIT $1) s) AS runners
"""


@dataclass(frozen=True, slots=True)
class Ages:
    """How long each kind of row is kept."""

    messages: timedelta
    dead_letters: timedelta
    sessions: timedelta
    runners: timedelta
    tickets: timedelta


async def count_rows(conn: Connection, ages: Ages, limit: int) -> dict[str, int]:
    """How many rows of each kind are due, counted up to `limit`."""
    row = await conn.fetchrow(
        _ROWS, limit, ages.messages, ages.dead_letters, ages.sessions, ages.runners, ages.tickets
    )
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return dict(row)
