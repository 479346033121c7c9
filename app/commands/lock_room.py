"""What `check-config --database` prints: whether the locks of pushed messages fit into the server.

Every message of a set is locked, under each server key, until its transaction ends. A lock takes
room in a table that all sessions share, and a server without any refuses everybody's statements.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.settings import Settings
from app.store import locks
from app.store.database import Database
from app.store.gathering import MOST


@dataclass(frozen=True, slots=True)
class Report:
    """The lines for a person, and whether the server will do under these settings."""

    lines: tuple[str, ...]
    usable: bool


async def report_on(settings: Settings, instances: int) -> Report:
    """Ask the server. Raises DatabaseUnavailable if it does not answer."""
    database = Database(settings.database)
    try:
        room = await database.run(locks.find_room)
    finally:
        await database.close()
    return judge(settings, instances, room)


def judge(settings: Settings, instances: int, room: int) -> Report:
    """All instances together, at their worst, may fill half of the lock table."""
    pool, keys = settings.database.pool_size, len(settings.keys.secrets)
    each = pool * MOST * keys
    wanted = each * instances
    lines = [
        f"The server has room for {room} locks; pushed messages may take half of it.",
        f"{instances} x {pool} connections x {MOST} messages a set x {keys} server keys: {wanted}.",
    ]
    usable = wanted <= room // 2
    if not usable:
        lines.append(
            f"That is too many: at most {room // 2 // each} instances, or a smaller "
            f"EXECUTION_PLANE_DATABASE__POOL_SIZE, or a max_locks_per_transaction of at least "
            f"{-(-2 * wanted // room)} times what the server has."
        )
    return Report(tuple(lines), usable)
