"""Statements of a claim: look without locks, lock the runner, pick and lease in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.records import Attempt, Lease
from app.store.attempts import COLUMNS
from app.store.database import Connection

LEASE_COLUMNS = """l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.session_id,
    l.status, l.phase, l.progress_percent, l.created_at, l.started_at, l.expires_at,
    l.released_at"""

# An attempt stays away from the runner that did not start it, and after the fourth such lease in
# a row from every runner, until its back-off has passed.
_NOT_BACKING_OFF = """(h.backoff_until IS NULL OR h.backoff_until <= clock_now()
    OR h.backoff_runner_id <> $2)"""


@dataclass(frozen=True, slots=True)
class Look:
    """What a claim sees before it takes any lock."""

    class_version: int
    request_used: bool
    available: bool


_LOOK = """
-- claims.look
SELECT v.version,
    EXISTS (SELECT FROM runner_leases l WHERE l.runner_instance_id = $2 AND l.session_id = $3
        AND l.claim_request_id = $4) AS used,
    EXISTS (SELECT FROM unnest($5::uuid[]) c(id) CROSS JOIN LATERAL (
        SELECT FROM execution_attempts a WHERE a.claimable AND a.placement_class_id = c.id
        LIMIT 1) h) AS available
FROM placement_class_versions v WHERE v.runner_kind = $1
"""


async def look(
    conn: Connection,
    runner_kind: str,
    runner_id: str,
    session_id: UUID,
    request_id: UUID,
    classes: Sequence[UUID],
) -> Look:
    """Whether there may be anything for this claim. Takes no lock, costs one probe a class."""
    row = await conn.fetchrow(_LOOK, runner_kind, runner_id, session_id, request_id, list(classes))
    assert row is not None  # noqa: S101 - a first row of the schema, one a kind
    return Look(row["version"], row["used"], row["available"])


@dataclass(frozen=True, slots=True)
class PlacementClass:
    """One set of demands that attempts make of a runner."""

    id: UUID
    job_type: str
    zone: str | None
    labels: str


_LIST_CLASSES = """
-- claims.list_classes
SELECT v.version, c.id, c.job_type, c.zone, c.labels
FROM placement_class_versions v LEFT JOIN placement_classes c ON c.runner_kind = v.runner_kind
WHERE v.runner_kind = $1
"""


async def list_classes(conn: Connection, runner_kind: str) -> tuple[int, list[PlacementClass]]:
    """All placement classes of a kind, with the version that they were read at."""
    rows = await conn.fetch(_LIST_CLASSES, runner_kind)
    classes = [
        PlacementClass(row["id"], row["job_type"], row["zone"], row["labels"])
        for row in rows
        if row["id"] is not None
    ]
    return rows[0]["version"], classes


@dataclass(frozen=True, slots=True)
class LockedRunner:
    """A runner's row, locked until the transaction ends."""

    session_id: UUID
    drained: bool
    lapsed_claims: int
    status: str
    capacity_total: int


# A claim is a sign of life, written at most every five seconds: the row is locked anyway, but a
# version of it for each empty-handed claim would be waste.
_LOCK_RUNNER = """
-- claims.lock_runner
WITH locked AS (
    SELECT r.id, r.session_id, r.drained_at, r.lapsed_claims, r.last_seen_at
    FROM runner_instances r WHERE r.id = $1 FOR NO KEY UPDATE
), seen AS (
    UPDATE runner_instances r SET last_seen_at = clock_fact() FROM locked k
    WHERE r.id = k.id AND k.session_id = $2 AND k.last_seen_at < clock_fact() - interval '5 s'
)
SELECT k.session_id, k.drained_at IS NOT NULL AS drained, k.lapsed_claims, s.status,
    s.capacity_total
FROM locked k JOIN runner_statuses s ON s.runner_instance_id = k.id
"""


async def lock_runner(conn: Connection, runner_id: str, session_id: UUID) -> LockedRunner | None:
    """Lock the runner's row and read what decides whether it may claim; None: not registered."""
    row = await conn.fetchrow(_LOCK_RUNNER, runner_id, session_id)
    return None if row is None else LockedRunner(**dict(row))


