"""Group commit: shared transactions that are fair, bounded, and let a bad row fail alone."""

import asyncio
from dataclasses import dataclass

import asyncpg
import pytest

from app.domain.errors import DatabaseUnavailable, OutcomeUnknown, Overloaded
from app.settings import DatabaseSettings
from app.store import gathering
from app.store.database import Database
from app.store.gathering import Gatherer


@dataclass(frozen=True)
class Line:
    """What one caller wants written; a negative number is refused by the table."""

    number: int
    key: object = None
    group: object = None
    caller: str = ""


class Desk:
    """A gatherer over a table of its own, whose batches a test can hold up and count."""

    def __init__(self, database: Database) -> None:
        self.sizes: list[int] = []
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fault: Exception | None = None
        self.gatherer = Gatherer(
            database,
            self._write,
            lambda line: line.number if line.key is None else line.key,
            lambda line: line.caller,
            lambda line: line.group,
            self.sizes.append,
        )

    async def _write(self, conn, lines):
        self.batches.append([line.number for line in lines])
        await self.open.wait()
        if self.fault is not None:
            raise self.fault
        await conn.execute(
            "INSERT INTO lines SELECT * FROM unnest($1::int[])", [line.number for line in lines]
        )
        return [line.number for line in lines]

    def ask(self, *lines: Line | int) -> list[asyncio.Task]:
        return [
            asyncio.create_task(self.gatherer.run(line if isinstance(line, Line) else Line(line)))
            for line in lines
        ]

    async def ask_while_busy(self, *lines: Line | int) -> list[asyncio.Task]:
        """Ask these while as many batches are under way as may be, so that they gather."""
        self.open.clear()
        first = self.ask(*range(1000, 1000 + gathering.PARALLEL))
        await self.until_batches(gathering.PARALLEL)
        tasks = self.ask(*lines)
        await asyncio.sleep(0)
        self.open.set()
        await asyncio.gather(*first)
        return tasks

    async def hold_many(self, count: int) -> asyncio.Event:
        """Have a batch of so many under way alone, until the event that is returned is set."""
        self.open = first = asyncio.Event()
        tasks = self.ask(*range(1000, 1000 + gathering.PARALLEL))
        await self.until_batches(gathering.PARALLEL)
        self.ask(*range(count))
        await asyncio.sleep(0)
        self.open = asyncio.Event()
        first.set()
        await asyncio.gather(*tasks)
        await self.until_batches(gathering.PARALLEL + 1)
        return self.open

    async def until_batches(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.batches) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
async def lines(fresh_database):
    connection = await asyncpg.connect(fresh_database)
    await connection.execute("CREATE TABLE lines (number int CHECK (number >= 0))")
    yield lambda: connection.fetch("SELECT number FROM lines ORDER BY 1")
    await connection.close()


@pytest.fixture
async def desk(fresh_database, lines):
    database = Database(DatabaseSettings(url=fresh_database))
    yield Desk(database)
    await database.close()


async def test_lone_command_goes_at_once_and_alone(desk):
    assert await desk.gatherer.run(Line(1)) == 1
    assert desk.sizes == [1]


async def test_commands_that_come_while_others_are_under_way_share_a_transaction(desk, lines):
    tasks = await desk.ask_while_busy(*range(50))

    assert await asyncio.gather(*tasks) == list(range(50))
    assert desk.sizes == [*[1] * gathering.PARALLEL, 50]
    assert len(await lines()) == 50 + gathering.PARALLEL


@pytest.mark.parametrize("under_way", [2, gathering.BESIDE + 4])
async def test_few_do_not_go_beside_a_batch_before_its_time(desk, monkeypatch, under_way):
    gate = await desk.hold_many(under_way)
    monkeypatch.setattr(gathering, "EVEN_SECONDS", 60)
    enough = max(under_way, gathering.BESIDE)

    few = desk.ask(*range(100, 100 + enough - 1))
    await asyncio.sleep(0.05)
    assert len(desk.batches) == gathering.PARALLEL + 1
    one_more = desk.ask(200)
    await desk.until_batches(gathering.PARALLEL + 2)

    gate.set()
    await asyncio.gather(*few, *one_more)
    await desk.gatherer.drain()
    assert desk.sizes[-2:] == [under_way, enough]


