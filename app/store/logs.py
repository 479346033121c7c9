"""Statements on log streams: `log_streams` is the only authority on what has been accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.records import LogRef
from app.store.database import Connection
from app.store.leases import Key

REF_COLUMNS = """r.id, r.attempt_id, r.lease_number, r.stream, r.stream_offset, r.raw_size,
    r.byte_size, r.line_count, r.masked, r.artifact_ref_id, r.created_at"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands and whether its lease may write to it."""

    attempt_id: UUID
    operation_id: UUID
    lease_number: int
    writable: bool
    token_fits: bool
    next_offset: int
    final: bool
    attempt_bytes: int


# A look before anything is uploaded; the fence comes with the record, after the upload.
_LOOK = """
-- logs.look
SELECT a.id AS attempt_id, a.operation_id, l.lease_number,
    l.status = 'active' OR l.released_at > clock_now() - $4::interval AS writable,
    l.lease_token_hash = $2 AS token_fits,
    coalesce(s.next_offset, 0) AS next_offset, coalesce(s.final, false) AS final,
    (SELECT coalesce(sum(t.stored_size), 0)::bigint FROM log_streams t
     WHERE t.attempt_id = a.id) AS attempt_bytes
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN log_streams s ON s.attempt_id = a.id AND s.lease_number = l.lease_number
    AND s.stream = $3
WHERE l.id = $1
"""


async def look(conn: Connection, key: Key, stream: str, grace: timedelta) -> Place | None:
    """Where the stream stands; None: no such lease."""
    row = await conn.fetchrow(_LOOK, key.lease_id, key.token_hash, stream, grace)
    return None if row is None else Place(**dict(row))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One uploaded chunk to record; a chunk without bytes (only `final`) has no object."""

    ref_id: UUID
    artifact_id: UUID
    stream: str
    offset: int
    raw_size: int
    byte_size: int
    line_count: int
    masked: bool
    raw_hmac: str
    digest: str
    storage: str
    bucket: str
    object_key: str
    final: bool


# The attempt's row is not written, so it is not locked: a sweep that ends the lease meanwhile is
# met at the lease's row. A chunk under a live lease is a sign of life and renews it; after its end
# the grace decides. Rows come from the stream's RETURNING, so of two uploads at one offset one
# writes and the other finds out.
_RECORD = """
-- logs.record
WITH fenced AS (
    UPDATE runner_leases l SET expires_at = CASE l.status WHEN 'active'
        THEN greatest(l.expires_at, clock_now() + $3) ELSE l.expires_at END
    WHERE l.id = $1 AND l.lease_token_hash = $2
        AND (l.status = 'active' OR l.released_at > clock_now() - $4::interval)
    RETURNING l.attempt_id, l.lease_number
), owner AS (
    SELECT f.attempt_id, f.lease_number, a.operation_id
    FROM fenced f JOIN execution_attempts a ON a.id = f.attempt_id
), opened AS (
    INSERT INTO log_streams (attempt_id, lease_number, stream, next_offset, raw_size,
        stored_size, line_count, final, created_at, updated_at)
    SELECT o.attempt_id, o.lease_number, $5, $7, $7, $8, $9, $17, clock_fact(), clock_fact()
    FROM owner o WHERE $6::bigint = 0
    ON CONFLICT DO NOTHING
    RETURNING attempt_id
), advanced AS (
    UPDATE log_streams s SET next_offset = s.next_offset + $7, raw_size = s.raw_size + $7,
        stored_size = s.stored_size + $8, line_count = s.line_count + $9, final = $17,
        updated_at = clock_fact()
    FROM owner o
    WHERE s.attempt_id = o.attempt_id AND s.lease_number = o.lease_number AND s.stream = $5
        AND s.next_offset = $6 AND NOT s.final
    RETURNING s.attempt_id
), accepted AS (
    SELECT o.* FROM owner o
    WHERE EXISTS (SELECT FROM opened) OR EXISTS (SELECT FROM advanced)
), kept AS (
    INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size,
        retention_class, created_at, attempt_id, operation_id, state)
    SELECT $12, $14, $15, $16, 'application/octet-stream', $13, $8, 'normal', clock_fact(),
        a.attempt_id, a.operation_id, 'ready'
    FROM accepted a WHERE $7::bigint > 0
    RETURNING id
), noted AS (
    INSERT INTO raw_log_refs (id, attempt_id, stream, artifact_ref_id, byte_size, line_count,
        masked, created_at, lease_number, stream_offset, raw_size, raw_hmac)
    SELECT $10, a.attempt_id, $5, k.id, $8, $9, $18, clock_fact(), a.lease_number, $6, $7, $11
    FROM accepted a CROSS JOIN kept k
)
SELECT EXISTS (SELECT FROM fenced) AS fenced, EXISTS (SELECT FROM accepted) AS accepted
"""


async def record(
    conn: Connection, key: Key, chunk: Chunk, lease_time: timedelta, grace: timedelta
) -> tuple[bool, bool]:
    """Append the chunk if its lease may write and the stream stands at its offset.

    Returns (the lease may write, the chunk was appended).
    """
    row = await conn.fetchrow(
        _RECORD,
        key.lease_id,
        key.token_hash,
        lease_time,
        grace,
        chunk.stream,
        chunk.offset,
        chunk.raw_size,
        chunk.byte_size,
        chunk.line_count,
        chunk.ref_id,
        chunk.raw_hmac,
        chunk.artifact_id,
        chunk.digest,
        chunk.storage,
        chunk.bucket,
        chunk.object_key,
        chunk.final,
        chunk.masked,
    )
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return row["fenced"], row["accepted"]


_COVERED = f"""
-- logs.list_covered
SELECT {REF_COLUMNS}, r.raw_hmac FROM raw_log_refs r
WHERE r.attempt_id = $1 AND r.lease_number = $2 AND r.stream = $3
    AND r.stream_offset >= $4 AND r.stream_offset + r.raw_size <= $5
