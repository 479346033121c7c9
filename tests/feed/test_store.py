"""The feed's reads: pages, windows of time, filters, and what cannot be followed any more."""

import datetime as dt
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.domain.errors import FeedCursorExpired, FeedEpochChanged
from app.domain.feed import SKEW, Cursor, body, start_of_epoch
from app.store import feed, partitions

ADD = """
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch, feed_xid,
    created_at)
SELECT gen_random_uuid(), i.attempt_id, i.number, i.type, '{}', i.epoch, i.xid::text::xid8, i.at
FROM unnest($1::uuid[], $2::int[], $3::text[], $4::int[], $5::bigint[], $6::timestamptz[])
    AS i(attempt_id, number, type, epoch, xid, at)
"""


class Past:
    """Events as they may have been written once, in months that begin where the test says."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self.sql = sql
        self.now = datetime.now(UTC)

    async def months(self, many: int) -> None:
        """So many months up to this one."""
        month = self.now.date().replace(day=1)
        for _ in range(many):
            end = (month.replace(day=28) + timedelta(days=4)).replace(day=1)
            await partitions._make(self.sql, "attempt_events", f"{month:%Y%m}", month, end)
            month = (month - timedelta(days=1)).replace(day=1)

    async def add(self, *events: tuple[int, UUID, int, datetime], epoch: int = 1) -> None:
        """Each: xid, attempt, number, time."""
        columns = list(zip(*events, strict=True))
        types = ["created" if number == 1 else "leased" for number in columns[2]]
        await self.sql.execute(
            ADD, columns[1], columns[2], types, [epoch] * len(events), columns[0], columns[3]
        )

    async def read_all(self, limit: int, after: Cursor | None = None, **more) -> list[int]:
        """The xids of all events, read in pages."""
        after = after or await feed.oldest(self.sql)
        got: list[int] = []
        for _ in range(10_000):
            page = await feed.read(self.sql, after, limit, **more)
            assert len(page.events) <= limit
            assert page.next_cursor >= after
            if page.next_cursor.epoch == after.epoch:
                assert page.next_cursor.created_from >= after.created_from
            got += [event.cursor.xid for event in page.events]
            after = Cursor.decode(page.next_cursor.encode())
            if page.caught_up:
                return got
        raise AssertionError("it never catches up")


@pytest.fixture
async def past(fresh_database) -> AsyncIterator[Past]:
    sql = await asyncpg.connect(fresh_database)
    await sql.execute("SELECT pg_current_xact_id()")
    yield Past(sql)
    await sql.close()


async def test_a_life_is_read_in_order_and_once(control, runner, sql):
    await runner.register()
    made = await control.create()
    await (await runner.start()).complete()

    first = await feed.read(sql, await feed.oldest(sql), 2)
    rest = await feed.read(sql, first.next_cursor, 100)
    nothing = await feed.read(sql, rest.next_cursor, 100)

    types = [event.type.removeprefix("attempt.") for event in (*first.events, *rest.events)]
    assert types == ["created", "leased", "started", "succeeded"]
    assert (first.caught_up, rest.caught_up, nothing.events) == (False, True, ())
    assert nothing.next_cursor == rest.next_cursor
    assert {str(event.operation_id) for event in first.events} == {made["operation_id"]}
    assert set(body(first.events[0])) == {
        *("id", "type", "timestamp", "attempt_id", "event_number", "data")
    }


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
async def test_years_are_read_month_by_month_without_loss(past, limit):
    await past.months(40)
    start = past.now - timedelta(days=39 * 30)
    # In the order of the feed; their times are off by up to the skew, also at the months' ends.
    events = [
        (
            n // 3,
            UUID(int=n),
            1,
            start + timedelta(days=39 * 30 / 200) * n - random.random() * SKEW * 0.9,
        )
        for n in range(1, 200)
    ]
    months = [dt.datetime(past.now.year - 1, month, 1, tzinfo=UTC) for month in range(1, 13)]
    edges = [
        (100 + n, UUID(int=1000 + n), 1, month + (random.random() - 0.5) * SKEW)
        for n, month in enumerate(sorted(months))
    ]
    await past.add(*events)

    assert await past.read_all(limit) == [event[0] for event in events]

    await past.sql.execute("DELETE FROM attempt_events")
    await past.add(*edges)
    assert await past.read_all(limit) == [event[0] for event in edges]


@pytest.mark.parametrize("limit", [1, 1000])
async def test_what_a_window_of_time_cuts_off_is_not_passed(past, limit):
    """The event that the feed has first was created after its end, the next one before it."""
    await past.months(5)
    top = (await feed.oldest(past.sql)).created_from + feed._WINDOW
    near = timedelta(minutes=50)
    await past.add((6, UUID(int=1), 1, top + near), (7, UUID(int=2), 1, top - near))
    await past.add((8, UUID(int=3), 1, top + 3 * SKEW))

    assert await past.read_all(limit) == [6, 7, 8]


@pytest.mark.parametrize("limit", [1, 3, 4])
async def test_equal_times_and_transactions_at_the_end_of_a_page(past, limit):
    await past.months(1)
    same = [(5, UUID(int=n), 1, past.now) for n in range(1, 12)]
    await past.add(*same, (5, UUID(int=4), 2, past.now), (4, UUID(int=12), 1, past.now))

    got = await past.read_all(limit)

    assert got == [4] + [5] * 12


async def test_facts_dated_ahead_of_a_clock_that_was_set_back_are_not_lost(past):
    """Attempts that were open keep the time of their last event until the clock is there again."""
    await past.months(12)
    ahead = past.now - timedelta(days=100)
    back = past.now - timedelta(days=300)
    await past.add((5, UUID(int=1), 1, ahead))
    await past.sql.execute(
        "INSERT INTO feed_epochs SELECT 2, system_identifier, timeline, '5', $1, $2 "
        "FROM feed_epochs",
        back,
        ahead,
    )
    days = [back + timedelta(days=day) for day in range(290)]
    await past.add(
        *[(6 + 2 * n, UUID(int=10 + n), 1, day) for n, day in enumerate(days)],
        *[(7 + 2 * n, UUID(int=1), 2 + n, max(ahead, day)) for n, day in enumerate(days)],
        epoch=2,
    )

    for limit in (1, 50, 1000):
        assert await past.read_all(limit) == list(range(5, 6 + 2 * len(days)))


async def test_the_order_goes_on_across_32_bits(past):
    await past.months(1)
    xids = [2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**62]
    await past.add(*[(xid, UUID(int=9 - n), 1, past.now) for n, xid in enumerate(xids)])
    await past.sql.execute(
        "INSERT INTO feed_epochs "
        "SELECT 2, system_identifier, timeline, $1, $2, $2 FROM feed_epochs",
        xids[-1],
        past.now,
    )

    assert await past.read_all(1) == xids
    assert await past.read_all(1000) == xids


async def test_a_filter_moves_on_over_what_it_leaves_out(past):
    await past.months(4)
    days = [past.now - timedelta(days=60) + timedelta(minutes=20) * n for n in range(4000)]
    await past.add(*[(1 + n // 8, uuid4(), 1 + (n % 500 == 7), at) for n, at in enumerate(days)])

    got = await past.read_all(3, types=["attempt.leased"])
    none = await past.read_all(3, types=["attempt.lost"])

    assert got == [1 + n // 8 for n in range(4000) if n % 500 == 7]
    assert none == []


async def test_a_filter_by_operation_and_job_type(control, sql):
    first = await control.create()
    await control.create()
    after = await feed.oldest(sql)

    by_operation = await feed.read(sql, after, 10, operation_ids=[UUID(first["operation_id"])])
    by_type = await feed.read(sql, after, 10, job_types=["ssh.command.run"])
    by_other = await feed.read(sql, after, 10, job_types=["helm.install"])

    assert [len(page.events) for page in (by_operation, by_type, by_other)] == [1, 2, 0]
    assert by_other.next_cursor == by_type.next_cursor


async def test_latest_is_after_all_that_can_be_read(control, sql):
    empty = await feed.latest(sql)
    await control.create()

    later = await feed.latest(sql)
    made = await control.create()

    for after, many in ((empty, 2), (later, 1)):
        page = await feed.read(sql, after, 10)
        assert len(page.events) == many
        assert str(page.events[-1].attempt_id) == made["id"]


async def test_nothing_is_read_at_or_above_a_running_transaction(control, sql, database_url):
    slow = await asyncpg.connect(database_url)
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("-- some.statement\nSELECT pg_current_xact_id()")
    await control.create()
    after = await feed.oldest(sql)

    hidden = await feed.read(sql, after, 10)
    holder = await feed.horizon(sql)
    await transaction.rollback()
    shown = await feed.read(sql, hidden.next_cursor, 10)

    assert (hidden.events, hidden.caught_up) == ((), True)
    assert holder is not None
    assert (holder.kind, holder.name) == ("session", str(slow.get_server_pid()))
    assert holder.statement == "some.statement"
    assert holder.state.startswith("idle in transaction")
    assert holder.age_seconds > 0
    assert len(shown.events) == 1
    await slow.close()


async def test_a_foreign_transaction_elsewhere_in_the_cluster_is_named_too(control, sql, postgres):
    foreign = await asyncpg.connect(postgres.admin_dsn)
    transaction = foreign.transaction()
    await transaction.start()
    await foreign.execute("SELECT pg_current_xact_id()")
    before = await feed.horizon(sql)
    await control.create()

    holder = await feed.horizon(sql)
    page = await feed.read(sql, await feed.oldest(sql), 10)
    await transaction.rollback()

    assert page.events == ()
    assert (before.name, before.age_seconds) == (str(foreign.get_server_pid()), None)
    assert (holder.kind, holder.name) == ("session", str(foreign.get_server_pid()))
    assert (holder.database, holder.statement) == ("postgres", None)
    assert holder.age_seconds > 0
    await foreign.close()


# --- what cannot be followed any more -------------------------------------------------------------


async def test_a_cursor_that_retention_has_passed_is_told_the_oldest(past):
    days = [past.now - timedelta(days=day) for day in range(64, 0, -1)]
    await past.months(len({f"{day:%Y%m}" for day in [*days, past.now]}))
    await past.add(*[(n + 1, uuid4(), 1, day) for n, day in enumerate(days)])
    begin = await feed.oldest(past.sql)
    old = (await feed.read(past.sql, begin, 1)).next_cursor
    recent = (await feed.read(past.sql, begin, 60)).next_cursor
    names = await past.sql.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits "
        "WHERE inhparent = 'attempt_events'::regclass ORDER BY 1"
    )

    await past.sql.execute(f"DROP TABLE {names[0]['name']}")

    for passed in (begin, old):
        with pytest.raises(FeedCursorExpired) as told:
            await feed.read(past.sql, passed, 10)
    assert await past.read_all(10, recent) == [61, 62, 63, 64]
    oldest = Cursor.decode(told.value.context["oldest"])
    assert oldest == await feed.oldest(past.sql)
    kept = await past.read_all(1, oldest)
    assert 1 < len(kept) < 64
    assert kept == list(range(65 - len(kept), 65))


async def test_the_first_events_that_are_kept_are_followed_by_others(past):
    """Their bound in time must not fall into what retention has removed."""
    await past.months(2)
    first = (await feed.oldest(past.sql)).created_from
    minute = timedelta(minutes=1)
    await past.add(*[(n, UUID(int=n), 1, first + n * minute) for n in range(5, 9)])

    assert await past.read_all(1) == [5, 6, 7, 8]


async def test_a_cursor_from_elsewhere_is_told_the_start(past):
    await past.months(1)
    here = await feed.latest(past.sql)
    foreign = [replace(here, epoch=2), replace(here, epoch=2**31 - 1), replace(here, xid=2**60)]

    for cursor in foreign:
        with pytest.raises(FeedEpochChanged) as told:
            await feed.read(past.sql, cursor, 10)
        assert Cursor.decode(told.value.context["start"]) == start_of_epoch(1, past.now)
