"""Statements of a claim: look without locks, lock the runner, pick and lease in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.records import Attempt, Lease
from app.store.attempts import COLUMNS
from app.store.database import Connection
from app.store.floors import NO_FLOORS, Place, begins

LEASE_COLUMNS = """l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.session_id,
    l.status, l.phase, l.progress_percent, l.created_at, l.started_at, l.expires_at,
    l.released_at"""

# An attempt stays away from the runner that did not start it, and after the fourth such lease in
# a row from every runner, until its back-off has passed. What is dealt out among several runners
# leaves out all that backs off.
_NOT_BACKING_OFF = """(h.backoff_until IS NULL OR h.backoff_until <= clock_now()
    OR (cardinality($2::text[]) = 1 AND h.backoff_runner_id <> ($2::text[])[1]))"""


@dataclass(frozen=True, slots=True)
class Asked:
    """Who claims, and what: `wanted` leases at most, within the runner's `capacity`."""

    runner_id: str
    session_id: UUID
    request_id: UUID
    wanted: int = 1
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What a claim sees before it takes any lock."""

    class_version: int
    runner_session: UUID | None
    """The runner's session now; None: not registered."""
    session_known: bool
    """Whether the claim's session was ever registered."""
    request_used: bool
    available: bool


_LOOK = """
-- claims.look
WITH asked AS (
    SELECT * FROM unnest($2::text[], $3::uuid[], $4::uuid[]) WITH ORDINALITY
    AS i(runner_id, session_id, request_id, position)
), there AS (
    SELECT v.version,
        EXISTS (SELECT FROM unnest($5::uuid[], $6::int[], $7::timestamptz[], $8::uuid[])
                c(id, priority, created_at, attempt_id) CROSS JOIN LATERAL (
            SELECT FROM execution_attempts a WHERE a.claimable AND a.placement_class_id = c.id
                AND (a.priority, a.created_at, a.id) >= (c.priority, c.created_at, c.attempt_id)
            LIMIT 1) h) AS available
    FROM placement_class_versions v WHERE v.runner_kind = $1
)
SELECT t.version, r.session_id,
    EXISTS (SELECT FROM runner_sessions p WHERE p.runner_instance_id = i.runner_id
        AND p.session_id = i.session_id) AS known,
    EXISTS (SELECT FROM runner_leases l WHERE l.runner_instance_id = i.runner_id
        AND l.session_id = i.session_id AND l.claim_request_id = i.request_id) AS used,
    t.available
FROM asked i CROSS JOIN there t LEFT JOIN runner_instances r ON r.id = i.runner_id
ORDER BY i.position
"""


async def look(
    conn: Connection,
    runner_kind: str,
    asked: Sequence[Asked],
    classes: Sequence[UUID],
    floors: Mapping[UUID, Place] = NO_FLOORS,
) -> list[Look]:
    """Whether there may be anything for these claims, by position. Takes no lock.

    Costs one probe a class, however many claims read them. `floors`: by class, what is passed over.
    """
    rows = await conn.fetch(
        _LOOK,
        runner_kind,
        [one.runner_id for one in asked],
        [one.session_id for one in asked],
        [one.request_id for one in asked],
        list(classes),
        *begins(classes, floors),
    )
    return [
        Look(row["version"], row["session_id"], row["known"], row["used"], row["available"])
        for row in rows
    ]


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
_LOCK_RUNNERS = """
-- claims.lock_runners
WITH locked AS (
    SELECT r.id, r.session_id, r.drained_at, r.lapsed_claims, r.last_seen_at
    FROM runner_instances r WHERE r.id = ANY($1::text[]) ORDER BY r.id FOR NO KEY UPDATE
), seen AS (
    UPDATE runner_instances r SET last_seen_at = clock_fact()
    FROM locked k JOIN unnest($1::text[], $2::uuid[]) i(runner_id, session_id)
        ON i.runner_id = k.id
    WHERE r.id = k.id AND k.session_id = i.session_id
        AND k.last_seen_at < clock_fact() - interval '5 s'
)
SELECT k.id, k.session_id, k.drained_at IS NOT NULL AS drained, k.lapsed_claims, s.status,
    s.capacity_total
FROM locked k JOIN runner_statuses s ON s.runner_instance_id = k.id
"""


