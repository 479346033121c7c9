"""Partitions: made ahead, made by whoever misses one, and removed without holding anybody up."""

import asyncio
from datetime import timedelta
from time import perf_counter

import asyncpg
import pytest

from app.domain.errors import DatabaseUnavailable
from app.loops.drop_partitions import DropPartitions
from app.store import old_partitions
from tests.retention.world import waiting_for_locks

DIRECT = pytest.mark.parametrize("direct", [True, False], ids=["direct", "pooled"])


@pytest.fixture
async def make(make_world, fresh_database):
    async def made(*, direct: bool, **settings):
        more = {"DATABASE__DIRECT_URL": fresh_database} if direct else {}
        return await make_world(**more, **settings)

    return made


async def test_they_are_made_sixty_days_ahead_and_then_there_is_nothing_to_do(world):
    made = await world.make_partitions()

    again = await world.make_partitions()

    newest = (await world.names())[-1]
    assert newest == f"attempt_heartbeats_{world.clock.now + timedelta(days=60):%Y%m%d}"
    assert (made, again) == (62 + len(await world.names("attempt_events")), 0)


async def test_service_that_was_off_for_a_hundred_days_makes_what_it_misses(world):
    await world.make_partitions()
    before = len(await world.names())
    await world.clock.stop()
    await world.clock.forward(100 * 86_400)

    held = await world.running()
    await world.one_beat(held, phase="executing")
    assert (await held.complete()).status_code == 200

    assert len(await world.names()) == before + 4
    assert await world.control.event_types(held.attempt_id) == [
        "created",
        "leased",
        "started",
        "heartbeat",
        "succeeded",
    ]
    assert len(await world.control.list_of(held.attempt_id, "heartbeats")) == 1


async def test_many_who_miss_the_same_one_make_it_once_and_all_succeed(world):
    created = await asyncio.gather(*(world.create() for _ in range(12)))

    assert len(set(created)) == 12
    assert await world.sql.fetchval("SELECT count(*) FROM attempt_events") == 12


async def test_making_one_waits_for_no_lock_for_long_and_comes_back(world, fresh_database):
    other = await asyncpg.connect(fresh_database)
    blocking = other.transaction()
    await blocking.start()
    await other.execute("LOCK attempt_heartbeats IN SHARE UPDATE EXCLUSIVE MODE")

    making = asyncio.create_task(world.create())
    while not await waiting_for_locks(world.sql):
        await asyncio.sleep(0.01)
    while await waiting_for_locks(world.sql):  # it gave up, and will come back
        await asyncio.sleep(0.01)
    assert not making.done()
    await blocking.rollback()

    assert await making
    await other.close()


# --- removal --------------------------------------------------------------------------------------


@DIRECT
async def test_beats_go_after_their_days_and_timelines_stay(make, direct):
    world = await make(direct=direct)
    await world.make_partitions()
    added = await world.add_days(34, 29)

    removed = await world.drop_partitions()
    again = await world.drop_partitions()

    # 34 to 31 days ago ended over 30 days ago; so far nobody needs the days of 30 and 29.
    assert (removed, again) == (4, 0)
    assert set(added) - set(await world.names()) == set(added[:4])
    notes = await world.sql.fetch("SELECT name FROM removed_partitions WHERE removed_at NOTNULL")
    assert sorted(row["name"] for row in notes) == added[:4]
    assert await world.sql.fetchval("SELECT to_regclass($1)", added[0]) is None


@DIRECT
async def test_timelines_go_by_months_where_that_is_set(make, direct):
    world = await make(direct=direct, RETENTION__EVENTS_DAYS=60)
    await world.make_partitions()
    await world.add_days(130, 1)
    before = await world.names("attempt_events")

    while await world.drop_partitions():
        pass

    limit = world.clock.now - timedelta(days=60)
    left = await world.names("attempt_events")
    assert left == [name for name in before if name >= f"attempt_events_{limit:%Y%m}"]
    assert len(left) < len(before)


