"""A read of the feed reads what it hands out, however much there is and in however many months."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.domain.feed import SKEW, Cursor
from app.store import epochs, feed, partitions, timelines

MONTHS = 40
EVENTS = 50_000
FILL = """
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch, feed_xid,
    created_at)
SELECT gen_random_uuid(), lpad(to_hex(n / 4), 32, '0')::uuid, 1 + n % 4,
    CASE n % 4 WHEN 0 THEN 'created' ELSE 'leased' END, '{"some": "facts"}', 1,
    (3 + n / 100)::text::xid8, $1::timestamptz + n * $2::interval
FROM generate_series(0, $3::int - 1) n
"""


@pytest.fixture(scope="session")
async def long_feed(make_database):
    """50,000 events over 40 months, a hundred a transaction."""
    sql = await asyncpg.connect(await make_database())
    month = datetime.now(UTC).date().replace(day=1)
    for _ in range(MONTHS):
        end = (month.replace(day=28) + timedelta(days=4)).replace(day=1)
        await partitions._make(sql, "attempt_events", f"{month:%Y%m}", month, end)
        first, month = month, (month - timedelta(days=1)).replace(day=1)
    begin = datetime(first.year, first.month, 1, tzinfo=UTC)
    now = datetime.now(UTC) - timedelta(minutes=1)
    await sql.execute(FILL, begin, (now - begin) / EVENTS, EVENTS, timeout=120)
    async with sql.transaction():
        await partitions.ensure(sql)
    await sql.execute("VACUUM ANALYZE", timeout=120)
    yield sql
    await sql.close()


async def explain(sql: asyncpg.Connection, statement: str, *values: object) -> dict[str, Any]:
    plan = await sql.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, *values)
    return json.loads(plan)[0]["Plan"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def months_of(plan: dict[str, Any]) -> set[str]:
    """The partitions of events that a plan reads, whether or not it finds anything there."""
    return {
        node["Relation Name"]
        for node in nodes(plan)
        if node.get("Relation Name", "").startswith("attempt_events_")
        and node.get("Actual Loops", 0) > 0
    }


def pages_of(plan: dict[str, Any]) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


class Recorder:
    """Passes statements on, and keeps what was asked."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    async def execute(self, statement: str) -> str:
        return await self._sql.execute(statement)

    async def fetch(self, statement: str, *values: object):
        self.asked.append((statement, values))
        return await self._sql.fetch(statement, *values)


async def places(sql: asyncpg.Connection) -> list[Cursor]:
    """At the begin, all over the feed, and at its end."""
    rows = await sql.fetch(
        "SELECT feed_epoch, feed_xid, attempt_id, event_number, created_at FROM attempt_events "
        "WHERE event_number = 1 AND feed_xid::text::int % 50 = 0 ORDER BY feed_xid, attempt_id"
    )
    found = [Cursor(*list(row)[:4], row["created_at"] - SKEW) for row in rows[::25]]
    return [await feed.oldest(sql), *found, await feed.latest(sql)]


async def test_each_statement_of_the_feed_reads_few_months_and_few_pages(long_feed):
    for place in await places(long_feed):
        for limit in (1, 1000):
            recorder = Recorder(long_feed)
            page = await feed.read(recorder, place, limit)
            assert len(page.events) == limit or page.caught_up
            for statement, values in recorder.asked:
                plan = await explain(long_feed, statement, *values)
                assert len(months_of(plan)) <= 3, place
                assert pages_of(plan) < 150 + 4 * limit, place
                sorts = [one for one in nodes(plan) if one["Node Type"] == "Sort"]
                assert sum(one["Actual Rows"] for one in sorts) < 2000


async def test_empty_months_to_come_make_nothing_be_sorted(long_feed):
    """A part that is scanned has no order, and then all behind the cursor is sorted for a page."""
    now = datetime.now(UTC)
    recent = [one for one in await places(long_feed) if now - one.created_from < timedelta(days=40)]
    assert recent

    for place in recent:
        recorder = Recorder(long_feed)
        async with long_feed.transaction():
            await feed.read(recorder, place, 10)
            for statement, values in recorder.asked:
                if "feed.read" in statement:
                    plan = await explain(long_feed, statement, *values)
                    assert "Sort" not in [one["Node Type"] for one in nodes(plan)], place


async def test_a_thousand_events_are_one_statement_where_they_lie_close(long_feed):
    recorder = Recorder(long_feed)
    place = (await places(long_feed))[-6]

    page = await feed.read(recorder, place, 500)

    assert len(page.events) == 500
    assert [text.split()[1] for text, _ in recorder.asked if "feed.read" in text] == ["feed.read"]


async def test_the_plan_that_is_kept_reads_no_more(long_feed):
    """A prepared statement is planned without its values in the end."""
    await long_feed.execute("SET plan_cache_mode = force_generic_plan")
    for place in await places(long_feed):
        window = place.created_from + feed._WINDOW
        values = (
            *(place.epoch, place.xid, place.attempt_id, place.event_number),
            *(True, place.created_from, window, 1000),
        )
        plan = await explain(long_feed, feed._READ, *values)
        assert len(months_of(plan)) <= 3
        assert pages_of(plan) < 4150
    await long_feed.execute("RESET plan_cache_mode")


@pytest.mark.parametrize("statement", [epochs._PROBE, feed._LOOK, feed._HORIZON])
async def test_what_is_asked_each_second_reads_little(long_feed, statement):
    plan = await explain(long_feed, statement)

    assert len(months_of(plan)) <= 5
    assert pages_of(plan) < 200


async def test_latest_reads_little(long_feed):
    recorder = []

    class One:
        fetch = long_feed.fetch

        async def fetchrow(self, statement: str, *values: object):
            recorder.append((statement, values))
            return await long_feed.fetchrow(statement, *values)

    await feed.latest(One())

    [(statement, values)] = recorder
    plan = await explain(long_feed, statement, *values)
    assert len(months_of(plan)) <= 3
    assert pages_of(plan) < 50


async def test_a_timeline_reads_few_months_a_statement(long_feed):
    row = await long_feed.fetchrow(
        "SELECT attempt_id, created_at FROM attempt_events WHERE event_number = 1 LIMIT 1"
    )
    values = (row["attempt_id"], row["created_at"], row["created_at"] + timelines._EVENT_STEP)

    plan = await explain(long_feed, timelines._EVENTS, *values, 0, 100)

    assert len(months_of(plan)) <= 3
    assert pages_of(plan) < 50
    assert isinstance(row["attempt_id"], UUID)
