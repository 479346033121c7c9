"""Removal of placement classes that nothing open names any more."""

from __future__ import annotations

from uuid import UUID

from app.store.database import Connection

# The lock conflicts with the share lock that a creation takes on the class it names.
_LOCK_UNUSED = """
-- classes.lock_unused
SELECT c.id FROM placement_classes c
WHERE c.created_at < clock_now() - interval '1 day' AND NOT EXISTS (
    SELECT FROM execution_attempts a WHERE a.placement_class_id = c.id)
ORDER BY c.id LIMIT $1 FOR UPDATE SKIP LOCKED
"""

# The second look: creations that came before the lock are committed and visible by now.
_REMOVE = """
-- classes.remove_unused
WITH gone AS (
    DELETE FROM placement_classes c WHERE c.id = ANY($1::uuid[]) AND NOT EXISTS (
        SELECT FROM execution_attempts a WHERE a.placement_class_id = c.id)
    RETURNING c.runner_kind
), advanced AS (
    UPDATE placement_class_versions v SET version = v.version + 1
    FROM (SELECT DISTINCT runner_kind FROM gone) k WHERE v.runner_kind = k.runner_kind
)
SELECT count(*) FROM gone
"""


async def remove_unused(conn: Connection, limit: int) -> int:
    """Remove at most `limit` classes older than a day that no open attempt names."""
    locked: list[UUID] = [row["id"] for row in await conn.fetch(_LOCK_UNUSED, limit)]
    return int(await conn.fetchval(_REMOVE, locked)) if locked else 0