async def test_what_an_open_attempt_needs_stays_whatever_its_age(world, sql):
    await world.clock.stop()
    queued = await world.create()
    await world.clock.forward(200 * 86_400)
    await world.create()
    held = await (await world.runner()).claim()
    assert held.attempt_id == queued
    await held.start()
    await world.one_beat(held)
    await world.clock.forward(40 * 86_400)

    # The days before its first lease may go, though the attempt is 240 days old.
    await world.add_days(300, 241)
    while await world.drop_partitions():
        pass

    first = await world.sql.fetchval(
        "SELECT leased_at FROM execution_attempts WHERE id = $1", queued
    )
    assert (await world.names())[0] == f"attempt_heartbeats_{first:%Y%m%d}"
    await world.clock.run_again()


@pytest.mark.parametrize("status", ["queued", "leased"])
async def test_timeline_of_an_open_attempt_stays_until_it_ends(make, status):
    world = await make(direct=True, RETENTION__EVENTS_DAYS=60)
    await world.clock.stop()
    attempt_id = await world.create()
    if status == "leased":
        await (await world.runner()).claim()
    month = await world.sql.fetchval(
        "SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYYMM') FROM execution_attempts"
    )
    names = await world.names("attempt_events")
    needed = [name for name in names if name >= f"attempt_events_{month}"]
    await world.clock.forward(200 * 86_400)

    await world.drop_partitions()
    kept = await world.names("attempt_events")
    await world.cancel(attempt_id)
    await world.clock.forward(600)
    await world.sweep()
    await world.drop_partitions()

    assert kept == needed
    assert set(needed) & set(await world.names("attempt_events")) == set()


async def test_nothing_goes_that_a_subscription_has_not_delivered_unless_it_is_said(make):
    world = await make(direct=True, RETENTION__EVENTS_DAYS=60)
    await world.make_partitions()
    await world.add_days(130, 1)
    path, body = "/v1/callback-subscriptions/all", {"url": "https://receiver.example/"}
    assert (await world.control.call("PUT", path, json={**body, "start": "oldest"})).is_success

    async def drop() -> str:
        while await world.drop_partitions():
            pass
        return (await world.names("attempt_events"))[0]

    first = await drop()
    needed = world.clock.now - timedelta(days=100)
    await world.sql.execute("UPDATE callback_cursors SET created_from = $1", needed)
    while_it_lives = await drop()
    await world.sql.execute(
        "UPDATE callback_cursors SET pause_reason = 'gone', "
        "paused_at = clock_now() - interval '31 days'"
    )
    after_it_was_paused_for_long = await drop()
    resumed = (await world.control.call("POST", f"{path}:resume")).json()

    assert first == f"attempt_events_{world.clock.now - timedelta(days=130):%Y%m}"
    assert while_it_lives == f"attempt_events_{needed:%Y%m}"
    assert after_it_was_paused_for_long > while_it_lives
    assert (resumed["state"], resumed["gap_until"] is not None) == ("active", True)


async def test_table_that_somebody_detached_by_hand_is_not_touched(make):
    world = await make(direct=True)
    [old] = await world.add_days(40, 40)
    await world.sql.execute(f"ALTER TABLE attempt_heartbeats DETACH PARTITION {old}")

    assert await world.drop_partitions() == 0
    assert await world.sql.fetchval("SELECT to_regclass($1)::text", old) == old


@DIRECT
async def test_removal_that_died_after_the_detach_is_finished_by_the_next(make, direct):
    world = await make(direct=direct)
    [old] = await world.add_days(40, 40)
    [found] = [one for one in await _list_old(world) if one.name == old]
    async with world.sql.transaction():
        await old_partitions.note(world.sql, found)
    await world.sql.execute(f"ALTER TABLE attempt_heartbeats DETACH PARTITION {old}")

    assert await world.drop_partitions() == 1
    assert await world.sql.fetchval("SELECT to_regclass($1)", old) is None


async def _list_old(world):
    async with world.sql.transaction():
        return await old_partitions.list_old(world.sql, timedelta(days=30), None)


# --- with a reader that does not end --------------------------------------------------------------