@dataclass(frozen=True, slots=True)
class Leased:
    """One lease together with its attempt."""

    lease: Lease
    attempt: Attempt
    token_key_id: str
    continuation: bool


_LIST_OF_REQUEST = f"""
-- claims.list_of_request
SELECT {LEASE_COLUMNS}, l.token_key_id, l.created_at AS lease_created_at,
    l.started_at AS lease_started_at, l.status AS lease_status, l.id AS lease_id,
    l.runner_instance_id AS lease_runner_id, {COLUMNS}
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
WHERE l.runner_instance_id = $1 AND l.session_id = $2 AND l.claim_request_id = $3
ORDER BY a.priority, a.created_at, a.id
"""


async def list_of_request(
    conn: Connection, runner_id: str, session_id: UUID, request_id: UUID
) -> list[Leased]:
    """The leases that this claim request was given, whatever became of them."""
    rows = await conn.fetch(_LIST_OF_REQUEST, runner_id, session_id, request_id)
    return [_leased(dict(row)) for row in rows]


# The room is counted after the runner's row was locked (in an earlier statement, so that this
# snapshot sees what the waiter before us committed). Heads are read without locks; the best are
# locked in order of priority, passing over what another claim is taking, and checked again.
_LEASE = f"""
-- claims.lease
WITH room AS (
    SELECT least($3::int, $4::int - count(*)) AS n FROM runner_leases l
    WHERE l.runner_instance_id = $2 AND l.status = 'active'
), heads AS (
    SELECT h.id, h.priority, h.created_at FROM unnest($1::uuid[]) c(id) CROSS JOIN LATERAL (
        SELECT h.id, h.priority, h.created_at FROM (
            SELECT a.id, a.priority, a.created_at, a.backoff_until, a.backoff_runner_id
            FROM execution_attempts a WHERE a.claimable AND a.placement_class_id = c.id
            ORDER BY a.priority, a.created_at, a.id LIMIT 10 * $5::int) h
        WHERE {_NOT_BACKING_OFF} LIMIT $5::int) h
), best AS (
    SELECT id, priority, created_at FROM heads ORDER BY priority, created_at, id
    LIMIT $3::int + 64
), locked AS (
    SELECT h.id, h.priority, h.created_at, h.concurrency_key, h.status, h.last_lease_number,
        h.last_event_at
    FROM best b JOIN execution_attempts h ON h.id = b.id
    WHERE h.claimable AND {_NOT_BACKING_OFF}
    ORDER BY b.priority, b.created_at, b.id
    LIMIT greatest((SELECT n FROM room), 0)
    FOR NO KEY UPDATE OF h SKIP LOCKED
), candidates AS (
    SELECT DISTINCT ON (coalesce('k' || concurrency_key, 'i' || id)) * FROM locked
    ORDER BY coalesce('k' || concurrency_key, 'i' || id), status = 'queued', priority,
        created_at, id
), kept AS (
    UPDATE concurrency_holds h SET lease_number = c.last_lease_number + 1
    FROM candidates c
    WHERE h.concurrency_key = c.concurrency_key AND h.attempt_id = c.id
    RETURNING h.attempt_id
), taken AS (
    INSERT INTO concurrency_holds (concurrency_key, attempt_id, lease_number, held_at)
    SELECT c.concurrency_key, c.id, c.last_lease_number + 1, clock_fact() FROM candidates c
    WHERE c.concurrency_key IS NOT NULL AND NOT EXISTS (SELECT FROM kept WHERE attempt_id = c.id)
    ORDER BY c.concurrency_key
    ON CONFLICT (concurrency_key) DO NOTHING
    RETURNING attempt_id
), won AS (
    SELECT c.*, row_number() OVER (ORDER BY c.priority, c.created_at, c.id) AS position,
        t.at
    FROM candidates c CROSS JOIN LATERAL (SELECT fact_after(c.last_event_at) AS at) t
    WHERE c.concurrency_key IS NULL OR c.id IN (SELECT attempt_id FROM kept UNION ALL
        SELECT attempt_id FROM taken)
), refused AS (
    UPDATE execution_attempts a SET claimable = false
    FROM locked k WHERE a.id = k.id AND k.concurrency_key IS NOT NULL AND k.status = 'queued'
        AND k.id NOT IN (SELECT id FROM won)
), made AS (
    INSERT INTO runner_leases AS l (id, attempt_id, runner_instance_id, lease_token_hash,
        token_key_id, status, expires_at, created_at, lease_number, session_id,
        claim_request_id, check_at)
    SELECT n.lease_id, w.id, $2, n.token_hash, $8, 'active', clock_now() + $9, w.at,
        w.last_lease_number + 1, $10, $11, clock_now() + $9
    FROM won w JOIN unnest($6::uuid[], $7::text[]) WITH ORDINALITY
        AS n(lease_id, token_hash, position) ON n.position = w.position
    RETURNING {LEASE_COLUMNS}
), moved AS (
    UPDATE execution_attempts a SET status = CASE a.status WHEN 'queued' THEN 'leased'
            ELSE a.status END,
        claimable = false, runner_instance_id = $2, leased_at = coalesce(a.leased_at, w.at),
        last_lease_number = a.last_lease_number + 1,
        limit_at = CASE a.status WHEN 'queued' THEN w.at + $12
            WHEN 'leased' THEN coalesce(a.limit_at, w.at + $12)
            ELSE a.started_at + make_interval(secs => a.timeout_seconds) END,
        last_event_number = a.last_event_number + 1, last_event_at = w.at,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM won w WHERE a.id = w.id
    RETURNING {COLUMNS}, a.last_event_number, a.last_event_at, a.last_feed_epoch,
        a.last_feed_xid, w.status <> 'queued' AS continuation
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), a.id, a.last_event_number, 'leased', jsonb_build_object(
            'lease_id', l.id, 'lease_number', l.lease_number, 'runner_instance_id', $2,
            'continuation', a.continuation),
        a.last_feed_epoch, a.last_feed_xid, a.last_event_at
    FROM moved a JOIN made l ON l.attempt_id = a.id
)
SELECT {LEASE_COLUMNS}, $8 AS token_key_id, l.created_at AS lease_created_at,
    l.started_at AS lease_started_at, l.status AS lease_status, l.id AS lease_id,
    l.runner_instance_id AS lease_runner_id, {COLUMNS}, a.continuation
FROM moved a JOIN made l ON l.attempt_id = a.id ORDER BY a.priority, a.created_at, a.id
"""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What a claim's leases are made of; ids and token hashes for as many as may be given."""

    lease_ids: Sequence[UUID]
    token_hashes: Sequence[str]
    token_key_id: str
    claim_grace: timedelta
    start_timeout: timedelta


