"""Statements on `artifact_refs`, and the part of a recording that outputs and evidence share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.records import Artifact
from app.store.database import Connection
from app.store.leases import Key

COLUMNS = """r.id, r.attempt_id, r.operation_id, r.name, r.content_type, r.digest, r.byte_size,
    r.retention_class, r.state, r.storage, r.bucket, r.key, r.created_at,
    nullif(r.expires_at, 'infinity') AS expires_at, r.held_at"""


_FIND = f"""
-- artifacts.find
SELECT {COLUMNS} FROM artifact_refs r WHERE r.id = $1
"""


async def find(conn: Connection, artifact_id: UUID) -> Artifact | None:
    """The artifact, or None."""
    row = await conn.fetchrow(_FIND, artifact_id)
    return None if row is None else Artifact.model_validate(dict(row))


# Not the chunks of logs: those are merged into others.
_FIND_KNOWN = """
-- artifacts.find_known
SELECT r.key FROM artifact_refs r
WHERE r.operation_id = $1 AND r.digest = $2 AND r.byte_size = $3 AND r.retention_class = $4
    AND r.storage = $5 AND r.bucket = $6 AND r.state = 'ready'
    AND NOT EXISTS (SELECT FROM raw_log_refs g WHERE g.artifact_ref_id = r.id)
ORDER BY r.created_at DESC LIMIT 1
"""


async def find_known(
    conn: Connection,
    operation_id: UUID,
    digest: str,
    byte_size: int,
    retention_class: str,
    place: tuple[str, str],
) -> str | None:
    """The key of an object of this operation with these bytes, of the same class, or None.

    `place`: kind of store and bucket.
    """
    found: str | None = await conn.fetchval(
        _FIND_KNOWN, operation_id, digest, byte_size, retention_class, *place
    )
    return found


@dataclass(frozen=True, slots=True)
class Fenced:
    """A lease that lives and was renewed; its attempt's row is locked."""

    attempt_id: UUID
    lease_id: UUID
    lease_number: int
    runner_instance_id: str


# The attempt first, as for every event, then the lease as the target of an UPDATE. Both stay locked
# until the commit, so what the next statement reads of this attempt cannot change any more.
_FENCE = """
-- artifacts.fence
WITH target AS (
    SELECT a.id, l.id AS lease_id FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id
    WHERE l.id = $1 AND (a.status IN ('leased', 'running')) IS TRUE
    ORDER BY a.id FOR NO KEY UPDATE OF a
)
UPDATE runner_leases l SET expires_at = greatest(l.expires_at, clock_now() + $3)
FROM target t
WHERE l.id = t.lease_id AND l.lease_token_hash = $2 AND l.status = (SELECT 'active')
RETURNING l.attempt_id, l.id AS lease_id, l.lease_number, l.runner_instance_id
"""


async def fence(conn: Connection, key: Key, lease_time: timedelta) -> Fenced | None:
    """Lock the attempt, renew the lease; None: it does not live, or the token does not fit."""
    row = await conn.fetchrow(_FENCE, key.lease_id, key.token_hash, lease_time)
    return None if row is None else Fenced(**dict(row))


# Needs `allowed`, which has one row if the recording may go on, and $1 attempt, $2 artifact,
# $3 lease, $4 lease number, $5 runner. `pointed` is the artifact, made from its ticket or found.
# A ticket on a known object needs a row of that object that is not being removed: it is locked, so
# that whoever marks it for removal waits, and then finds the new row with its next look.
POINTED = """known AS (
    SELECT r.id FROM artifact_uploads u
    JOIN artifact_refs r ON r.bucket = u.bucket AND r.key = u.key
    WHERE u.id = $2 AND u.method = 'known' AND r.state = 'ready'
    ORDER BY r.id FOR SHARE OF r
), ticket AS (
    UPDATE artifact_uploads u SET closed_at = clock_fact(), closed_reason = 'recorded'
    FROM allowed
    WHERE u.id = $2 AND u.attempt_id = $1 AND u.closed_at IS NULL AND u.verified_at IS NOT NULL
        AND (u.method <> 'known' OR EXISTS (SELECT FROM known))
    RETURNING u.id, u.storage, u.bucket, u.key, u.content_type, u.digest, u.byte_size,
        u.retention_class, u.attempt_id, u.operation_id, u.name
), made AS (
    INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size,
        retention_class, created_at, attempt_id, operation_id, state, name)
    SELECT t.id, t.storage, t.bucket, t.key, t.content_type, t.digest, t.byte_size,
        t.retention_class, clock_fact(), t.attempt_id, t.operation_id, 'ready', t.name
    FROM ticket t
    RETURNING id, digest, byte_size, content_type, retention_class, name
), found AS (
    SELECT r.id, r.digest FROM allowed, artifact_refs r
    WHERE r.id = $2 AND r.attempt_id = $1 AND r.state = 'ready'
    FOR SHARE OF r
), pointed AS (
    SELECT m.id, m.digest FROM made m UNION ALL SELECT f.id, f.digest FROM found f
)"""

# Needs `recorded` (one row if something was written, with its `facts` as jsonb) and the event's
# type as $6. An artifact that was made tells its own event before that.
TOLD = """moment AS MATERIALIZED (
    SELECT a.id, fact_after(a.last_event_at) AS at FROM execution_attempts a WHERE a.id = $1
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + 1
            + (SELECT count(*) FROM made)::int,
        last_event_at = t.at, last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM moment t, recorded
    WHERE a.id = t.id
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid
), facts AS (
    SELECT 1 AS back, 'artifact_created' AS event_type, jsonb_build_object('artifact_id', m.id,
        'name', m.name, 'digest', m.digest, 'byte_size', m.byte_size,
        'content_type', m.content_type, 'retention_class', m.retention_class) AS facts
    FROM made m UNION ALL SELECT 0, $6::text, r.facts FROM recorded r
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), n.id, n.last_event_number - f.back, f.event_type,
        jsonb_strip_nulls(f.facts || jsonb_build_object('lease_id', $3::uuid,
            'lease_number', $4::int, 'runner_instance_id', $5::text)),
        n.last_feed_epoch, n.last_feed_xid, n.last_event_at
    FROM noted n CROSS JOIN facts f
)"""
