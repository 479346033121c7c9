"""Statements on the end of artifacts: dates, what is due and may go, and the rows of what is gone.

An object goes only when all rows of its key may go. They are locked first and judged by a second
statement, whose snapshot sees what came before the locks: a legal hold, a further row of the same
key, an evidence. Once all are `removing` nothing brings them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Work:
    """Whether there is anything of each kind to do."""

    undated: bool
    expired: bool
    removing: bool


_FIND_WORK = """
-- expiries.find_work
SELECT EXISTS (SELECT FROM artifact_refs
        WHERE expires_at IS NULL AND retention_class <> 'legal_hold') AS undated,
    EXISTS (SELECT FROM artifact_refs WHERE held_at IS NULL AND state <> 'removing'
        AND expires_at < clock_now()) AS expired,
    EXISTS (SELECT FROM artifact_refs WHERE state = 'removing' AND id > $1) AS removing
"""


async def find_work(conn: Connection, after: UUID) -> Work:
    """A cheap look before anything else; `after`: where the removal stands."""
    row = await conn.fetchrow(_FIND_WORK, after)
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return Work(**dict(row))


# The objects of logs get their class here too: whoever makes them knows nothing of it.
_DATE = """
-- expiries.date
UPDATE artifact_refs f SET retention_class = t.retention_class,
    expires_at = f.created_at + make_interval(days => t.days)
FROM (SELECT u.id, CASE WHEN EXISTS (SELECT FROM raw_log_refs r WHERE r.artifact_ref_id = u.id)
            THEN $4 ELSE u.retention_class END AS retention_class
    FROM artifact_refs u
    WHERE u.expires_at IS NULL AND u.retention_class <> 'legal_hold'
    ORDER BY u.id LIMIT $3 FOR UPDATE SKIP LOCKED) u
JOIN unnest($1::text[], $2::int[]) t(retention_class, days)
    ON t.retention_class = u.retention_class
