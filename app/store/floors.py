"""Where a claim begins to look, class by class, and what tells it not to at the beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from app.store.database import Connection


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the line of a class."""

    priority: int
    created_at: datetime
    id: UUID


_BEGINNING = Place(-1, datetime.fromtimestamp(0, UTC), UUID(int=0))
NO_FLOORS: Mapping[UUID, Place] = {}


def begins(
    classes: Sequence[UUID], floors: Mapping[UUID, Place]
) -> tuple[list[int], list[datetime], list[UUID]]:
    """Where the look at each of the classes begins, in three columns."""
    places = [floors.get(one, _BEGINNING) for one in classes]
    return (
        [place.priority for place in places],
        [place.created_at for place in places],
        [place.id for place in places],
    )


# Rows that died after it cannot be removed: of any session, a standby's feedback, a prepared
# transaction.
_OLDEST_SNAPSHOT_AGE = """
-- floors.oldest_snapshot_age
SELECT coalesce(max(age(x.xmin)), 0) FROM (
    SELECT a.backend_xmin FROM pg_stat_activity a
    WHERE a.datname IS NULL OR a.datname = current_database()
    UNION ALL SELECT s.xmin FROM pg_replication_slots s
    UNION ALL SELECT p.transaction FROM pg_prepared_xacts p
    WHERE p.database = current_database()) x(xmin)
"""


async def oldest_snapshot_age(conn: Connection) -> int:
    """How many transactions have been given their ids since the oldest open snapshot."""
    return int(await conn.fetchval(_OLDEST_SNAPSHOT_AGE))
