"""What points at objects of the bucket, asked by the object's key.

The times given here are the store's own; they are only ever compared with a day or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

from app.store.database import Connection

Verdict: TypeAlias = Literal["kept", "ticket", "orphan"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One object of a listing; `attempt_id` if its key is that of a log."""

    key: str
    modified_at: datetime
    attempt_id: UUID | None


# A log may still grow as long as its attempt is open or one of its leases is in its grace; nobody
# can record from a closed ticket, and without any ticket or lease nobody can record at all.
_JUDGE = """
-- orphans.judge
SELECT CASE
    WHEN i.modified_at >= clock_now() - $5::interval THEN 'kept'
    WHEN EXISTS (SELECT FROM artifact_refs f WHERE f.bucket = $1 AND f.key = i.key) THEN 'kept'
    WHEN EXISTS (SELECT FROM execution_attempts a WHERE a.id = i.attempt_id AND (
            a.finished_at IS NULL OR a.finished_at >= clock_now() - $5::interval)) THEN 'kept'
    WHEN EXISTS (SELECT FROM runner_leases l WHERE l.attempt_id = i.attempt_id AND (
            l.status = 'active' OR l.released_at >= clock_now() - $6::interval)) THEN 'kept'
    WHEN EXISTS (SELECT FROM artifact_uploads u JOIN runner_leases l ON l.id = u.lease_id
        WHERE u.bucket = $1 AND u.key = i.key AND u.closed_at IS NULL AND (l.status = 'active'
            OR l.released_at >= clock_now() - interval '1 day'
            OR EXISTS (SELECT FROM runner_leases o WHERE o.attempt_id = u.attempt_id
                AND o.status = 'active'))) THEN 'kept'
    WHEN EXISTS (SELECT FROM artifact_uploads u WHERE u.bucket = $1 AND u.key = i.key
        AND u.closed_at IS NULL) THEN 'ticket'
    ELSE 'orphan' END AS verdict
FROM unnest($2::text[], $3::timestamptz[], $4::uuid[]) WITH ORDINALITY
    AS i(key, modified_at, attempt_id, place)
ORDER BY i.place
"""


async def judge(
    conn: Connection,
    bucket: str,
    candidates: Sequence[Candidate],
    age: timedelta,
    log_grace: timedelta,
) -> list[Verdict]:
    """Whether each object is still pointed at; `ticket`: only by one whose time is over."""
    rows = await conn.fetch(
        _JUDGE,
        bucket,
        [one.key for one in candidates],
        [one.modified_at for one in candidates],
        [one.attempt_id for one in candidates],
        age,
        log_grace,
    )
    return [row["verdict"] for row in rows]


_CLOSE_TICKETS = """
-- orphans.close_tickets
UPDATE artifact_uploads SET closed_at = clock_fact(), closed_reason = 'expired'
WHERE bucket = $1 AND key = ANY($2::text[]) AND closed_at IS NULL
"""


async def close_tickets(conn: Connection, bucket: str, keys: Sequence[str]) -> None:
    """Close the tickets of these keys. Committed before an object goes, it stays without a row."""
    await conn.execute(_CLOSE_TICKETS, bucket, list(keys))


# A ticket that may still be used names the one upload that belongs to it.
_JUDGE_UPLOADS = """
-- orphans.judge_uploads
SELECT i.initiated_at < clock_now() - $5::interval AND NOT EXISTS (
    SELECT FROM artifact_uploads u JOIN runner_leases l ON l.id = u.lease_id
    WHERE u.bucket = $1 AND u.key = i.key AND u.upload_id = i.upload_id AND u.closed_at IS NULL
        AND (l.status = 'active' OR l.released_at >= clock_now() - interval '1 day'
            OR EXISTS (SELECT FROM runner_leases o WHERE o.attempt_id = u.attempt_id
                AND o.status = 'active'))) AS abandoned
FROM unnest($2::text[], $3::text[], $4::timestamptz[]) WITH ORDINALITY
    AS i(key, upload_id, initiated_at, place)
ORDER BY i.place
"""


async def judge_uploads(
    conn: Connection,
    bucket: str,
    keys: Sequence[str],
    upload_ids: Sequence[str],
    initiated_at: Sequence[datetime],
    age: timedelta,
) -> list[bool]:
    """Whether each upload in parts is old and nobody can complete it any more."""
    rows = await conn.fetch(
        _JUDGE_UPLOADS, bucket, list(keys), list(upload_ids), list(initiated_at), age
    )
    return [row["abandoned"] for row in rows]


_ESTIMATE = """
-- orphans.estimate_artifacts
SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'artifact_refs'::regclass
"""


async def estimate_artifacts(conn: Connection) -> int:
    """About how many artifacts are recorded, by the statistics."""
    return int(await conn.fetchval(_ESTIMATE))
