"""Statements of operators on the fleet: drain and resume, removal, a runner's leases."""

from __future__ import annotations

from app.domain.records import Lease
from app.store.claims import LEASE_COLUMNS
from app.store.database import Connection

_DRAIN = """
-- fleet.set_drained
UPDATE runner_instances SET
    drained_at = CASE WHEN $2 THEN coalesce(drained_at, clock_fact()) END,
    drained_by = CASE WHEN $2 THEN coalesce(drained_by, $3) END
WHERE id = $1 RETURNING id
"""


async def set_drained(conn: Connection, runner_id: str, *, drained: bool, by: str) -> bool:
    """Set or lift the operator's drain, which no report of the runner changes; False: unknown."""
    return await conn.fetchval(_DRAIN, runner_id, drained, by) is not None


_HOLD_ROW = """
-- fleet.hold_row
SELECT id FROM runner_instances WHERE id = $1 FOR UPDATE
"""

_REMOVE = """
-- fleet.remove_idle
WITH gone AS (
    DELETE FROM runner_instances r WHERE r.id = $1 AND NOT EXISTS (
        SELECT FROM runner_leases l WHERE l.runner_instance_id = r.id AND l.status = 'active')
    RETURNING r.id
), status AS (
    DELETE FROM runner_statuses s USING gone g WHERE s.runner_instance_id = g.id
)
SELECT EXISTS (SELECT FROM gone)
"""


async def remove_idle(conn: Connection, runner_id: str) -> bool | None:
    """Remove a runner without an active lease; False: it has one, None: unknown.

    Its row is locked first, so that the removal sees every claim that came before. The id stays in
    the history of leases and sessions.
    """
    if await conn.fetchval(_HOLD_ROW, runner_id) is None:
        return None
    return bool(await conn.fetchval(_REMOVE, runner_id))


_LIST_LEASES = f"""
-- fleet.list_leases
SELECT {LEASE_COLUMNS} FROM runner_leases l
WHERE l.runner_instance_id = $1 AND l.status = 'active' ORDER BY l.created_at LIMIT 1000
"""


async def list_leases(conn: Connection, runner_id: str) -> list[Lease]:
    """The active leases of a runner."""
    rows = await conn.fetch(_LIST_LEASES, runner_id)
    return [Lease.model_validate(dict(row)) for row in rows]
