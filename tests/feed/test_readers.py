"""Every reader gets every committed event once, in order, whatever the writers do."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from tests.feed import crowd

NOBODY = UUID(int=0)
FIRST = {
    "by time": (datetime(2000, 1, 1, tzinfo=UTC), NOBODY),
    "by id": (0, NOBODY),
    "by plain xid": (0, ""),
    "without the attempt": (0, 0),
}
SIZES = [3000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


async def in_feed_order(sql: asyncpg.Connection) -> list[tuple[str, str, int]]:
    rows = await sql.fetch(
        "SELECT id, attempt_id, event_number FROM attempt_events "
        "ORDER BY feed_epoch, feed_xid, attempt_id, event_number"
    )
    return [(str(row["id"]), str(row["attempt_id"]), row["event_number"]) for row in rows]


@pytest.mark.parametrize("events", SIZES)
async def test_every_reader_gets_every_event_once_and_simpler_readers_do_not(
    open_instance, fresh_database, events
):
    instance = await open_instance(database=fresh_database)
    sql = await asyncpg.connect(fresh_database)
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(instance.client())
        held = await crowd.working(instance.control(http), instance.runner(http), 40)
        clients = [await stack.enter_async_context(instance.client()) for _ in range(5)]
        readers = [
            *(crowd.PageReader(client) for client in clients[:3]),
            *(crowd.StreamReader(client) for client in clients[3:]),
        ]
        naive = {name: crowd.NaiveReader(crowd.NAIVE[name], FIRST[name]) for name in FIRST}
        writers = crowd.Writers(instance.services, fresh_database, held)

        async def write() -> int:
            await writers.write(events)
            done.set()
            return await sql.fetchval("SELECT count(*) FROM attempt_events")

        total = asyncio.create_task(write())

        def enough(reader: crowd.Reader) -> bool:
            return total.done() and len(reader.got) >= total.result()

        async with asyncio.timeout(60 + events / 100):
            await asyncio.gather(
                total,
                *(reader.read(lambda reader=reader: enough(reader)) for reader in readers),
                *(one.read(fresh_database, done) for one in naive.values()),
            )
    committed = await in_feed_order(sql)
    await sql.close()

    assert len(committed) >= events
    assert writers.rolled_back > 10
    assert all(reader.connections > 3 for reader in readers)
    for reader in readers:
        assert reader.ids == [event[0] for event in committed]
        assert crowd.inversions([(e["attempt_id"], e["event_number"]) for e in reader.got]) == 0
    ids = {event[0] for event in committed}
    lost = {name: len(ids - {one[0] for one in naive[name].got}) for name in naive}
    wrong = {name: crowd.inversions([one[1:] for one in naive[name].got]) for name in naive}
    print(f"{len(ids)} events; lost by simpler readers: {lost}; out of order: {wrong}")  # noqa: T201
    assert lost["by time"] > 0
    assert lost["by id"] > 0
    assert lost["without the attempt"] > 0
    assert wrong["by plain xid"] > 0