class Beats:
    """A runner that beats all the while; how long each beat took."""

    def __init__(self, held) -> None:
        self._held = held
        self.seconds: list[float] = []
        self._done = asyncio.Event()

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        while not self._done.is_set():
            began = perf_counter()
            assert (await self._held.beat()).status_code == 200
            self.seconds.append(perf_counter() - began)

    async def __aexit__(self, *_) -> None:
        self._done.set()
        await self._task


@pytest.fixture
async def reader(fresh_database):
    """Somebody who reads all heartbeats and does not end."""
    connection = await asyncpg.connect(fresh_database)
    transaction = connection.transaction()

    async def begin():
        await transaction.start()
        await connection.fetch("SELECT count(*) FROM attempt_heartbeats")
        return transaction

    yield begin
    await connection.close()


@DIRECT
async def test_open_reader_makes_the_removal_give_up_and_no_beat_waits_for_it(make, reader, direct):
    world = await make(direct=direct)
    held = await world.running()
    [old] = await world.add_days(40, 40)
    reading = await reader()
    behind: set[str] = set()

    async def watch(task) -> None:
        while not task.done():
            behind.update(q for q in await waiting_for_locks(world.sql) if "DETACH" not in q)
            await asyncio.sleep(0.002)

    async with Beats(held) as beats:
        removing = asyncio.create_task(world.drop_partitions())
        await watch(removing)
        with pytest.raises(DatabaseUnavailable) as refused:
            await removing
    await reading.rollback()

    # It was the removal that gave up, of its own lock timeout, and not the beats.
    assert isinstance(refused.value.__cause__, asyncpg.LockNotAvailableError)
    assert old in await world.names()
    assert len(beats.seconds) > 10
    if direct:
        assert behind == set()
    assert await world.drop_partitions() == 1
    assert old not in await world.names()


async def test_half_detached_one_is_finalised_before_any_other_is_begun(make, reader):
    world = await make(direct=True)
    old, younger = await world.add_days(41, 40)
    reading = await reader()
    with pytest.raises(DatabaseUnavailable):
        await world.drop_partitions()
    pending = await world.sql.fetchval(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhdetachpending"
    )
    # Making new ones goes on meanwhile, and so do beats.
    assert await world.make_partitions() > 60
    await world.one_beat(await world.running())
    await reading.rollback()

    removed = await world.drop_partitions()

    assert pending == old
    assert removed == 2
    assert not {old, younger} & set(await world.names())


async def test_half_detached_one_is_finished_by_an_instance_without_a_direct_connection(
    make, reader
):
    first, second = await make(direct=True), await make(direct=False)
    [old] = await first.add_days(40, 40)
    reading = await reader()
    with pytest.raises(DatabaseUnavailable):
        await first.drop_partitions()
    await reading.rollback()

    assert await second.drop_partitions() == 1
    assert old not in await second.names()


async def test_two_who_remove_at_once_remove_each_once(make):
    worlds = [await make(direct=True), await make(direct=True)]
    await worlds[0].make_partitions()
    added = await worlds[0].add_days(45, 31)

    for _ in range(4):
        await asyncio.gather(
            *(DropPartitions().run_once(one.services) for one in worlds), return_exceptions=True
        )

    assert not set(added) & set(await worlds[0].names())
    assert (
        await worlds[0].sql.fetchval(
            "SELECT count(*) FROM removed_partitions WHERE removed_at IS NULL"
        )
        == 0
    )


async def test_auditor_says_nothing_about_timelines_that_retention_has_cut(make):
    world = await make(direct=True, RETENTION__EVENTS_DAYS=60)
    await world.clock.stop()
    lapsed = await world.running()
    await world.clock.forward(30)
    await world.sweep()
    await lapsed.complete("failed")
    await (await world.running()).complete()
    await world.clock.forward(100 * 86_400)
    await (await world.running()).complete()
    whole = await world.audit()

    while await world.drop_partitions():
        pass

    assert await world.control.events(lapsed.attempt_id) == []
    assert (whole, await world.audit()) == ({}, {})
