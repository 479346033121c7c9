"""What the tests of retention do and look at."""

from datetime import timedelta
from typing import Any

import asyncpg

from app.loops.drop_partitions import DropPartitions
from app.loops.loop import Loop, Result
from app.loops.make_partitions import MakePartitions
from app.services import Services
from app.store import partitions
from tests.driver import Held
from tests.lifecycle import world as lifecycle
from tests.lifecycle.clock import Clock


class World(lifecycle.World):
    """The service and everybody who calls it, with a clock that a test may move."""

    def __init__(self, services: Services, control, operator, make_runner, sql, clock: Clock):
        super().__init__(services, control, operator, make_runner, sql)
        self.clock = clock

    async def run(self, loop: Loop) -> Result:
        return await loop.run_once(self.services)

    async def make_partitions(self) -> int:
        return (await self.run(MakePartitions())).done

    async def drop_partitions(self) -> int:
        return (await self.run(DropPartitions())).done

    async def names(self, parent: str = "attempt_heartbeats") -> list[str]:
        """The attached partitions, those half detached among them."""
        rows = await self.sql.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits "
            "WHERE inhparent = $1::regclass ORDER BY 1",
            parent,
        )
        return [row["name"] for row in rows]

    async def add_days(self, first: int, last: int) -> list[str]:
        """Partitions from so many days ago on: days of heartbeats, and the months around them."""
        before = set(await self.names())
        now = self.clock.now
        async with self.sql.transaction():
            for days in range(first, last - 1, -1):
                day = (now - timedelta(days=days)).date()
                for parent, suffix, start, end in (
                    ("attempt_heartbeats", f"{day:%Y%m%d}", day, day + timedelta(days=1)),
                    (
                        "attempt_events",
                        f"{day:%Y%m}",
                        day.replace(day=1),
                        partitions.next_month(day),
                    ),
                ):
                    if await self.sql.fetchval(
                        "SELECT to_regclass($1) IS NULL", f"{parent}_{suffix}"
                    ):
                        await partitions._make(self.sql, parent, suffix, start, end)
        return sorted(set(await self.names()) - before)

    async def one_beat(self, held: Held, **fields: Any) -> None:
        answer = await held.beat(**fields)
        assert answer.status_code == 200, answer.text


async def waiting_for_locks(sql: asyncpg.Connection) -> list[str]:
    """What waits for a lock in this database just now, by its query."""
    rows = await sql.fetch(
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    return [row["query"] for row in rows]
