"""Statements under a lease. The fence is the lease's row itself, as the target of an UPDATE.

Order in each: lock the attempt's row, then update the lease where id, token and status fit, then
act only on what that returned. A lease that was merely joined or read would be no fence: a sweep
that commits in between would be overlooked.

`= (SELECT 'active')` and not `= 'active'` where a lease is found by its id: what a sub-select says
proves no partial index's predicate. A plan made when few leases were active would otherwise read
all entries of such an index, live and dead, for each heartbeat. `IS TRUE` keeps the index on an
attempt's status from the same use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.lifecycle import Status
from app.domain.records import Attempt
from app.store.attempts import COLUMNS
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Key:
    """A lease's id and the hash of the token that was shown for it."""

    lease_id: UUID
    token_hash: str


@dataclass(frozen=True, slots=True)
class Started:
    """A lease under which work may begin, and its attempt."""

    attempt: Attempt
    expires_at: datetime
    first: bool


# A first start moves the attempt and writes its event; a further one (continuation, or a repeat
# of a start whose answer was lost) only marks its lease. Any start ends the attempt's back-off.
# Whether this is the lease's first is read under its lock: a repeat sent at once waits for it.
_START = f"""
-- leases.start
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[]) AS i(lease_id, token_hash)
), target AS (
    SELECT a.id, a.status, a.last_event_at, l.id AS lease_id
    FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id JOIN input i ON i.lease_id = l.id
    WHERE (a.status IN ('leased', 'running')) IS TRUE
    ORDER BY a.id FOR NO KEY UPDATE OF a
), locked AS (
    SELECT l.id, l.started_at FROM runner_leases l JOIN target t ON t.lease_id = l.id
    ORDER BY l.id FOR NO KEY UPDATE OF l
), fenced AS (
    UPDATE runner_leases l SET started_at = coalesce(l.started_at, fact_after(t.last_event_at)),
        expires_at = greatest(l.expires_at, clock_now() + $3)
    FROM input i JOIN target t ON t.lease_id = i.lease_id JOIN locked k ON k.id = t.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND l.status = (SELECT 'active')
    RETURNING l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.started_at,
        l.expires_at, t.status AS was, k.started_at IS NULL AS lease_first
), healthy AS (
    UPDATE runner_instances r SET lapsed_claims = 0 FROM (
        SELECT r.id FROM runner_instances r JOIN fenced f ON f.runner_instance_id = r.id
        WHERE r.lapsed_claims > 0 FOR NO KEY UPDATE OF r SKIP LOCKED) k
    WHERE r.id = k.id
), moved AS (
    UPDATE execution_attempts a SET status = 'running',
        started_at = coalesce(a.started_at, f.started_at),
        limit_at = least(coalesce(a.started_at, f.started_at)
            + make_interval(secs => a.timeout_seconds), a.cancel_requested_at + $4),
        unstarted_leases = 0, backoff_runner_id = NULL, backoff_until = NULL,
        last_event_number = a.last_event_number + (f.was = 'leased')::int,
        last_event_at = CASE f.was WHEN 'leased' THEN f.started_at ELSE a.last_event_at END,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM fenced f WHERE a.id = f.attempt_id
    RETURNING {COLUMNS}, a.last_event_number, a.last_event_at, a.last_feed_epoch,
        a.last_feed_xid, f.was, f.lease_first, f.id AS lease_id, f.lease_number, f.expires_at
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), a.id, a.last_event_number, 'started', jsonb_build_object(
            'lease_id', a.lease_id, 'lease_number', a.lease_number,
            'runner_instance_id', a.runner_instance_id),
        a.last_feed_epoch, a.last_feed_xid, a.last_event_at
    FROM moved a WHERE a.was = 'leased'
)
SELECT a.lease_id, a.expires_at, a.lease_first, {COLUMNS} FROM moved a
"""