async def test_few_do_not_wait_for_long_beside_a_batch(desk):
    gate = await desk.hold_many(8)

    few = desk.ask(100, 101)
    await desk.until_batches(gathering.PARALLEL + 2)

    assert desk.batches[-1] == [100, 101]
    gate.set()
    await asyncio.gather(*few)
    await desk.gatherer.drain()


async def test_batch_is_bounded(desk):
    tasks = await desk.ask_while_busy(*range(150))

    await asyncio.gather(*tasks)
    assert max(desk.sizes) == gathering.MOST
    assert sum(desk.sizes) == 150 + gathering.PARALLEL


async def test_refused_row_fails_alone(desk, lines):
    tasks = await desk.ask_while_busy(*range(7), -1, *range(8, 20))

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(outcomes.pop(7), asyncpg.CheckViolationError)
    assert outcomes == [*range(7), *range(8, 20)]
    assert [row["number"] for row in await lines()][:19] == outcomes


async def test_batch_holds_a_key_once_and_the_second_waits_for_the_next(desk):
    tasks = await desk.ask_while_busy(Line(1, "a"), Line(2, "b"), Line(3, "a"), Line(4, "a"))

    assert await asyncio.gather(*tasks) == [1, 2, 3, 4]
    assert desk.batches[gathering.PARALLEL :] == [[1, 2], [3], [4]]


async def test_batch_is_of_one_group(desk):
    tasks = await desk.ask_while_busy(
        Line(1, group="a"), Line(2, group="b"), Line(3, group="a"), Line(4, group="b")
    )

    assert await asyncio.gather(*tasks) == [1, 2, 3, 4]
    assert desk.batches[gathering.PARALLEL :] == [[1, 3], [2, 4]]


async def test_key_that_is_under_way_is_not_begun_again_beside_it(desk):
    desk.open.clear()
    first = desk.ask(Line(1, "a"))
    await desk.until_batches(1)
    second = desk.ask(Line(2, "a"), Line(3, "b"))
    await desk.until_batches(2)

    assert desk.batches == [[1], [3]]
    desk.open.set()
    assert await asyncio.gather(*first, *second) == [1, 2, 3]


async def test_caller_that_gives_up_while_it_waits_is_dropped(desk, lines):
    desk.open.clear()
    first = desk.ask(*range(1000, 1000 + gathering.PARALLEL))
    await desk.until_batches(gathering.PARALLEL)
    waiting = desk.ask(1, 2, 3)
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    desk.open.set()

    await asyncio.gather(*first)
    assert await asyncio.gather(waiting[0], waiting[2]) == [1, 3]
    assert [row["number"] for row in await lines()][:2] == [1, 3]


async def test_caller_that_gives_up_under_way_hurts_no_neighbour(desk, lines):
    tasks = await desk.ask_while_busy(1)
    await asyncio.gather(*tasks)
    desk.open.clear()
    before = len(desk.batches)
    busy = desk.ask(*range(2000, 2000 + gathering.PARALLEL))
    await desk.until_batches(before + gathering.PARALLEL)
    together = desk.ask(2, 3)
    await asyncio.sleep(0)
    desk.open.set()
    await asyncio.gather(*busy)
    desk.open.clear()
    await desk.until_batches(before + gathering.PARALLEL + 1)
    together[0].cancel()
    desk.open.set()

    assert await together[1] == 3
    assert {1, 2, 3} <= {row["number"] for row in await lines()}


