"""Statements that append to logs: `log_streams` is the only authority on what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.records import LogRef
from app.settings import LeaseSettings
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

    @classmethod
    def of(cls, settings: LeaseSettings) -> Terms:
        """The terms that the settings give."""
        return cls(
            timedelta(seconds=settings.lease_seconds), timedelta(seconds=settings.log_grace_seconds)
        )


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
SELECT i.place, a.id AS attempt_id, a.operation_id, l.lease_number, {_MAY_APPEND} AS writable,
    l.lease_token_hash = i.token_hash AS token_fits,
    coalesce(s.next_offset, 0) AS next_offset, coalesce(s.final, false) AS final,
    s.truncated_at IS NOT NULL AS truncated, t.truncated AS attempt_truncated, t.attempt_bytes
FROM unnest($1::uuid[], $2::text[], $5::text[]) WITH ORDINALITY
    AS i(lease_id, token_hash, stream, place)
JOIN runner_leases l ON l.id = i.lease_id JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN log_streams s ON s.attempt_id = a.id AND s.lease_number = l.lease_number
    AND s.stream = i.stream
CROSS JOIN LATERAL (
    SELECT coalesce(sum(o.stored_size), 0)::bigint AS attempt_bytes,
        coalesce(bool_or(o.truncated_at IS NOT NULL), false) AS truncated
    FROM log_streams o WHERE o.attempt_id = a.id) t
"""


async def look(
    conn: Connection, terms: Terms, asked: Sequence[tuple[Key, str]]
) -> list[Place | None]:
    """Where these streams of leases stand, by position; None: no such lease."""
    rows = await conn.fetch(
        _LOOK,
        [key.lease_id for key, _ in asked],
        [key.token_hash for key, _ in asked],
        terms.lease_time,
        terms.grace,
        [stream for _, stream in asked],
    )
    found = {
        row["place"]: Place(**{name: value for name, value in row.items() if name != "place"})
        for row in rows
    }
    return [found.get(place) for place in range(1, len(asked) + 1)]


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


@dataclass(frozen=True, slots=True)
class Recorded:
    """Whether the lease may write, and whether the chunk was appended."""

    fenced: bool
    accepted: bool


# The attempt's row is not written, so it is not locked: a sweep that ends the lease meanwhile is
# met at the lease's row. A chunk under a live lease is a sign of life and renews it; after its end
# the grace decides. The lease's row also counts the chunks, so their numbers grow in the order in
# which they become visible. Rows come from the stream's RETURNING, so of two uploads at one offset
# one writes and the other finds out.
_RECORD = f"""
-- logs.record
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $5::text[], $6::bigint[], $7::bigint[],
        $8::bigint[], $9::bigint[], $10::uuid[], $11::text[], $12::uuid[], $13::text[],
        $14::text[], $15::text[], $16::text[], $17::bool[])
    AS i(lease_id, token_hash, stream, at, raw_size, byte_size, line_count, ref_id, raw_hmac,
        artifact_id, digest, storage, bucket, object_key, final)
), locked AS (
    SELECT l.id FROM runner_leases l JOIN input i ON i.lease_id = l.id
    ORDER BY l.id FOR NO KEY UPDATE OF l
), fenced AS (
    UPDATE runner_leases l SET log_chunks = l.log_chunks + 1, expires_at = CASE l.status
        WHEN 'active' THEN greatest(l.expires_at, clock_now() + $3) ELSE l.expires_at END
    FROM input i JOIN locked k ON k.id = i.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND {_MAY_APPEND}
    RETURNING l.attempt_id, l.lease_number, l.log_chunks, i.*
), owner AS (
    SELECT f.*, a.operation_id FROM fenced f JOIN execution_attempts a ON a.id = f.attempt_id
), opened AS (
    INSERT INTO log_streams (attempt_id, lease_number, stream, next_offset, raw_size,
        stored_size, line_count, final, created_at, updated_at)
    SELECT o.attempt_id, o.lease_number, o.stream, o.raw_size, o.raw_size, o.byte_size,
        o.line_count, o.final, clock_fact(), clock_fact()
    FROM owner o WHERE o.at = 0
    ON CONFLICT DO NOTHING
    RETURNING attempt_id, lease_number
), advanced AS (
    UPDATE log_streams s SET next_offset = s.next_offset + o.raw_size,
        raw_size = s.raw_size + o.raw_size, stored_size = s.stored_size + o.byte_size,
        line_count = s.line_count + o.line_count, final = o.final, updated_at = clock_fact()
    FROM owner o
    WHERE s.attempt_id = o.attempt_id AND s.lease_number = o.lease_number AND s.stream = o.stream
        AND s.next_offset = o.at AND NOT s.final AND s.truncated_at IS NULL
    RETURNING s.attempt_id, s.lease_number
), accepted AS (
    SELECT o.* FROM owner o
    WHERE (o.attempt_id, o.lease_number) IN (TABLE opened UNION ALL TABLE advanced)
), kept AS (
    INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size,
        retention_class, created_at, attempt_id, operation_id, state)
    SELECT a.artifact_id, a.storage, a.bucket, a.object_key, 'application/octet-stream', a.digest,
        a.byte_size, 'normal', clock_fact(), a.attempt_id, a.operation_id, 'ready'
    FROM accepted a WHERE a.raw_size > 0
    RETURNING id
), noted AS (
    INSERT INTO raw_log_refs (id, attempt_id, stream, artifact_ref_id, byte_size, line_count,
        masked, created_at, lease_number, stream_offset, raw_size, raw_hmac, arrival_number)
    SELECT a.ref_id, a.attempt_id, a.stream, k.id, a.byte_size, a.line_count, true, clock_fact(),
        a.lease_number, a.at, a.raw_size, a.raw_hmac, a.log_chunks
    FROM accepted a JOIN kept k ON k.id = a.artifact_id
)
SELECT f.lease_id, EXISTS (SELECT FROM accepted a WHERE a.lease_id = f.lease_id) AS accepted
FROM fenced f
"""


async def record(
    conn: Connection, terms: Terms, chunks: Sequence[tuple[Key, Chunk]]
) -> list[Recorded]:
    """Append masked chunks whose lease may write and whose stream stands at their offset.

    At most one a lease. Outcomes by position.
    """
    keys, appended = [key for key, _ in chunks], [chunk for _, chunk in chunks]
    rows = await conn.fetch(
        _RECORD,
        [key.lease_id for key in keys],
        [key.token_hash for key in keys],
        terms.lease_time,
        terms.grace,
        [chunk.stream for chunk in appended],
        [chunk.offset for chunk in appended],
        [chunk.raw_size for chunk in appended],
        [chunk.byte_size for chunk in appended],
        [chunk.line_count for chunk in appended],
        [chunk.ref_id for chunk in appended],
        [chunk.raw_hmac for chunk in appended],
        [chunk.artifact_id for chunk in appended],
        [chunk.digest for chunk in appended],
        [chunk.storage for chunk in appended],
        [chunk.bucket for chunk in appended],
        [chunk.object_key for chunk in appended],
        [chunk.final for chunk in appended],
    )
    found = {row["lease_id"]: Recorded(fenced=True, accepted=row["accepted"]) for row in rows}
    return [found.get(key.lease_id, Recorded(fenced=False, accepted=False)) for key in keys]


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
