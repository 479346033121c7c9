"""The id of this database's installation: what a bucket's marker is compared with."""

from __future__ import annotations

from uuid import UUID

from app.store.database import Connection

_MAKE_ONCE = """
-- installation.make_once
INSERT INTO installation (id, created_at) VALUES ($1, clock_fact()) ON CONFLICT DO NOTHING
"""

_GET = """
-- installation.get
SELECT id FROM installation
"""


async def get_or_make(conn: Connection, new_id: UUID) -> UUID:
    """The installation's id; at the very first start it becomes `new_id`."""
    found = await conn.fetchval(_GET)
    if found is None:
        await conn.execute(_MAKE_ONCE, new_id)
        found = await conn.fetchval(_GET)
    assert isinstance(found, UUID)  # noqa: S101 - one of the two statements made it
    return found


_KNOWS_OBJECTS = """
-- installation.knows_objects
SELECT EXISTS (SELECT FROM artifact_refs WHERE bucket = $1 AND key = ANY($2::text[]))
"""


async def knows_objects(conn: Connection, bucket: str, full_keys: list[str]) -> bool:
    """Whether any of these objects is recorded here."""
    return bool(await conn.fetchval(_KNOWS_OBJECTS, bucket, full_keys))