async def test_unknown_outcome_is_told_to_all_and_run_again_by_nobody(desk):
    desk.fault = OutcomeUnknown()

    tasks = await asyncio.gather(*desk.ask(1), return_exceptions=True)
    desk.fault = None
    assert isinstance(tasks[0], OutcomeUnknown)

    desk.open.clear()
    first = desk.ask(*range(1000, 1000 + gathering.PARALLEL))
    await desk.until_batches(1 + gathering.PARALLEL)
    tasks = desk.ask(1, 2, 3)
    await asyncio.sleep(0)
    desk.fault = OutcomeUnknown()
    desk.open.set()
    outcomes = await asyncio.gather(*first, *tasks, return_exceptions=True)

    assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
    assert desk.batches[-1] == [1, 2, 3]


async def test_full_queue_refuses_at_once(desk, monkeypatch):
    monkeypatch.setattr(gathering, "ROOM", 3)
    desk.open.clear()
    first = desk.ask(*range(1000, 1000 + gathering.PARALLEL))
    await desk.until_batches(gathering.PARALLEL)
    waiting = desk.ask(1, 2, 3)
    await asyncio.sleep(0)

    with pytest.raises(Overloaded):
        await desk.gatherer.run(Line(4))

    desk.open.set()
    assert await asyncio.gather(*waiting) == [1, 2, 3]
    await asyncio.gather(*first)


async def test_command_that_waited_too_long_is_refused_and_not_carried_out(
    desk, lines, monkeypatch
):
    desk.open.clear()
    first = desk.ask(*range(1000, 1000 + gathering.PARALLEL))
    await desk.until_batches(gathering.PARALLEL)
    monkeypatch.setattr(gathering, "PATIENCE_SECONDS", -1.0)
    late = desk.ask(1)
    await asyncio.sleep(0)
    desk.open.set()

    with pytest.raises(Overloaded):
        await late[0]
    await asyncio.gather(*first)
    assert len(await lines()) == gathering.PARALLEL


async def test_caller_whose_rows_spoilt_two_batches_runs_alone(desk):
    for _ in range(2):
        tasks = await desk.ask_while_busy(
            Line(1, caller="good"), Line(-1, caller="bad"), Line(2, caller="good")
        )
        await asyncio.gather(*tasks, return_exceptions=True)
    desk.batches.clear()
    tasks = await desk.ask_while_busy(
        Line(1, caller="good"), Line(3, caller="bad"), Line(2, caller="good")
    )

    assert await asyncio.gather(*tasks) == [1, 3, 2]
    assert sorted(desk.batches[gathering.PARALLEL :]) == [[1, 2], [3]]


async def test_without_a_database_everyone_is_told_so_once():
    database = Database(DatabaseSettings(url="postgresql://nobody@127.0.0.1:1/none"))
    desk = Desk(database)

    outcomes = await asyncio.gather(*desk.ask(*range(10)), return_exceptions=True)

    assert all(isinstance(outcome, DatabaseUnavailable) for outcome in outcomes)
    assert desk.batches == []


async def test_flood_of_one_kind_does_not_starve_another(fresh_database, lines):
    """Both want connections of a pool that has no more than a flood would like to take."""
    database = Database(DatabaseSettings(url=fresh_database, pool_size=gathering.PARALLEL))
    flood, other = Desk(database), Desk(database)
    order: list[str] = []
    for name, desk in (("flood", flood), ("other", other)):
        work = desk.gatherer._work

        async def noted(conn, batch, name=name, work=work):
            order.append(name)
            return await work(conn, batch)

        desk.gatherer._work = noted
    flood.open.clear()
    first = flood.ask(*range(1000))
    await flood.until_batches(gathering.PARALLEL)
    [task] = other.ask(5000)
    await asyncio.sleep(0)
    flood.open.set()

    assert await task == 5000
    await asyncio.gather(*first)
    assert order.index("other") <= 2 * gathering.PARALLEL
    assert order.count("flood") > 2 * gathering.PARALLEL
    await database.close()


async def test_drain_waits_for_what_is_under_way(desk, lines):
    tasks = await desk.ask_while_busy(*range(100))

    await desk.gatherer.drain()

    assert all(task.done() for task in tasks) or len(await lines()) >= 100
    assert await asyncio.gather(*tasks) == list(range(100))