ORDER BY r.stream_offset
"""


async def list_covered(
    conn: Connection, attempt_id: UUID, lease_number: int, stream: str, start: int, end: int
) -> list[tuple[LogRef, str]]:
    """The stored chunks that lie wholly inside this range, each with the HMAC of its raw bytes."""
    rows = await conn.fetch(_COVERED, attempt_id, lease_number, stream, start, end)
    return [(LogRef.model_validate(dict(row)), row["raw_hmac"]) for row in rows]


_LIST_REFS = f"""
-- logs.list_refs
SELECT {REF_COLUMNS} FROM raw_log_refs r WHERE r.attempt_id = $1
    AND ($2::text IS NULL OR r.stream = $2)
    AND (r.lease_number, r.stream, r.stream_offset) > ($3, $4, $5)
ORDER BY r.lease_number, r.stream, r.stream_offset LIMIT $6
"""


async def list_refs(
    conn: Connection,
    attempt_id: UUID,
    *,
    stream: str | None,
    after: tuple[int, str, int] | None,
    limit: int,
) -> list[LogRef]:
    """At most `limit` chunks after that place, by lease, stream and offset."""
    rows = await conn.fetch(_LIST_REFS, attempt_id, stream, *(after or (0, "", -1)), limit)
    return [LogRef.model_validate(dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Part:
    """One stored chunk of a stream: which object holds it, and how many bytes of it."""

    lease_number: int
    object_key: str
    byte_size: int


_LIST_PARTS = """
-- logs.list_parts
SELECT r.lease_number, f.key AS object_key, r.byte_size
FROM raw_log_refs r JOIN artifact_refs f ON f.id = r.artifact_ref_id
WHERE r.attempt_id = $1 AND r.stream = $2
ORDER BY r.lease_number, r.stream_offset
"""


async def list_parts(conn: Connection, attempt_id: UUID, stream: str) -> Sequence[Part]:
    """The stream's chunks in reading order: lease after lease, each from its offset 0."""
    return [Part(**dict(row)) for row in await conn.fetch(_LIST_PARTS, attempt_id, stream)]


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One stream of one lease."""

    lease_number: int
    stream: str
    next_offset: int
    stored_size: int
    line_count: int
    final: bool


_LIST_STREAMS = """
-- logs.list_streams
SELECT lease_number, stream, next_offset, stored_size, line_count, final FROM log_streams
WHERE attempt_id = $1 ORDER BY lease_number, stream
"""


async def list_streams(conn: Connection, attempt_id: UUID) -> list[StreamSummary]:
    """All streams of an attempt."""
    return [StreamSummary(**dict(row)) for row in await conn.fetch(_LIST_STREAMS, attempt_id)]
