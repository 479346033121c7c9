"""Statements that append to logs: `log_streams` is the only authority on what was accepted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.records import LogRef
from app.store.database import Connection
from app.store.leases import Key

REF_COLUMNS = """r.id, r.attempt_id, r.lease_number, r.stream, r.stream_offset, r.raw_size,
    r.byte_size, r.line_count, r.masked, r.artifact_ref_id, r.created_at"""


def grace_ends_at(grace: str, lease_time: str) -> str:
    """SQL: until when lease `l`, which has ended, may still send its last lines.

    Time in which nobody could have reached us does not count, nor a lease time after it: neither an
    outage that is over nor one that this very request ends.
    """
    return f"""(SELECT l.released_at + {grace} + CASE
        WHEN t.last_tick_at < clock_now() - interval '3 s'
            AND t.last_tick_at < l.released_at + {grace}
        THEN clock_now() - greatest(t.last_tick_at, l.released_at) + {lease_time}
        WHEN t.outage_began_at < l.released_at + {grace} AND l.released_at < t.outage_ended_at
        THEN t.outage_ended_at - greatest(t.outage_began_at, l.released_at) + {lease_time}
        ELSE interval '0 s' END FROM service_ticks t)"""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that decide who may append."""

    lease_time: timedelta
    grace: timedelta


_MAY_APPEND = f"""(l.status = 'active'
        OR clock_now() < {grace_ends_at("$4::interval", "$3::interval")})"""


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
    truncated: bool
    attempt_truncated: bool
    attempt_bytes: int


# A look before anything is uploaded; the fence comes with the record, after the upload.
_LOOK = f"""
-- logs.look
SELECT a.id AS attempt_id, a.operation_id, l.lease_number, {_MAY_APPEND} AS writable,
    l.lease_token_hash = $2 AS token_fits,
    coalesce(s.next_offset, 0) AS next_offset, coalesce(s.final, false) AS final,
    s.truncated_at IS NOT NULL AS truncated, t.truncated AS attempt_truncated, t.attempt_bytes
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN log_streams s ON s.attempt_id = a.id AND s.lease_number = l.lease_number
    AND s.stream = $5
CROSS JOIN LATERAL (
    SELECT coalesce(sum(o.stored_size), 0)::bigint AS attempt_bytes,
        coalesce(bool_or(o.truncated_at IS NOT NULL), false) AS truncated
    FROM log_streams o WHERE o.attempt_id = a.id) t
WHERE l.id = $1
"""


async def look(conn: Connection, key: Key, stream: str, terms: Terms) -> Place | None:
    """Where the stream stands; None: no such lease."""
    row = await conn.fetchrow(
        _LOOK, key.lease_id, key.token_hash, terms.lease_time, terms.grace, stream
    )
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
    raw_hmac: str
    digest: str
    storage: str
    bucket: str
    object_key: str
    final: bool


# The attempt's row is not written, so it is not locked: a sweep that ends the lease meanwhile is
# met at the lease's row. A chunk under a live lease is a sign of life and renews it; after its end
# the grace decides. The lease's row also counts the chunks, so their numbers grow in the order in
# which they become visible. Rows come from the stream's RETURNING, so of two uploads at one offset
# one writes and the other finds out.
_RECORD = f"""
-- logs.record
WITH fenced AS (
    UPDATE runner_leases l SET log_chunks = l.log_chunks + 1, expires_at = CASE l.status
        WHEN 'active' THEN greatest(l.expires_at, clock_now() + $3) ELSE l.expires_at END
    WHERE l.id = $1 AND l.lease_token_hash = $2 AND {_MAY_APPEND}
    RETURNING l.attempt_id, l.lease_number, l.log_chunks
), owner AS (
    SELECT f.attempt_id, f.lease_number, f.log_chunks, a.operation_id
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
        AND s.next_offset = $6 AND NOT s.final AND s.truncated_at IS NULL
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
        masked, created_at, lease_number, stream_offset, raw_size, raw_hmac, arrival_number)
    SELECT $10, a.attempt_id, $5, k.id, $8, $9, true, clock_fact(), a.lease_number, $6, $7, $11,
        a.log_chunks
    FROM accepted a CROSS JOIN kept k
)
SELECT EXISTS (SELECT FROM fenced) AS fenced, EXISTS (SELECT FROM accepted) AS accepted
"""


