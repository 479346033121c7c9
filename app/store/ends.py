"""Every end that comes without a runner's completion, decided by one statement.

Whatever the cause (a silent runner, a limit, a cancel, a new session, a lease given back), first
the attempts' rows are locked, and then one statement, whose snapshot is taken under those locks,
decides from the rows what has come due and writes it: so no two sweeps can ever differ. Only a
lease's expiry can still move meanwhile (beats lock the lease alone), and it is checked again in
the UPDATE itself. Events are written only for rows that were changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from app.domain.lifecycle import Status
from app.store.database import Connection


class Cause(StrEnum):
    """Who asks for the decision."""

    SWEEP = "sweep"
    """Time: limits and expired leases."""
    REVOCATION = "revocation"
    """Leases are taken from their holders."""
    RELEASE = "release"
    """Leases are given back by their holders, or taken back before anybody heard of them."""
    CANCEL = "cancel"
    """Attempts with a cancel pending that nobody works on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide what follows."""

    start_timeout: timedelta
    cancel_grace: timedelta
    max_started_leases: int
    resumable: Sequence[str]
    """LIKE patterns of job types that may be begun again."""


@dataclass(frozen=True, slots=True)
class End:
    """What became of one attempt, and of the lease that ended with it, if one did."""

    attempt_id: UUID
    status: Status
    continues: bool
    concurrency_key: str | None
    runner_kind: str
    placement_class_id: UUID | None
    lease_id: UUID | None
    lease_word: str | None
    runner_instance_id: str | None
    started: bool


_LOCK = """
-- ends.lock
SELECT id FROM execution_attempts WHERE id = ANY($1::uuid[]) AND finished_at IS NULL
ORDER BY id FOR NO KEY UPDATE
"""
_LOCK_FREE = f"{_LOCK.replace('ends.lock', 'ends.lock_free')} SKIP LOCKED"


async def lock(
    conn: Connection, attempt_ids: Sequence[UUID], *, skip_locked: bool = False
) -> list[UUID]:
    """Lock these attempts, those that have not ended; with `skip_locked` only the free ones."""
    rows = await conn.fetch(_LOCK_FREE if skip_locked else _LOCK, list(attempt_ids))
    return [row["id"] for row in rows]


# The one decision. Limits come before the lease's expiry: they are the caller's own words.
_VERDICT = """CASE
        WHEN $2 = 'sweep' AND a.cancel_requested_at + $4 <= clock_now() THEN 'lost cancelled'
        WHEN $2 = 'sweep' AND a.status = 'running'
            AND a.started_at + make_interval(secs => a.timeout_seconds) <= clock_now()
            THEN 'timed_out timeout'
        WHEN $2 = 'sweep' AND a.status = 'queued'
            AND a.created_at + make_interval(secs => a.queue_timeout_seconds) <= clock_now()
            THEN 'cancelled runner_unavailable'
        WHEN $2 = 'sweep' AND a.status = 'leased' AND a.limit_at <= clock_now()
            THEN 'lost runner_unavailable'
        WHEN $2 = 'sweep' AND a.status = 'running' AND l.id IS NULL AND a.limit_at <= clock_now()
            THEN 'lost heartbeat_lost'
        WHEN $2 = 'cancel' AND a.status = 'queued' THEN 'cancelled cancelled'
        WHEN $2 = 'cancel' AND l.id IS NULL THEN 'lost cancelled'
        WHEN l.id IS NULL OR $2 = 'cancel' THEN NULL
        WHEN $2 = 'sweep' AND l.expires_at > clock_now() THEN NULL
        WHEN $2 <> 'sweep' AND NOT l.id = ANY ($9::uuid[]) THEN NULL
        WHEN $2 = 'release' AND l.started_at IS NOT NULL
            AND NOT a.job_type LIKE ANY ($5::text[]) THEN NULL
        WHEN a.cancel_requested_at IS NOT NULL THEN 'lost cancelled'
        WHEN a.status = 'leased' THEN 'continues'
        WHEN a.job_type LIKE ANY ($5::text[]) AND (l.started_at IS NOT NULL)::int + (
            SELECT count(*) FROM runner_leases p WHERE p.attempt_id = a.id AND p.id <> l.id
                AND p.started_at IS NOT NULL) < $6 THEN 'continues'
        WHEN $2 = 'release' THEN NULL
        ELSE 'lost heartbeat_lost' END"""

# What is said to people, by category and by what ended.
_MESSAGE = """CASE v.verdict
        WHEN 'lost cancelled' THEN CASE WHEN v.lease_id IS NULL
            THEN 'Cancelled while no runner held it.'
            WHEN $2 = 'sweep' AND v.cancel_requested_at + $4 <= clock_now()
            THEN 'The runner did not obey the cancellation in time.'
            ELSE 'Cancelled; its lease ended without the runner''s word.' END
        WHEN 'timed_out timeout' THEN 'It ran longer than timeout_seconds allows.'
        WHEN 'cancelled runner_unavailable' THEN
            'No runner took it within queue_timeout_seconds.'
        WHEN 'lost runner_unavailable' THEN 'No runner began to work on it in time.'
        WHEN 'cancelled cancelled' THEN coalesce(nullif(v.cancel_reason, ''), 'Cancelled.')
        WHEN 'lost heartbeat_lost' THEN CASE WHEN v.lease_id IS NULL
            THEN 'No runner went on with it in time.'
            WHEN $2 = 'sweep' THEN 'The runner fell silent and its lease expired.'
            ELSE 'The lease was taken from its runner.' END END"""

_DECIDE = f"""
-- ends.decide
WITH seen AS (
    SELECT a.id, a.status AS was, a.cancel_requested_at, a.cancel_reason, a.started_at,
        a.timeout_seconds, a.unstarted_leases, a.last_event_at, l.id AS lease_id,
        l.lease_number, l.runner_instance_id, l.started_at AS lease_started_at,
        {_VERDICT} AS verdict
    FROM execution_attempts a
    LEFT JOIN runner_leases l ON l.attempt_id = a.id AND l.status = (SELECT 'active')
    WHERE a.id = ANY($1::uuid[]) AND a.finished_at IS NULL
), due AS (
    SELECT v.*, t.at, {_MESSAGE} AS message,
        CASE WHEN v.verdict <> 'continues' THEN split_part(v.verdict, ' ', 1) END AS ends_as,
        CASE WHEN v.verdict <> 'continues' THEN split_part(v.verdict, ' ', 2) END AS category,
        CASE WHEN $2 = 'release' THEN 'released'
            WHEN $2 = 'sweep' AND v.verdict IN ('continues', 'lost heartbeat_lost')
            THEN 'expired'
            WHEN $2 = 'sweep' AND v.verdict = 'lost cancelled'
                AND v.cancel_requested_at + $4 > clock_now() THEN 'expired'
            ELSE 'revoked' END AS word,
        (v.lease_started_at IS NOT NULL AND $2 <> 'release')::int AS without_word,
        v.unstarted_leases + (v.lease_id IS NOT NULL AND v.lease_started_at IS NULL
            AND $7::boolean)::int AS unstarted
    FROM seen v CROSS JOIN LATERAL (SELECT fact_after(v.last_event_at) AS at) t
    WHERE v.verdict IS NOT NULL
), ended AS (
    UPDATE runner_leases l SET status = d.word, released_at = d.at
    FROM due d WHERE l.id = d.lease_id AND l.status = (SELECT 'active')
        AND (d.word <> 'expired' OR l.expires_at <= clock_now())
    RETURNING l.id
), final AS (
    SELECT d.* FROM due d WHERE d.lease_id IS NULL OR d.lease_id IN (SELECT id FROM ended)
), moved AS (
    UPDATE execution_attempts a SET
        status = coalesce(d.ends_as, a.status), failure_category = d.category,
        failure_message = d.message,
        finished_at = CASE WHEN d.ends_as IS NOT NULL THEN d.at END,
        unconfirmed_leases = a.unconfirmed_leases + d.without_word,
        stop_confirmed = CASE WHEN d.ends_as IS NOT NULL
            THEN a.unconfirmed_leases + d.without_word = 0 END,
        claimable = d.ends_as IS NULL,
        placement_class_id = CASE WHEN d.ends_as IS NULL THEN a.placement_class_id END,
        unstarted_leases = d.unstarted,
        backoff_runner_id = CASE WHEN d.unstarted = d.unstarted_leases THEN a.backoff_runner_id
            WHEN d.unstarted < 4 THEN d.runner_instance_id END,
        backoff_until = CASE WHEN d.unstarted = d.unstarted_leases THEN a.backoff_until
            ELSE d.at + least(interval '10 s' * power(2, least(d.unstarted, 10) - 1),
                interval '300 s') END,
        limit_at = CASE WHEN d.ends_as IS NOT NULL THEN NULL
            WHEN a.status = 'leased' THEN $3 + (
                SELECT min(p.created_at) FROM runner_leases p WHERE p.attempt_id = a.id
                    AND p.status <> 'released' AND (d.word <> 'released' OR p.id <> d.lease_id))
            ELSE least(a.started_at + make_interval(secs => a.timeout_seconds), d.at + $3) END,
        last_event_number = a.last_event_number + (d.lease_id IS NOT NULL)::int
            + (d.ends_as IS NOT NULL)::int,
        last_event_at = d.at, last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM final d WHERE a.id = d.id
    RETURNING a.id, a.status, a.failure_category, a.failure_message, a.stop_confirmed,
        a.concurrency_key, a.runner_kind, a.placement_class_id, a.last_event_number,
        a.last_event_at, a.last_feed_epoch, a.last_feed_xid, a.cancel_reason, d.lease_id,
        d.lease_number, d.runner_instance_id, d.lease_started_at IS NOT NULL AS started, d.ends_as,
        d.word
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), m.id, m.last_event_number - (m.ends_as IS NOT NULL)::int,
        'lease_' || m.word, jsonb_strip_nulls(jsonb_build_object('lease_id', m.lease_id,
            'lease_number', m.lease_number, 'runner_instance_id', m.runner_instance_id,
            'started', m.started, 'continues', m.ends_as IS NULL, 'reason', $8::text)),
        m.last_feed_epoch, m.last_feed_xid, m.last_event_at
    FROM moved m WHERE m.lease_id IS NOT NULL
    UNION ALL
    SELECT gen_random_uuid(), m.id, m.last_event_number, m.status, jsonb_strip_nulls(
            jsonb_build_object('lease_id', m.lease_id, 'lease_number', m.lease_number,
            'runner_instance_id', m.runner_instance_id, 'failure_category', m.failure_category,
            'failure_message', m.failure_message, 'cancel_reason', nullif(m.cancel_reason, ''),
            'stop_confirmed', m.stop_confirmed)),
        m.last_feed_epoch, m.last_feed_xid, m.last_event_at
    FROM moved m WHERE m.ends_as IS NOT NULL
), freed AS (
    DELETE FROM concurrency_holds h USING moved m
    WHERE h.concurrency_key = m.concurrency_key AND h.attempt_id = m.id AND m.stop_confirmed
), kept AS (
    UPDATE concurrency_holds h SET attempt_ended_at = m.last_event_at FROM moved m
    WHERE h.concurrency_key = m.concurrency_key AND h.attempt_id = m.id AND NOT m.stop_confirmed
)
SELECT m.id AS attempt_id, m.status, m.ends_as IS NULL AS continues, m.concurrency_key,
    m.runner_kind, m.placement_class_id, m.lease_id,
    CASE WHEN m.lease_id IS NOT NULL THEN m.word END AS lease_word, m.runner_instance_id,
    m.started
