"""Epochs: when one begins, that it begins once, and that the one before then takes nothing."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from app.loops.tick import Tick
from app.store import cancels, epochs, feed, leases
from app.wiring import open_services
from tests.conftest import serve_in_process
from tests.feed import crowd
from tests.lifecycle.clock import Clock

MOVED = {
    "another cluster": "UPDATE feed_epochs SET system_identifier = '1'",
    "another timeline": "UPDATE feed_epochs SET timeline = timeline + 1",
    "transaction ids were set back": "UPDATE attempt_events SET feed_xid = '1000000000'",
    "the clock was set back": "UPDATE service_ticks SET latest_tick_at = now() + interval '61 min'",
}


@pytest.fixture
async def sql(fresh_database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(fresh_database)
    yield connection
    await connection.close()


@pytest.fixture
async def services(make_settings, fresh_database):
    async with open_services(make_settings(database=fresh_database)) as opened:
        yield opened


@pytest.fixture
async def http(services):
    async with serve_in_process(services) as client:
        yield client


async def ensure(sql: asyncpg.Connection):
    async with sql.transaction():
        if await epochs.find_due(sql) is None:
            return None
    async with sql.transaction():
        return await epochs.begin_once(sql)


async def numbers(sql: asyncpg.Connection) -> list[int]:
    return [row["number"] for row in await sql.fetch("SELECT number FROM feed_epochs ORDER BY 1")]


async def test_an_epoch_goes_on_while_nothing_has_changed(services, control, sql):
    await control.create()

    await Tick().run_once(services)
    await sql.execute("UPDATE service_ticks SET latest_tick_at = now() + interval '59 min'")
    await Tick().run_once(services)

    assert await ensure(sql) is None
    assert await numbers(sql) == [1]


@pytest.mark.parametrize("cause", MOVED)
async def test_a_tick_notices_that_a_new_epoch_is_due(services, control, sql, cause):
    first = await control.create()
    await sql.execute(MOVED[cause])
    seen = await sql.fetchrow("SELECT feed_xid, feed_epoch FROM attempt_events")

    await Tick().run_once(services)
    await Tick().run_once(services)
    second = await control.create()

    assert await numbers(sql) == [1, 2]
    begun = await sql.fetchrow("SELECT * FROM feed_epochs WHERE number = 2")
    assert begun["previous_end_xid"] == seen["feed_xid"]
    page = await feed.read(sql, await feed.oldest(sql), 10)
    assert [str(event.attempt_id) for event in page.events] == [first["id"], second["id"]]
    assert [event.cursor.epoch for event in page.events] == [1, 2]


async def test_a_connection_is_not_used_before_its_servers_epoch_is_known(
    make_settings, sql, fresh_database
):
    await sql.execute(MOVED["another cluster"])

    async with open_services(make_settings(database=fresh_database)) as fresh:
        await fresh.database.run(feed.oldest)

    assert await numbers(sql) == [1, 2]


async def test_of_many_that_notice_one_begins_the_epoch(sql, fresh_database):
    await sql.execute(MOVED["another cluster"])
    others = [await asyncpg.connect(fresh_database) for _ in range(8)]

    begun = await asyncio.gather(*(ensure(one) for one in others))

    assert sorted(one for one in begun if one is not None) == [(2, "another cluster")]
    assert await numbers(sql) == [1, 2]
    for one in others:
        await one.close()


async def test_steps_back_that_are_small_alone_are_added_up(services, sql):
    clock = Clock(sql)
    await clock.stop()
    await Tick().run_once(services)

    for _ in range(2):
        await clock.forward(-40 * 60)
        await Tick().run_once(services)

    assert await numbers(sql) == [1, 2]
    await clock.forward(-40 * 60)
    await Tick().run_once(services)
    assert await numbers(sql) == [1, 2], "the next one counts from where the epoch began"


async def test_whoever_writes_is_waited_for(control, sql, fresh_database):
    made = await control.create()
    writer = await asyncpg.connect(fresh_database)
    transaction = writer.transaction()
    await transaction.start()
    await cancels.mark_once(writer, [made["id"]], ["no more"], timedelta(seconds=60))
    await sql.execute(MOVED["another cluster"])
    beginning = asyncio.create_task(ensure(sql))
    await asyncio.sleep(0.2)
    assert not beginning.done()

    await transaction.commit()
    await beginning

    last = await sql.fetchrow(
        "SELECT feed_epoch, feed_xid FROM attempt_events ORDER BY feed_xid DESC"
    )
    end = await sql.fetchval("SELECT previous_end_xid FROM feed_epochs WHERE number = 2")
    assert (last["feed_epoch"], last["feed_xid"]) == (1, end)
    await writer.close()


async def test_a_statement_that_began_before_the_epoch_writes_to_the_new_one(
    control, runner, sql, fresh_database
):
    """It waits for a row with the snapshot of its beginning, which does not know the new epoch.

    One that is planned only then holds the epochs' lock while it waits, and is waited for; one
    whose plan was kept does not.
    """
    warm, held = await crowd.working(control, runner, 2, start=False)
    plans_once = {"plan_cache_mode": "force_generic_plan"}
    writer = await asyncpg.connect(fresh_database, server_settings=plans_once)
    await leases.start(writer, [crowd.key_of(warm)], crowd.HOUR, crowd.HOUR)
    holder = await asyncpg.connect(fresh_database)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM execution_attempts WHERE id = $1 FOR UPDATE", held.attempt_id)
    writing = asyncio.create_task(
        leases.start(writer, [crowd.key_of(held)], crowd.HOUR, crowd.HOUR)
    )
    await asyncio.sleep(0.2)
    await sql.execute(MOVED["another cluster"])

    try:
        assert not writing.done()
        assert await ensure(sql) == (2, "another cluster")
    finally:
        await transaction.rollback()
        await writing
        await holder.close()
        await writer.close()

    rows = await sql.fetch(
        "SELECT event_type, feed_epoch FROM attempt_events WHERE attempt_id = $1 "
        "ORDER BY event_number",
        held.attempt_id,
    )
    assert [tuple(row) for row in rows] == [("created", 1), ("leased", 1), ("started", 2)]