async def record(conn: Connection, key: Key, chunk: Chunk, terms: Terms) -> tuple[bool, bool]:
    """Append the masked chunk if its lease may write and the stream stands at its offset.

    Returns (the lease may write, the chunk was appended).
    """
    row = await conn.fetchrow(
        _RECORD,
        key.lease_id,
        key.token_hash,
        terms.lease_time,
        terms.grace,
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
    )
    assert row is not None  # noqa: S101 - a SELECT without FROM
    return row["fenced"], row["accepted"]


_LOCK_ATTEMPT = """
-- logs.lock_attempt
SELECT a.id FROM execution_attempts a JOIN runner_leases l ON l.attempt_id = a.id
WHERE l.id = $1 FOR NO KEY UPDATE OF a
"""

# One event an attempt, and one mark a stream: `first` is decided under the attempt's lock.
_TRUNCATE = f"""
-- logs.truncate_once
WITH fenced AS (
    UPDATE runner_leases l SET log_chunks = l.log_chunks
    WHERE l.id = $1 AND l.lease_token_hash = $2 AND {_MAY_APPEND}
    RETURNING l.id, l.attempt_id, l.lease_number, l.runner_instance_id
), opened AS (
    INSERT INTO log_streams (attempt_id, lease_number, stream, created_at, updated_at, truncated_at)
    SELECT f.attempt_id, f.lease_number, $5, clock_fact(), clock_fact(), clock_fact() FROM fenced f
    ON CONFLICT DO NOTHING
    RETURNING attempt_id, lease_number, next_offset
), marked AS (
    UPDATE log_streams s SET truncated_at = clock_fact(), updated_at = clock_fact()
    FROM fenced f
    WHERE s.attempt_id = f.attempt_id AND s.lease_number = f.lease_number AND s.stream = $5
        AND s.truncated_at IS NULL
    RETURNING s.attempt_id, s.lease_number, s.next_offset
), cut AS (
    SELECT c.attempt_id, c.next_offset, f.id AS lease_id, f.lease_number, f.runner_instance_id
    FROM (TABLE opened UNION ALL TABLE marked) c JOIN fenced f USING (attempt_id, lease_number)
    WHERE NOT EXISTS (SELECT FROM log_streams o
        WHERE o.attempt_id = c.attempt_id AND o.truncated_at IS NOT NULL)
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + 1,
        last_event_at = fact_after(a.last_event_at), last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM cut c WHERE a.id = c.attempt_id
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid,
        c.lease_id, c.lease_number, c.runner_instance_id, c.next_offset
)
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
    feed_xid, created_at)
SELECT gen_random_uuid(), n.id, n.last_event_number, 'log_truncated',
    jsonb_build_object('lease_id', n.lease_id, 'lease_number', n.lease_number,
        'runner_instance_id', n.runner_instance_id, 'stream', $5::text,
        'next_offset', n.next_offset, 'limit_bytes', $6::bigint),
    n.last_feed_epoch, n.last_feed_xid, n.last_event_at
FROM noted n
"""


async def truncate_once(
    conn: Connection, key: Key, stream: str, limit_bytes: int, terms: Terms
) -> None:
    """Mark the stream as cut off at the attempt's limit; tell it once in the attempt's timeline."""
    await conn.execute(_LOCK_ATTEMPT, key.lease_id)
    await conn.execute(
        _TRUNCATE,
        key.lease_id,
        key.token_hash,
        terms.lease_time,
        terms.grace,
        stream,
        limit_bytes,
    )


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