WHERE f.id = u.id
"""


async def date(conn: Connection, class_days: Mapping[str, int], log_class: str, limit: int) -> int:
    """Give an expiry to at most `limit` artifacts that have none; return how many."""
    days = list(class_days.values())
    done = await conn.execute(_DATE, list(class_days), days, limit, log_class)
    return int(done.split()[-1])


# Rows that somebody holds locked are left out; then none of their key is marked this time.
_LOCK_DUE = """
-- expiries.lock_due
WITH due AS (
    SELECT DISTINCT s.bucket, s.key FROM (
        SELECT bucket, key FROM artifact_refs
        WHERE held_at IS NULL AND state <> 'removing' AND expires_at < clock_now()
        ORDER BY expires_at LIMIT $1) s
)
SELECT f.id FROM artifact_refs f JOIN due d ON d.bucket = f.bucket AND d.key = f.key
ORDER BY f.id FOR UPDATE OF f SKIP LOCKED
"""


async def lock_due(conn: Connection, limit: int) -> list[UUID]:
    """Lock the rows of the keys that at most `limit` expired artifacts have."""
    return [row["id"] for row in await conn.fetch(_LOCK_DUE, limit)]


# What a row says of its object. A log goes as a whole: with its attempt's last chunk, and not while
# one of them is held. What an evidence shows stays as its operation's history does, so for good.
STANDING = """
standing AS (
    SELECT f.id, f.bucket, f.key, f.state, f.attempt_id,
        f.held_at IS NOT NULL OR f.retention_class = 'legal_hold' AS held,
        a.finished_at IS NULL AS is_open,
        EXISTS (SELECT FROM raw_log_refs r WHERE r.artifact_ref_id = f.id) AS is_log,
        EXISTS (SELECT FROM evidence_refs e WHERE e.artifact_ref_id = f.id) OR EXISTS (
            SELECT FROM runner_output_refs o JOIN evidence_refs e ON e.output_ref_id = o.id
            WHERE o.artifact_ref_id = f.id) AS is_evidence,
        f.expires_at
    FROM picked p JOIN artifact_refs f ON f.bucket = p.bucket AND f.key = p.key
    JOIN execution_attempts a ON a.id = f.attempt_id
), whole_logs AS (
    SELECT r.attempt_id, max(x.expires_at) AS expires_at,
        bool_or(x.held_at IS NOT NULL OR x.retention_class = 'legal_hold') AS held
    FROM raw_log_refs r JOIN artifact_refs x ON x.id = r.artifact_ref_id
    WHERE r.attempt_id IN (SELECT s.attempt_id FROM standing s WHERE s.is_log)
    GROUP BY r.attempt_id
), judged AS (
    SELECT s.id, s.bucket, s.key, s.state, s.is_open, s.is_evidence,
        s.held OR coalesce(s.is_log AND w.held, false) AS held,
        CASE WHEN s.is_log THEN greatest(s.expires_at, w.expires_at) ELSE s.expires_at END
            AS expires_at
    FROM standing s LEFT JOIN whole_logs w ON w.attempt_id = s.attempt_id
), keys AS (
    SELECT j.bucket, j.key,
        bool_and(j.state = 'removing' OR coalesce(j.expires_at < clock_now() AND NOT j.held
            AND NOT j.is_open AND NOT j.is_evidence, false)) AS removable,
        bool_or(j.held) AS held, bool_or(j.is_open) AS is_open,
        bool_or(j.is_evidence) AS is_evidence, max(j.expires_at) AS expires_at
    FROM judged j GROUP BY j.bucket, j.key
)"""

# What may not go yet is looked at again when it may, so that nothing stands in front of the rest.
_MARK = f"""
-- expiries.mark
WITH picked AS (
    SELECT DISTINCT bucket, key FROM artifact_refs WHERE id = ANY($1::uuid[])
), {STANDING}, whole AS (
    SELECT k.* FROM keys k WHERE NOT EXISTS (
        SELECT FROM judged j WHERE j.bucket = k.bucket AND j.key = k.key
            AND j.id <> ALL($1::uuid[]))
), marked AS (
    UPDATE artifact_refs f SET state = 'removing' FROM whole k
    WHERE f.bucket = k.bucket AND f.key = k.key AND k.removable AND f.id = ANY($1::uuid[])
        AND f.state <> 'removing' AND f.held_at IS NULL
    RETURNING f.id
), kept AS (
    UPDATE artifact_refs f SET expires_at = CASE WHEN k.is_evidence THEN 'infinity'
        ELSE greatest(clock_now() + interval '1 day', k.expires_at) END
    FROM keys k
    WHERE f.bucket = k.bucket AND f.key = k.key AND NOT k.removable AND f.id = ANY($1::uuid[])
        AND f.state <> 'removing' AND f.held_at IS NULL AND f.expires_at < clock_now()
    RETURNING f.id
)
SELECT (SELECT count(*) FROM marked) AS marked, (SELECT count(*) FROM kept) AS kept
"""


async def mark(conn: Connection, locked: Sequence[UUID]) -> tuple[int, int]:
    """Mark as `removing` what may go of these locked rows; put off what may not go yet.

    Returns how many of each. What is marked is answered 410 from here on.
    """
    row = await conn.fetchrow(_MARK, list(locked))
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return row["marked"], row["kept"]


@dataclass(frozen=True, slots=True)
class Removal:
    """A row that is being removed. `last`: no other row needs its object any more."""

    id: UUID
    key: str
    last: bool


_LIST_REMOVING = """
-- expiries.list_removing
SELECT f.id, f.key, NOT EXISTS (
    SELECT FROM artifact_refs o WHERE o.bucket = f.bucket AND o.key = f.key
        AND (o.state <> 'removing' OR o.held_at IS NOT NULL)) AS last
FROM artifact_refs f
WHERE f.state = 'removing' AND f.held_at IS NULL AND f.bucket = $1 AND f.id > $2
ORDER BY f.id LIMIT $3
"""


async def list_removing(conn: Connection, bucket: str, after: UUID, limit: int) -> list[Removal]:
    """At most `limit` rows of this bucket that are being removed, by id."""
    return [Removal(**dict(row)) for row in await conn.fetch(_LIST_REMOVING, bucket, after, limit)]


_REMOVE_CHUNKS = """
-- expiries.remove_chunks
DELETE FROM raw_log_refs r USING artifact_refs f
WHERE r.artifact_ref_id = ANY($1::uuid[]) AND f.id = r.artifact_ref_id AND f.state = 'removing'
    AND f.held_at IS NULL
"""

_REMOVE_OUTPUTS = """
-- expiries.remove_outputs
DELETE FROM runner_output_refs o USING artifact_refs f
WHERE o.artifact_ref_id = ANY($1::uuid[]) AND f.id = o.artifact_ref_id AND f.state = 'removing'
    AND f.held_at IS NULL
"""

_REMOVE = """
-- expiries.remove
DELETE FROM artifact_refs WHERE id = ANY($1::uuid[]) AND state = 'removing' AND held_at IS NULL
"""


async def remove(conn: Connection, ids: Sequence[UUID]) -> int:
    """Remove rows whose objects are gone, with the chunks and outputs that point at them.

    The timeline keeps what was recorded. Returns how many artifacts went.
    """
    await conn.execute(_REMOVE_CHUNKS, list(ids))
    await conn.execute(_REMOVE_OUTPUTS, list(ids))
    return int((await conn.execute(_REMOVE, list(ids))).split()[-1])