async def start(
    conn: Connection, keys: Sequence[Key], lease_time: timedelta, cancel_grace: timedelta
) -> dict[UUID, Started]:
    """Begin the work of these leases; those that could not are left out.

    At most one key an attempt. A repeat changes nothing and is answered alike.
    """
    rows = await conn.fetch(
        _START,
        [key.lease_id for key in keys],
        [key.token_hash for key in keys],
        lease_time,
        cancel_grace,
    )
    return {
        row["lease_id"]: Started(
            Attempt.model_validate(dict(row)), row["expires_at"], row["lease_first"]
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class Beat:
    """One heartbeat to record."""

    key: Key
    heartbeat_id: UUID
    session_id: UUID
    sequence: int
    phase: str | None
    progress_percent: int | None
    message: str | None
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Beaten:
    """What an accepted heartbeat is answered with."""

    lease_id: UUID
    attempt_id: UUID
    attempt_status: Status
    expires_at: datetime
    cancel_requested_at: datetime | None
    cancel_reason: str | None


_BEAT_INPUT = """SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::uuid[],
        $5::bigint[], $6::text[], $7::int[], $8::text[], $10::timestamptz[])
    AS i(lease_id, token_hash, heartbeat_id, session_id, sequence, phase, progress, message,
        published_at)"""

_RENEWED = """expires_at = greatest(l.expires_at,
            least(clock_now(), i.published_at) + $9),
        last_sequence = greatest(l.last_sequence, i.sequence),
        progress_percent = CASE WHEN i.sequence > l.last_sequence
            THEN coalesce(i.progress, l.progress_percent) ELSE l.progress_percent END"""

_RECORDED = """INSERT INTO attempt_heartbeats (id, attempt_id, runner_instance_id, phase,
        progress_percent, message, created_at)
    SELECT f.heartbeat_id, f.attempt_id, f.runner_instance_id, f.phase, f.progress_percent,
        f.message, clock_fact()
    FROM fenced f WHERE f.newer"""

# The common beat changes no phase and so writes no event and needs no lock on the attempt. Leases
# that somebody else holds are passed over here and repeated alone. Nothing that it changes stands
# in an index, so the row stays in its page.
_BEAT = f"""
-- leases.heartbeat
WITH input AS ({_BEAT_INPUT}
), locked AS (
    SELECT l.id, l.last_sequence FROM runner_leases l JOIN input i ON i.lease_id = l.id
    ORDER BY l.id FOR NO KEY UPDATE OF l SKIP LOCKED
), fenced AS (
    UPDATE runner_leases l SET {_RENEWED}
    FROM input i JOIN locked k ON k.id = i.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND l.status = (SELECT 'active')
        AND l.session_id = i.session_id
        AND (i.sequence <= l.last_sequence OR i.phase IS NULL OR i.phase = l.phase)
    RETURNING l.id, l.attempt_id, l.runner_instance_id, l.expires_at, l.phase,
        l.progress_percent, i.message, i.heartbeat_id, i.sequence > k.last_sequence AS newer
), recorded AS (
    {_RECORDED}
)
SELECT f.id, f.attempt_id, f.expires_at, a.status, a.cancel_requested_at, a.cancel_reason
FROM fenced f JOIN execution_attempts a ON a.id = f.attempt_id
"""

# A new phase is an event, so the attempt's row is locked first, as for every event.
_BEAT_WITH_PHASE = f"""
-- leases.heartbeat_with_phase
WITH input AS ({_BEAT_INPUT}
), target AS (
    SELECT a.id, a.last_event_at, l.id AS lease_id FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id JOIN input i ON i.lease_id = l.id
    WHERE (a.status IN ('leased', 'running')) IS TRUE
    ORDER BY a.id FOR NO KEY UPDATE OF a
), locked AS (
    SELECT l.id, l.last_sequence, l.phase FROM runner_leases l
    JOIN target t ON t.lease_id = l.id ORDER BY l.id FOR NO KEY UPDATE OF l
), fenced AS (
    UPDATE runner_leases l SET {_RENEWED},
        phase = CASE WHEN i.sequence > l.last_sequence THEN coalesce(i.phase, l.phase)
            ELSE l.phase END
    FROM input i JOIN locked k ON k.id = i.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND l.status = (SELECT 'active')
        AND l.session_id = i.session_id
    RETURNING l.id, l.attempt_id, l.runner_instance_id, l.lease_number, l.expires_at, l.phase,
        l.progress_percent, i.message, i.heartbeat_id, i.sequence > k.last_sequence AS newer,
        l.phase IS DISTINCT FROM k.phase AS phase_changed
), recorded AS (
    {_RECORDED}
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + 1,
        last_event_at = t.at, last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM fenced f JOIN target g ON g.id = f.attempt_id
    CROSS JOIN LATERAL (SELECT fact_after(g.last_event_at) AS at) t
    WHERE a.id = f.attempt_id AND f.phase_changed
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), n.id, n.last_event_number, 'heartbeat',
        jsonb_strip_nulls(jsonb_build_object('lease_id', f.id, 'lease_number', f.lease_number,
            'runner_instance_id', f.runner_instance_id, 'phase', f.phase,
            'progress_percent', f.progress_percent, 'message', f.message)),
        n.last_feed_epoch, n.last_feed_xid, n.last_event_at
    FROM noted n JOIN fenced f ON f.attempt_id = n.id
)
SELECT f.id, f.attempt_id, f.expires_at, a.status, a.cancel_requested_at, a.cancel_reason
FROM fenced f JOIN execution_attempts a ON a.id = f.attempt_id
"""


async def heartbeat(
    conn: Connection,
    beats: Sequence[Beat],
    lease_time: timedelta,
    *,
    with_phase: bool,
) -> dict[UUID, Beaten]:
    """Renew these leases and record the beats; those that could not are left out.

    Without `with_phase` a beat that would change the phase, or whose lease is locked just now, is
    left out too: try it again with it. A beat whose sequence is not newer renews and changes
    nothing else. Its `published_at`, the one time taken from outside, can only shorten a renewal.
    """
    rows = await conn.fetch(
        _BEAT_WITH_PHASE if with_phase else _BEAT,
        [beat.key.lease_id for beat in beats],
        [beat.key.token_hash for beat in beats],
        [beat.heartbeat_id for beat in beats],
        [beat.session_id for beat in beats],
        [beat.sequence for beat in beats],
        [beat.phase for beat in beats],
        [beat.progress_percent for beat in beats],
        [beat.message for beat in beats],
        lease_time,
        [beat.published_at for beat in beats],
    )
    return {
        row["id"]: Beaten(
            row["id"],
            row["attempt_id"],
            Status(row["status"]),
            row["expires_at"],
            row["cancel_requested_at"],
            row["cancel_reason"],
        )
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class Completion:
    """How the work under one lease ended; `result` is a JSON text."""

    key: Key
    outcome: str
    failure_category: str | None
    failure_message: str | None
    result: str | None
    digest: str


# A key stays held while a runner that had started has not given its word; otherwise the end of
# the attempt frees it here, in the same transaction.
_COMPLETE = f"""
-- leases.complete
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
        $7::text[])
    AS i(lease_id, token_hash, outcome, category, message, result, digest)
), target AS (
    SELECT a.id, a.last_event_at, l.id AS lease_id FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id JOIN input i ON i.lease_id = l.id
    WHERE (a.status = 'running') IS TRUE
    ORDER BY a.id FOR NO KEY UPDATE OF a
), fenced AS (
    UPDATE runner_leases l SET status = 'released', released_at = fact_after(t.last_event_at),
        -- A word under a continuation whose start we never heard of: it had begun.
        started_at = coalesce(l.started_at, fact_after(t.last_event_at)),
        completion_digest = i.digest
    FROM input i JOIN target t ON t.lease_id = i.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND l.status = (SELECT 'active')
    RETURNING l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.released_at,
        i.outcome, i.category, i.message, i.result
), moved AS (
    UPDATE execution_attempts a SET status = f.outcome, failure_category = f.category,
        failure_message = f.message, result = f.result::jsonb, finished_at = f.released_at,
        stop_confirmed = a.unconfirmed_leases = 0, claimable = false, limit_at = NULL,
        placement_class_id = NULL,
        last_event_number = a.last_event_number + 1, last_event_at = f.released_at,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM fenced f WHERE a.id = f.attempt_id
    RETURNING {COLUMNS}, a.last_event_number, a.last_event_at, a.last_feed_epoch,
        a.last_feed_xid, f.id AS lease_id, f.lease_number
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), a.id, a.last_event_number, a.status,
        jsonb_strip_nulls(jsonb_build_object('lease_id', a.lease_id,
            'lease_number', a.lease_number, 'runner_instance_id', a.runner_instance_id,
            'failure_category', a.failure_category, 'failure_message', a.failure_message,
            'result', a.result, 'stop_confirmed', a.stop_confirmed)),
        a.last_feed_epoch, a.last_feed_xid, a.last_event_at
    FROM moved a
), freed AS (
    DELETE FROM concurrency_holds h USING moved a
    WHERE h.concurrency_key = a.concurrency_key AND h.attempt_id = a.id AND a.stop_confirmed
), kept AS (
    UPDATE concurrency_holds h SET attempt_ended_at = a.finished_at FROM moved a
    WHERE h.concurrency_key = a.concurrency_key AND h.attempt_id = a.id
        AND NOT a.stop_confirmed
)
SELECT a.lease_id, {COLUMNS} FROM moved a
"""


async def complete(conn: Connection, completions: Sequence[Completion]) -> dict[UUID, Attempt]:
    """End these leases and their running attempts; those that could not are left out.

    At most one completion an attempt.
    """
    rows = await conn.fetch(
        _COMPLETE,
        [c.key.lease_id for c in completions],
        [c.key.token_hash for c in completions],
        [c.outcome for c in completions],
        [c.failure_category for c in completions],
        [c.failure_message for c in completions],
        [c.result for c in completions],
        [c.digest for c in completions],
    )
    return {row["lease_id"]: Attempt.model_validate(dict(row)) for row in rows}
