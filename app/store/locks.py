"""What the server's lock table has room for."""

from __future__ import annotations

from app.store.database import Connection

_FIND_ROOM = """
-- locks.find_room
SELECT current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint
        + current_setting('max_prepared_transactions')::bigint)
"""


async def find_room(conn: Connection) -> int:
    """How many locks of all transactions together the server is sure to have room for."""
    return int(await conn.fetchval(_FIND_ROOM))
