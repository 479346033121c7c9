"""A sweep that a test can hold open between its write and its commit, and what to look at then."""

import asyncio
from contextlib import suppress
from uuid import UUID

import asyncpg

from app.commands import ends
from app.services import Services


async def lapse(sql: asyncpg.Connection, lease_id: str) -> None:
    """The lease's time is over, and nobody has noticed yet."""
    await sql.execute(
        "UPDATE runner_leases SET expires_at = clock_now() - interval '1 s' WHERE id = $1",
        UUID(lease_id),
    )


async def end_due(connection: asyncpg.Connection, services: Services, held) -> int:
    """What the sweep does with one attempt whose lease may have lapsed; how many ends it made."""
    if hasattr(ends, "sweep"):
        done = await ends.sweep(connection, services.rules, [UUID(held.attempt_id)])
    else:
        done = await ends.expire(connection, services.rules, [UUID(held.id)])
    return len(done)


async def expire(sql: asyncpg.Connection, services: Services, held) -> None:
    """Let the lease lapse and end it."""
    await lapse(sql, held.id)
    async with sql.transaction():
        assert await end_due(sql, services, held) == 1


async def until_blocked(sql: asyncpg.Connection) -> None:
    """Return when some other connection of this database waits for a lock."""
    async with asyncio.timeout(20):
        while not await sql.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.002)


# What a late word may still touch: it is recorded, and whether the work has stopped.
_BOOKKEEPING = {
    "execution_attempts": {
        "last_event_number",
        "last_event_at",
        "last_feed_epoch",
        "last_feed_xid",
        "stop_confirmed",
        "unconfirmed_leases",
    },
    "runner_leases": {"late_word_at"},
}


async def picture(sql: asyncpg.Connection) -> dict[str, list[dict[str, object]]]:
    """Everything that is stored about attempts, but for what a late word may still touch."""
    tables = {
        "execution_attempts": "TRUE",
        "runner_leases": "TRUE",
        "attempt_heartbeats": "TRUE",
        "attempt_events": "event_type <> 'late_result'",
        "log_streams": "TRUE",
        "raw_log_refs": "TRUE",
        "artifact_refs": "TRUE",
        "artifact_uploads": "TRUE",
        "runner_output_refs": "TRUE",
        "evidence_refs": "TRUE",
        "concurrency_holds": "TRUE",
    }
    return {
        table: [
            {
                name: value
                for name, value in row.items()
                if name not in _BOOKKEEPING.get(table, set())
            }
            for row in await sql.fetch(
                f"SELECT * FROM {table} t WHERE {condition} ORDER BY t::text"
            )
        ]
        for table, condition in tables.items()
    }


class Gate:
    """Stops one transaction of the service just before its COMMIT, with all its locks held."""

    def __init__(self, services: Services, monkeypatch, *, after: int = 0) -> None:
        """`after`: so many transactions pass before one is stopped."""
        self._commit = services.database._commit
        self._left = after
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        monkeypatch.setattr(services.database, "_commit", self._pass)

    async def _pass(self, connection) -> None:
        self._left -= 1
        if self._left < 0 and not self.reached.is_set():
            self.reached.set()
            await self.opened.wait()
        await self._commit(connection)


async def settled(task: asyncio.Task, sql: asyncpg.Connection) -> bool:
    """Wait until the task has ended (True) or waits for a lock (False)."""
    waiting = asyncio.create_task(until_blocked(sql))
    done, _ = await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    return task in done
