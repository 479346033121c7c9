"""The end of a lease without its runner's completion, decided in one place for every cause.

Expiry, revocation and release differ in the word that is written; what follows for the attempt
(a further lease, or `lost`) is the same function of its row. Sweeps repeat status and expiry in
the WHERE of their own UPDATE, and events are written only for rows that were changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.lifecycle import FailureCategory, LeaseStatus, Status
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide what follows the end of a lease."""

    start_timeout: timedelta
    cancel_grace: timedelta
    max_started_leases: int
    resumable: Sequence[str]
    """LIKE patterns of job types that may be begun again."""


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """What became of one lease and its attempt."""

    lease_id: UUID
    attempt_id: UUID
    attempt_status: Status
    failure_category: FailureCategory | None
    continues: bool
    concurrency_key: str | None
    runner_instance_id: str
    started: bool
    runner_kind: str


_DECIDED = """SELECT e.id AS lease_id, e.attempt_id, e.lease_number, e.runner_instance_id,
        e.started_at IS NOT NULL AS started, e.released_at AS at, t.status, t.started_at,
        t.timeout_seconds,
        CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN t.status = 'leased' THEN NULL
            WHEN t.job_type LIKE ANY ($5::text[]) AND (e.started_at IS NOT NULL)::int + (
                SELECT count(*) FROM runner_leases p WHERE p.attempt_id = e.attempt_id
                    AND p.id <> e.id AND p.started_at IS NOT NULL) < $6 THEN NULL
            ELSE 'heartbeat_lost' END AS category,
        (e.started_at IS NOT NULL AND $2 <> 'released')::int AS without_word,
        CASE WHEN e.started_at IS NULL AND $7 THEN t.unstarted_leases + 1
            ELSE t.unstarted_leases END AS unstarted,
        (SELECT min(p.created_at) FROM runner_leases p WHERE p.attempt_id = e.attempt_id
            AND p.status <> 'released' AND ($2 <> 'released' OR p.id <> e.id)) AS first_kept
    FROM ended e JOIN target t ON t.id = e.attempt_id"""

_STATEMENT = f"""
-- ends.{{name}}
WITH target AS (
    SELECT a.id, a.status, a.job_type, a.last_event_at, a.cancel_requested_at, a.started_at,
        a.timeout_seconds, a.unstarted_leases, l.id AS lease_id
    FROM execution_attempts a JOIN runner_leases l ON l.attempt_id = a.id
    WHERE l.id = ANY($1::uuid[]) AND a.status IN ('leased', 'running')
    ORDER BY a.id FOR NO KEY UPDATE OF a {{skip}}
), ended AS (
    UPDATE runner_leases l SET status = $2, released_at = fact_after(t.last_event_at)
    FROM target t WHERE l.id = t.lease_id AND l.status = 'active' {{still}}
    RETURNING l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.started_at,
        l.released_at
), decided AS (
    {_DECIDED}
), moved AS (
    UPDATE execution_attempts a SET
        status = CASE WHEN d.category IS NULL THEN a.status ELSE 'lost' END,
        failure_category = d.category,
        failure_message = CASE WHEN d.category IS NULL THEN NULL ELSE $3 END,
        finished_at = CASE WHEN d.category IS NULL THEN NULL ELSE d.at END,
        unconfirmed_leases = a.unconfirmed_leases + d.without_word,
        stop_confirmed = CASE WHEN d.category IS NULL THEN NULL
            ELSE a.unconfirmed_leases + d.without_word = 0 END,
        claimable = d.category IS NULL, unstarted_leases = d.unstarted,
        backoff_runner_id = CASE WHEN d.unstarted = a.unstarted_leases THEN a.backoff_runner_id
            WHEN d.unstarted < 4 THEN d.runner_instance_id END,
        backoff_until = CASE WHEN d.unstarted = a.unstarted_leases THEN a.backoff_until
            ELSE d.at + least(interval '10 s' * power(2, d.unstarted - 1), interval '300 s') END,
        limit_at = CASE WHEN d.category IS NOT NULL THEN NULL
            WHEN a.status = 'leased' THEN d.first_kept + $4
            ELSE least(a.started_at + make_interval(secs => a.timeout_seconds), d.at + $4) END,
        last_event_number = a.last_event_number + 1 + (d.category IS NOT NULL)::int,
        last_event_at = d.at, last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM decided d WHERE a.id = d.attempt_id
    RETURNING a.id, a.status, a.failure_category, a.failure_message, a.stop_confirmed,
        a.concurrency_key, a.runner_kind, a.last_event_number, a.last_event_at,
        a.last_feed_epoch, a.last_feed_xid, d.lease_id, d.lease_number, d.runner_instance_id,
        d.started, d.category
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), m.id, m.last_event_number - (m.category IS NOT NULL)::int,
        'lease_' || $2, jsonb_strip_nulls(jsonb_build_object('lease_id', m.lease_id,
            'lease_number', m.lease_number, 'runner_instance_id', m.runner_instance_id,
            'started', m.started, 'continues', m.category IS NULL, 'reason', $8::text)),
        m.last_feed_epoch, m.last_feed_xid, m.last_event_at
    FROM moved m
    UNION ALL
    SELECT gen_random_uuid(), m.id, m.last_event_number, 'lost', jsonb_strip_nulls(
            jsonb_build_object('lease_id', m.lease_id, 'lease_number', m.lease_number,
            'runner_instance_id', m.runner_instance_id, 'failure_category', m.failure_category,
            'failure_message', m.failure_message, 'stop_confirmed', m.stop_confirmed)),
        m.last_feed_epoch, m.last_feed_xid, m.last_event_at
    FROM moved m WHERE m.category IS NOT NULL
), freed AS (
    DELETE FROM concurrency_holds h USING moved m
    WHERE h.concurrency_key = m.concurrency_key AND h.attempt_id = m.id AND m.stop_confirmed
), kept AS (
    UPDATE concurrency_holds h SET attempt_ended_at = m.last_event_at FROM moved m
    WHERE h.concurrency_key = m.concurrency_key AND h.attempt_id = m.id AND NOT m.stop_confirmed
)
SELECT m.lease_id, m.id AS attempt_id, m.status AS attempt_status, m.failure_category,
    m.category IS NULL AS continues, m.concurrency_key, m.runner_instance_id, m.started,
    m.runner_kind
FROM moved m
"""