async def lease(
    conn: Connection,
    classes: Sequence[UUID],
    runner_id: str,
    session_id: UUID,
    request_id: UUID,
    capacity: int,
    terms: LeaseTerms,
) -> list[Leased]:
    """Lease the most urgent claimable attempts of these classes, within the runner's free room.

    The caller holds the runner's row. Each attempt goes to one claim only, whoever runs beside.
    """
    wanted = len(terms.lease_ids)
    rows = await conn.fetch(
        _LEASE,
        list(classes),
        runner_id,
        wanted,
        capacity,
        wanted + max(1, 64 // max(1, len(classes))),
        list(terms.lease_ids),
        list(terms.token_hashes),
        terms.token_key_id,
        terms.claim_grace,
        session_id,
        request_id,
        terms.start_timeout,
    )
    return [_leased(dict(row)) for row in rows]


def _leased(row: dict[str, object]) -> Leased:
    times: dict[str, datetime | object] = {
        "id": row["lease_id"],
        "runner_instance_id": row["lease_runner_id"],
        "status": row["lease_status"],
        "created_at": row["lease_created_at"],
        "started_at": row["lease_started_at"],
    }
    attempt = Attempt.model_validate(row | {"id": row["attempt_id"]})
    held = Lease.model_validate(row | times)
    continuation = row.get("continuation", held.lease_number > 1)
    return Leased(held, attempt, str(row["token_key_id"]), bool(continuation))