FROM moved m
"""


async def decide(  # one cause's facts
    conn: Connection,
    attempt_ids: Sequence[UUID],
    cause: Cause,
    rules: Rules,
    *,
    lease_ids: Sequence[UUID] = (),
    reason: str | None = None,
    backs_off: bool = True,
) -> list[End]:
    """End what has come due of these attempts, which the caller has locked; one End a change.

    `lease_ids`: the leases that a revocation or release is about. `reason` goes into the lease's
    event. Without `backs_off` an unstarted lease does not keep the attempt from its runner.
    """
    rows = await conn.fetch(
        _DECIDE,
        list(attempt_ids),
        cause.value,
        rules.start_timeout,
        rules.cancel_grace,
        list(rules.resumable),
        rules.max_started_leases,
        backs_off,
        reason,
        list(lease_ids),
    )
    return [End(**{**dict(row), "status": Status(row["status"])}) for row in rows]


_LIST_DUE = """
-- ends.list_due
SELECT l.attempt_id, l.id AS lease_id, l.expires_at <= clock_now() AS expired,
    extract(epoch FROM clock_now() - l.expires_at)::float8 AS behind
FROM runner_leases l WHERE l.status = 'active' AND l.check_at <= clock_now()
ORDER BY l.check_at LIMIT $1
"""

_LIST_AT_LIMIT = """
-- ends.list_at_limit
SELECT id, extract(epoch FROM clock_now() - limit_at)::float8 AS behind
FROM execution_attempts WHERE limit_at <= clock_now() ORDER BY limit_at LIMIT $1
"""

_MOVE_ON = """
-- ends.move_check_on
UPDATE runner_leases l SET check_at = l.expires_at FROM (
    SELECT id FROM runner_leases WHERE id = ANY($1::uuid[]) AND status = (SELECT 'active')
        AND expires_at > clock_now()
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) k
WHERE l.id = k.id
"""


@dataclass(frozen=True, slots=True)
class Due:
    """What a sweep has to look at."""

    attempt_ids: list[UUID]
    """Attempts with an expired lease or at a limit."""
    renewed: list[UUID]
    """Leases whose check has come and that were renewed meanwhile."""
    full: bool
    """There may be more."""
    behind_seconds: float
    """How long the oldest of it has been due."""


async def list_due(conn: Connection, limit: int) -> Due:
    """At most `limit` leases whose check has come, and as many attempts at a limit."""
    leases = await conn.fetch(_LIST_DUE, limit)
    limited = await conn.fetch(_LIST_AT_LIMIT, limit)
    attempt_ids = {row["attempt_id"] for row in leases if row["expired"]}
    attempt_ids |= {row["id"] for row in limited}
    return Due(
        sorted(attempt_ids),
        [row["lease_id"] for row in leases if not row["expired"]],
        max(len(leases), len(limited)) == limit,
        max([0.0, *(row["behind"] for row in [*leases, *limited])]),
    )


async def move_check_on(conn: Connection, lease_ids: Sequence[UUID]) -> None:
    """Look at these renewed leases again when they would expire, and not before."""
    await conn.execute(_MOVE_ON, list(lease_ids))


_ATTEMPTS_OF = """
-- ends.attempts_of
SELECT attempt_id FROM runner_leases WHERE id = ANY($1::uuid[])
"""


async def attempts_of(conn: Connection, lease_ids: Sequence[UUID]) -> list[UUID]:
    """The attempts of these leases."""
    return [row["attempt_id"] for row in await conn.fetch(_ATTEMPTS_OF, list(lease_ids))]


# A claim has lapsed when the last of its leases expired and none of them was ever started. Five in
# a row make the runner unhealthy: it claims nothing until it registers a new session. Any start
# begins the count anew.
_COUNT_LAPSED = """
-- ends.count_lapsed_claims
UPDATE runner_instances r SET lapsed_claims = r.lapsed_claims + k.lapsed
FROM (
    SELECT i.id, c.lapsed FROM runner_instances i JOIN (
        SELECT l.runner_instance_id, l.session_id,
            count(DISTINCT l.claim_request_id)::int AS lapsed
        FROM runner_leases l WHERE l.id = ANY($1::uuid[]) AND NOT EXISTS (
            SELECT FROM runner_leases o WHERE o.runner_instance_id = l.runner_instance_id
                AND o.session_id = l.session_id AND o.claim_request_id = l.claim_request_id
                AND (o.status <> 'expired' OR o.started_at IS NOT NULL))
        GROUP BY l.runner_instance_id, l.session_id) c
        ON c.runner_instance_id = i.id AND c.session_id = i.session_id
    ORDER BY i.id FOR NO KEY UPDATE OF i) k
WHERE r.id = k.id
"""


async def count_lapsed_claims(conn: Connection, lease_ids: Sequence[UUID]) -> None:
    """Count the claims that lapsed with these leases, which expired just now without a start."""
    await conn.execute(_COUNT_LAPSED, list(lease_ids))