_EXPIRE = _STATEMENT.format(
    name="expire", skip="SKIP LOCKED", still="AND l.expires_at <= clock_now()"
)
_END = _STATEMENT.format(name="end", skip="", still="")


async def end_leases(
    conn: Connection,
    lease_ids: Sequence[UUID],
    status: LeaseStatus,
    rules: Rules,
    *,
    message: str,
    reason: str | None = None,
    backs_off: bool = True,
) -> list[LeaseEnd]:
    """End these leases if they are active; an `expired` one only if it really has expired.

    `message` is the failure message of attempts that end by it, `reason` goes into the lease's
    event. Leases that somebody else is working on are left to the next pass by an expiry, and
    waited for by anything else.
    """
    rows = await conn.fetch(
        _EXPIRE if status is LeaseStatus.EXPIRED else _END,
        list(lease_ids),
        status.value,
        message,
        rules.start_timeout,
        list(rules.resumable),
        rules.max_started_leases,
        backs_off,
        reason,
    )
    return [_lease_end(dict(row)) for row in rows]


def _lease_end(row: dict[str, object]) -> LeaseEnd:
    row["attempt_status"] = Status(str(row["attempt_status"]))
    category = row["failure_category"]
    row["failure_category"] = None if category is None else FailureCategory(str(category))
    return LeaseEnd(**row)  # type: ignore[arg-type]


_LIST_DUE = """
-- ends.list_due
SELECT id, expires_at <= clock_now() AS expired FROM runner_leases
WHERE status = 'active' AND check_at <= clock_now() ORDER BY check_at LIMIT $1
"""

_MOVE_ON = """
-- ends.move_check_on
UPDATE runner_leases l SET check_at = l.expires_at FROM (
    SELECT id FROM runner_leases WHERE id = ANY($1::uuid[]) AND status = 'active'
        AND expires_at > clock_now()
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) k
WHERE l.id = k.id
"""


async def list_due(conn: Connection, limit: int) -> tuple[list[UUID], list[UUID]]:
    """Active leases whose check has come: (expired, renewed meanwhile), at most `limit` in all."""
    rows = await conn.fetch(_LIST_DUE, limit)
    expired = [row["id"] for row in rows if row["expired"]]
    renewed = [row["id"] for row in rows if not row["expired"]]
    return expired, renewed


async def move_check_on(conn: Connection, lease_ids: Sequence[UUID]) -> None:
    """Look at these renewed leases again when they would expire, and not before."""
    await conn.execute(_MOVE_ON, list(lease_ids))


@dataclass(frozen=True, slots=True)
class Tick:
    """What the service knows of its own outages, read in one statement with the database clock."""

    alive: bool
    calm: bool
    outage_ended_at: datetime | None


_TICK = """
-- ends.tick
UPDATE service_ticks SET last_tick_at = clock_fact(), outage_ended_at = CASE
    WHEN clock_fact() - last_tick_at > interval '3 s' THEN clock_fact() ELSE outage_ended_at END
"""

_READ_TICK = """
-- ends.read_tick
SELECT clock_fact() - last_tick_at <= interval '3 s' AS alive,
    coalesce(outage_ended_at + $1 <= clock_fact(), true) AS calm, outage_ended_at
FROM service_ticks
"""


async def tick(conn: Connection) -> None:
    """Say that a service was able to receive signs of life just now."""
    await conn.execute(_TICK)


async def read_tick(conn: Connection, lease_time: timedelta) -> Tick:
    """Whether runners could reach us: without that nobody's silence means anything."""
    row = await conn.fetchrow(_READ_TICK, lease_time)
    assert row is not None  # noqa: S101 - the schema's one row
    return Tick(row["alive"], row["calm"], row["outage_ended_at"])
