"""Statements that put many small objects of a finished log into few large ones.

The chunks' rows stay, with their numbers, sizes and digests; only where their bytes lie changes. So
whatever a reader has counted stays right, and a repeat finds what it repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection
from app.store.logs import Terms, grace_ends_at


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of one lease."""

    attempt_id: UUID
    lease_number: int
    stream: str


# Nothing can be appended any more: the attempt has ended, and so has the grace of all its leases.
_LIST_READY = f"""
-- log_merges.list_ready
SELECT s.attempt_id, s.lease_number, s.stream
FROM log_streams s JOIN execution_attempts a ON a.id = s.attempt_id
WHERE s.merged_at IS NULL AND a.finished_at <= clock_now() - $2::interval
    AND NOT EXISTS (SELECT FROM runner_leases l WHERE l.attempt_id = s.attempt_id
        AND (l.status = 'active' OR clock_now() < {grace_ends_at("$2::interval", "$1::interval")}))
ORDER BY s.created_at LIMIT $3
"""


async def list_ready(conn: Connection, terms: Terms, limit: int) -> list[Stream]:
    """At most `limit` streams that nobody has merged yet and that cannot grow any more."""
    rows = await conn.fetch(_LIST_READY, terms.lease_time, terms.grace, limit)
    return [Stream(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk with the object that holds it. `bound`: the object must stay what it is."""

    id: UUID
    arrival_number: int
    stream_offset: int
    byte_size: int
    artifact_id: UUID
    object_key: str
    digest: str
    bound: bool


# An object of several chunks is one that was merged before; one that is held, or that an evidence
# or an output names, is somebody's proof.
_LIST_CHUNKS = """
-- log_merges.list_chunks
SELECT r.id, r.arrival_number, r.stream_offset, r.byte_size, f.id AS artifact_id,
    f.key AS object_key, f.digest,
    f.state <> 'ready' OR f.held_at IS NOT NULL OR f.retention_class = 'legal_hold'
        OR f.byte_size <> r.byte_size
        OR EXISTS (SELECT FROM evidence_refs e WHERE e.artifact_ref_id = f.id)
        OR EXISTS (SELECT FROM runner_output_refs o WHERE o.artifact_ref_id = f.id) AS bound
FROM raw_log_refs r JOIN artifact_refs f ON f.id = r.artifact_ref_id
WHERE r.attempt_id = $1 AND r.lease_number = $2 AND r.stream = $3 AND r.arrival_number > $4
ORDER BY r.arrival_number LIMIT $5
"""


async def list_chunks(conn: Connection, of: Stream, after: int, limit: int) -> list[Chunk]:
    """At most `limit` chunks of the stream after that number, in order."""
    rows = await conn.fetch(_LIST_CHUNKS, of.attempt_id, of.lease_number, of.stream, after, limit)
    return [Chunk(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Merged:
    """The new object, and which chunks lie in it one behind the other."""

    artifact_id: UUID
    chunks: Sequence[Chunk]
    object_key: str
    digest: str
    byte_size: int


_LOCK = """
-- log_merges.lock
SELECT f.id FROM artifact_refs f WHERE f.id = ANY($1::uuid[]) AND f.state = 'ready'
    AND f.held_at IS NULL AND f.retention_class <> 'legal_hold' ORDER BY f.id FOR UPDATE
"""

# Whoever names an artifact locks its row against removal, so under the lock of all of them this
# statement's snapshot sees every evidence there will be. The old objects are removed later, by what
# removes all that is `removing`: a reader may still have one open.
_SWAP = """
-- log_merges.swap
WITH kept AS (
    INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size,
        retention_class, created_at, attempt_id, operation_id, state, expires_at)
    SELECT $1, f.storage, f.bucket, $2, f.content_type, $3, $4, f.retention_class, clock_fact(),
        f.attempt_id, f.operation_id, 'ready',
        (SELECT max(o.expires_at) FROM artifact_refs o WHERE o.id = ANY($6::uuid[]))
    FROM artifact_refs f WHERE f.id = ($6::uuid[])[1]
        AND NOT EXISTS (SELECT FROM evidence_refs e WHERE e.artifact_ref_id = ANY($6::uuid[]))
        AND NOT EXISTS (SELECT FROM runner_output_refs o WHERE o.artifact_ref_id = ANY($6::uuid[]))
    RETURNING id
), moved AS (
    UPDATE raw_log_refs r SET artifact_ref_id = k.id, object_offset = m.object_offset
    FROM kept k CROSS JOIN unnest($5::uuid[], $6::uuid[], $7::bigint[])
        AS m(id, artifact_id, object_offset)
    WHERE r.id = m.id AND r.artifact_ref_id = m.artifact_id
    RETURNING r.id
), dropped AS (
    UPDATE artifact_refs f SET state = 'removing', expires_at = clock_fact()
    FROM kept k WHERE f.id = ANY($6::uuid[])
)
SELECT count(*) FROM moved
"""


async def swap(conn: Connection, merged: Merged) -> int:
    """Let the chunks lie in the merged object, all of them or none; how many do now.

    None if one of their objects is held, named or being removed by now. A count between none and
    all must be rolled back.
    """
    artifacts = [chunk.artifact_id for chunk in merged.chunks]
    if len(await conn.fetch(_LOCK, artifacts)) < len(artifacts):
        return 0
    offsets, at = [], 0
    for chunk in merged.chunks:
        offsets.append(at)
        at += chunk.byte_size
    moved: int = await conn.fetchval(
        _SWAP,
        merged.artifact_id,
        merged.object_key,
        merged.digest,
        merged.byte_size,
        [chunk.id for chunk in merged.chunks],
        artifacts,
        offsets,
    )
    return moved


_MARK = """
-- log_merges.mark_merged
UPDATE log_streams SET merged_at = clock_fact()
WHERE attempt_id = $1 AND lease_number = $2 AND stream = $3 AND merged_at IS NULL
"""


async def mark_merged(conn: Connection, of: Stream) -> None:
    """Say that nothing of this stream is left to merge."""
    await conn.execute(_MARK, of.attempt_id, of.lease_number, of.stream)
