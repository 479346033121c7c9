"""Epochs of the feed: within one, the server's transaction ids and its clock only go forward.

A new one begins when the database runs in another cluster or on another timeline than before (a
restore, a failover), when its transaction ids were set back, or when its clock was, by over an
hour. Whoever notices first begins it: at a new connection before that is used, or with a tick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.store.database import Connection

# The timeline that is being written: the control file tells a promotion only at its checkpoint.
_SERVER = """
    SELECT system_identifier::text AS system_identifier,
        ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int AS timeline
    FROM pg_control_system()
"""

_PROBE = f"""
-- epochs.probe
SELECT e.number, CASE
    WHEN e.system_identifier <> s.system_identifier THEN 'another cluster'
    WHEN e.timeline <> s.timeline THEN 'another timeline'
    WHEN t.latest_at > clock_now() + interval '1 h' THEN 'the clock was set back'
    WHEN h.feed_xid >= pg_snapshot_xmax(pg_current_snapshot())
        THEN 'transaction ids were set back' END AS reason
FROM (SELECT number, system_identifier, timeline FROM feed_epochs ORDER BY number DESC LIMIT 1) e
CROSS JOIN ({_SERVER}) s
CROSS JOIN (SELECT coalesce(latest_tick_at, last_tick_at) AS latest_at FROM service_ticks) t
LEFT JOIN LATERAL (
    SELECT feed_xid FROM attempt_events v WHERE v.feed_epoch = e.number
        AND v.created_at > t.latest_at - interval '32 d'
        AND v.created_at < greatest(t.latest_at, clock_now()) + interval '2 h'
    ORDER BY v.feed_epoch DESC, v.feed_xid DESC, v.attempt_id DESC, v.event_number DESC LIMIT 1
) h ON true
"""

_WAIT = """
-- epochs.wait_at_most
SET LOCAL lock_timeout = '2 s'
"""

_LOCK = """
-- epochs.lock
LOCK TABLE feed_epochs IN ACCESS EXCLUSIVE MODE
"""

# The end of the epoch before is looked for without a bound in time, once in its life.
_BEGIN = f"""
-- epochs.begin
WITH t AS (
    UPDATE service_ticks SET latest_tick_at = clock_fact()
    RETURNING latest_tick_at AS now
), begun AS (
    SELECT greatest(latest_tick_at, last_tick_at, clock_fact()) AS facts_until FROM service_ticks
)
INSERT INTO feed_epochs (number, system_identifier, timeline, previous_end_xid, begun_at,
    facts_until)
SELECT $1::int + 1, s.system_identifier, s.timeline, coalesce((
    SELECT v.feed_xid FROM attempt_events v WHERE v.feed_epoch = $1
    ORDER BY v.feed_epoch DESC, v.feed_xid DESC, v.attempt_id DESC, v.event_number DESC LIMIT 1
), '0'::xid8), t.now, b.facts_until
FROM t CROSS JOIN begun b CROSS JOIN ({_SERVER}) s
ON CONFLICT DO NOTHING RETURNING number
"""


async def find_due(conn: Connection) -> str | None:
    """Why a new epoch is due here, or None: the current one goes on."""
    row = await conn.fetchrow(_PROBE)
    return None if row is None else row["reason"]


async def begin_once(conn: Connection) -> tuple[int, str] | None:
    """Begin a new epoch if one is due; its number and why, or None: somebody else has begun it.

    In a transaction of its own: who has looked at the epochs before waits for everybody else who
    has. Whoever is writing just now is waited for, so that nothing is written to an epoch that has
    ended; if that takes over two seconds, LockNotAvailableError: try again.
    """
    await conn.execute(_WAIT)
    await conn.execute(_LOCK)
    found = await conn.fetchrow(_PROBE)
    if found is None or found["reason"] is None:
        return None
    number = await conn.fetchval(_BEGIN, found["number"])
    return None if number is None else (number, found["reason"])
