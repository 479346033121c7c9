"""Statements that remove rows nobody needs any more: tickets, sessions, silent runners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.store.database import Connection

# Open tickets are looked at slice by slice, whoever holds the leases; `due`: a day after the lease
# ended, unless the attempt goes on under another one.
_LIST_OPEN = """
-- forgetting.list_open_tickets
SELECT u.id, l.status <> 'active' AND l.released_at < clock_now() - interval '1 day'
    AND NOT EXISTS (SELECT FROM runner_leases o WHERE o.attempt_id = u.attempt_id
        AND o.status = 'active') AS due
FROM (SELECT id, attempt_id, lease_id FROM artifact_uploads
    WHERE closed_at IS NULL AND id > $1 ORDER BY id LIMIT $2) u
JOIN runner_leases l ON l.id = u.lease_id
ORDER BY u.id
"""


@dataclass(frozen=True, slots=True)
class OpenTicket:
    """One open ticket; `due`: its time is over."""

    id: UUID
    due: bool


async def list_open_tickets(conn: Connection, after: UUID, limit: int) -> list[OpenTicket]:
    """At most `limit` open tickets by id."""
    return [OpenTicket(**dict(row)) for row in await conn.fetch(_LIST_OPEN, after, limit)]


_CLOSE = """
-- forgetting.close_tickets
UPDATE artifact_uploads SET closed_at = clock_fact(), closed_reason = 'expired'
WHERE id = ANY($1::uuid[]) AND closed_at IS NULL
"""


async def close_tickets(conn: Connection, ids: Sequence[UUID]) -> int:
    """Close these tickets; nothing is recorded from them afterwards. Returns how many."""
    return int((await conn.execute(_CLOSE, list(ids))).split()[-1])


_REMOVE_TICKETS = """
-- forgetting.remove_tickets
DELETE FROM artifact_uploads WHERE id IN (
    SELECT u.id FROM artifact_uploads u JOIN execution_attempts a ON a.id = u.attempt_id
    WHERE u.closed_at < clock_now() - $1::interval AND a.finished_at IS NOT NULL
    ORDER BY u.closed_at LIMIT $2 FOR UPDATE OF u SKIP LOCKED)
"""


async def remove_tickets(conn: Connection, age: timedelta, limit: int) -> int:
    """Remove tickets of ended attempts that were closed so long ago; return how many."""
    return int((await conn.execute(_REMOVE_TICKETS, age, limit)).split()[-1])


_REMOVE_SESSIONS = """
-- forgetting.remove_sessions
DELETE FROM runner_sessions s USING (
    SELECT runner_instance_id, session_id FROM runner_sessions
    WHERE replaced_at < clock_now() - $1::interval
    ORDER BY replaced_at LIMIT $2 FOR UPDATE SKIP LOCKED) old
WHERE s.runner_instance_id = old.runner_instance_id AND s.session_id = old.session_id
"""


async def remove_sessions(conn: Connection, age: timedelta, limit: int) -> int:
    """Remove sessions that were replaced so long ago; return how many."""
    return int((await conn.execute(_REMOVE_SESSIONS, age, limit)).split()[-1])


_SILENT = """
r.last_seen_at < clock_now() - $1::interval AND NOT EXISTS (
        SELECT FROM runner_leases l WHERE l.runner_instance_id = r.id AND (
            l.status = 'active' OR l.released_at > clock_now() - $1::interval))
"""

_LOCK_SILENT = f"""
-- forgetting.lock_silent_runners
SELECT r.id FROM runner_instances r WHERE {_SILENT}
ORDER BY r.id LIMIT $2 FOR UPDATE SKIP LOCKED
"""

# The second look sees every claim that came before the lock.
_REMOVE_SILENT = f"""
-- forgetting.remove_silent_runners
WITH gone AS (
    DELETE FROM runner_instances r WHERE r.id = ANY($2::text[]) AND {_SILENT} RETURNING r.id
), statuses AS (
    DELETE FROM runner_statuses s USING gone g WHERE s.runner_instance_id = g.id
), sessions AS (
    DELETE FROM runner_sessions s USING gone g
    WHERE s.runner_instance_id = g.id AND s.replaced_at IS NULL
)
SELECT count(*) FROM gone
"""


async def remove_silent_runners(conn: Connection, age: timedelta, limit: int) -> int:
    """Remove runners that nobody heard of for so long; return how many.

    Their ids stay in the history of leases. One that comes back registers as it did at first.
    """
    locked = [row["id"] for row in await conn.fetch(_LOCK_SILENT, age, limit)]
    return int(await conn.fetchval(_REMOVE_SILENT, age, locked)) if locked else 0