async def lock_runners(conn: Connection, asked: Sequence[Asked]) -> dict[str, LockedRunner]:
    """Lock these runners' rows, by id, and read what decides whether they may claim."""
    rows = await conn.fetch(
        _LOCK_RUNNERS, [one.runner_id for one in asked], [one.session_id for one in asked]
    )
    return {
        row["id"]: LockedRunner(
            row["session_id"],
            row["drained"],
            row["lapsed_claims"],
            row["status"],
            row["capacity_total"],
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class Leased:
    """One lease together with its attempt."""

    lease: Lease
    attempt: Attempt
    token_key_id: str
    continuation: bool


_LIST_OF_REQUESTS = f"""
-- claims.list_of_requests
SELECT i.position, {LEASE_COLUMNS}, l.token_key_id, l.created_at AS lease_created_at,
    l.started_at AS lease_started_at, l.status AS lease_status, l.id AS lease_id,
    l.runner_instance_id AS lease_runner_id, {COLUMNS}
FROM unnest($1::text[], $2::uuid[], $3::uuid[]) WITH ORDINALITY
    AS i(runner_id, session_id, request_id, position)
JOIN runner_leases l ON l.runner_instance_id = i.runner_id AND l.session_id = i.session_id
    AND l.claim_request_id = i.request_id
JOIN execution_attempts a ON a.id = l.attempt_id
ORDER BY a.priority, a.created_at, a.id
"""


async def list_of_requests(conn: Connection, asked: Sequence[Asked]) -> list[list[Leased]]:
    """The leases that these claim requests were given before, whatever became of them."""
    rows = await conn.fetch(
        _LIST_OF_REQUESTS,
        [one.runner_id for one in asked],
        [one.session_id for one in asked],
        [one.request_id for one in asked],
    )
    given: list[list[Leased]] = [[] for _ in asked]
    for row in rows:
        given[row["position"] - 1].append(_leased(dict(row)))
    return given


# The room is counted after the runners' rows were locked (in an earlier statement, so that this
# snapshot sees what the waiters before us committed). Heads are read without locks; the best are
# locked in order of priority, passing over what another claim is taking, and checked again. They
# are dealt out by their place: every claim gets a first one before any gets a second. Claims that
# picked one after the other in this statement would pick the same rows, for one's own locks are
# not passed over. The sub-selects are there for plans, see `store/leases.py`.
_LEASE = f"""
-- claims.lease
WITH asked AS (
    SELECT * FROM unnest($2::text[], $9::uuid[], $10::uuid[], $3::int[], $4::int[])
        WITH ORDINALITY AS i(runner_id, session_id, request_id, wanted, capacity, claim)
), room AS (
    SELECT i.*, least(i.wanted, i.capacity - (
        SELECT count(*) FROM runner_leases l
        WHERE l.runner_instance_id = i.runner_id AND l.status = (SELECT 'active')))::int AS free
    FROM asked i
), slots AS (
    SELECT r.claim, r.runner_id, r.session_id, r.request_id, s.turn,
        row_number() OVER (ORDER BY s.turn, r.claim) AS position
    FROM room r CROSS JOIN LATERAL generate_series(1, r.free) s(turn)
), heads AS (
    SELECT h.id, h.priority, h.created_at
    FROM unnest($1::uuid[], $13::int[], $14::timestamptz[], $15::uuid[])
        c(id, priority, created_at, attempt_id) CROSS JOIN LATERAL (
        SELECT h.id, h.priority, h.created_at FROM (
            SELECT a.id, a.priority, a.created_at, a.backoff_until, a.backoff_runner_id
            FROM execution_attempts a WHERE a.claimable AND a.placement_class_id = c.id
                AND (a.priority, a.created_at, a.id) >= (c.priority, c.created_at, c.attempt_id)
            ORDER BY a.priority, a.created_at, a.id LIMIT 10 * $5::int) h
        WHERE {_NOT_BACKING_OFF} LIMIT $5::int) h
), best AS (
    SELECT id, priority, created_at FROM heads ORDER BY priority, created_at, id
    LIMIT $5::int + 64
), locked AS (
    SELECT h.id, h.priority, h.created_at, h.concurrency_key, h.status, h.last_lease_number,
        h.last_event_at
    FROM best b JOIN execution_attempts h ON h.id = b.id
    WHERE h.claimable = (SELECT true) AND {_NOT_BACKING_OFF}
    ORDER BY b.priority, b.created_at, b.id
    LIMIT (SELECT count(*) FROM slots)
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
    SELECT n.lease_id, w.id, s.runner_id, n.token_hash, $8, 'active', clock_now() + $11, w.at,
        w.last_lease_number + 1, s.session_id, s.request_id, clock_now() + $11
    FROM won w JOIN slots s ON s.position = w.position
    JOIN unnest($6::uuid[], $7::text[]) WITH ORDINALITY
        AS n(lease_id, token_hash, position) ON n.position = w.position
    RETURNING {LEASE_COLUMNS}
), moved AS (
    UPDATE execution_attempts a SET status = CASE a.status WHEN 'queued' THEN 'leased'
            ELSE a.status END,
        claimable = false, runner_instance_id = s.runner_id,
        leased_at = coalesce(a.leased_at, w.at),
        last_lease_number = a.last_lease_number + 1,
        limit_at = CASE a.status WHEN 'queued' THEN w.at + $12
            WHEN 'leased' THEN coalesce(a.limit_at, w.at + $12)
            ELSE a.started_at + make_interval(secs => a.timeout_seconds) END,
        last_event_number = a.last_event_number + 1, last_event_at = w.at,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM won w JOIN slots s ON s.position = w.position WHERE a.id = w.id
    RETURNING {COLUMNS}, a.last_event_number, a.last_event_at, a.last_feed_epoch,
        a.last_feed_xid, w.status <> 'queued' AS continuation, s.claim
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), a.id, a.last_event_number, 'leased', jsonb_build_object(
            'lease_id', l.id, 'lease_number', l.lease_number,
            'runner_instance_id', l.runner_instance_id, 'continuation', a.continuation),
        a.last_feed_epoch, a.last_feed_xid, a.last_event_at
    FROM moved a JOIN made l ON l.attempt_id = a.id
)
SELECT a.claim, {LEASE_COLUMNS}, $8 AS token_key_id, l.created_at AS lease_created_at,
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
    asked: Sequence[Asked],
    terms: LeaseTerms,
    floors: Mapping[UUID, Place] = NO_FLOORS,
) -> list[list[Leased]]:
    """Lease the most urgent claimable attempts of these classes, within each runner's free room.

    By position of the claims, at most one a runner; the caller holds the runners' rows. Each
    attempt goes to one claim only, whoever runs beside.
    """
    wanted = len(terms.lease_ids)
    rows = await conn.fetch(
        _LEASE,
        list(classes),
        [one.runner_id for one in asked],
        [one.wanted for one in asked],
        [one.capacity for one in asked],
        wanted + max(1, 64 // max(1, len(classes))),
        list(terms.lease_ids),
        list(terms.token_hashes),
        terms.token_key_id,
        [one.session_id for one in asked],
        [one.request_id for one in asked],
        terms.claim_grace,
        terms.start_timeout,
        *begins(classes, floors),
    )
    leased: list[list[Leased]] = [[] for _ in asked]
    for row in rows:
        leased[row["claim"] - 1].append(_leased(dict(row)))
    return leased


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
