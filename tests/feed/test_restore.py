"""A dump restored into a new cluster: a new epoch, and every reader goes on or is told."""

import asyncio
import subprocess
from contextlib import AsyncExitStack

import asyncpg
import pytest

from app.domain.feed import Cursor
from app.embedded.guarded import clean_environment
from app.embedded.postgres import EmbeddedPostgres, program
from tests.feed import crowd
from tests.feed.test_readers import in_feed_order

SIZES = [600, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


def dumped(dsn: str) -> bytes:
    return run("pg_dump", "--no-owner", dsn)


def restore(dump: bytes, dsn: str) -> None:
    run("psql", "-q", "-v", "ON_ERROR_STOP=1", dsn, stdin=dump)


def run(name: str, *arguments: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        [program(name), *arguments],
        input=stdin,
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture
async def new_cluster(tmp_path):
    server = EmbeddedPostgres(tmp_path / "cluster", options={"fsync": "off"})
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize("events", SIZES)
async def test_readers_go_on_after_a_restore_and_who_saw_too_much_is_told(
    open_instance, fresh_database, new_cluster, events
):
    async with AsyncExitStack() as stack:
        old = await open_instance(database=fresh_database)
        http = await stack.enter_async_context(old.client())
        held = await crowd.working(old.control(http), old.runner(http), 20)
        await crowd.Writers(old.services, fresh_database, held).write(events)
        behind, complete, beyond = (crowd.PageReader(http) for _ in range(3))
        await behind.read(lambda: len(behind.got) > events // 2)
        sql = await asyncpg.connect(fresh_database)
        total = await sql.fetchval("SELECT count(*) FROM attempt_events")
        await complete.read(lambda: len(complete.got) >= total)
        dump = await asyncio.to_thread(dumped, fresh_database)
        await old.control(http).create()
        await beyond.read(lambda: len(beyond.got) > total)
        await sql.close()

        await asyncio.to_thread(restore, dump, new_cluster.dsn)
        new = await open_instance(database=new_cluster.dsn)
        http = await stack.enter_async_context(new.client())
        await crowd.Writers(new.services, new_cluster.dsn, held).write(events)

        sql = await asyncpg.connect(new_cluster.dsn)
        committed = await in_feed_order(sql)
        epochs = await sql.fetch(
            "SELECT feed_epoch AS number, max(feed_xid) AS newest, min(feed_xid) AS oldest "
            "FROM attempt_events GROUP BY 1 ORDER BY 1"
        )
        await sql.close()
        fresh = crowd.StreamReader(http)
        for reader in (behind, complete, fresh):
            reader.client = http
            await reader.read(lambda reader=reader: len(reader.got) >= len(committed))
        refused = await http.get("/v1/events", params={"after": beyond.cursor})
        on = await http.get(
            "/v1/events", params={"after": refused.json()["start"], "page_size": 1000}
        )

    assert [epoch["number"] for epoch in epochs] == [1, 2]
    assert epochs[1]["oldest"] < epochs[0]["newest"], "a plain xid would have lost these"
    for reader in (behind, complete, fresh):
        assert reader.ids == [event[0] for event in committed]
    assert (refused.status_code, refused.json()["reason"]) == (410, "feed-epoch-changed")
    second = [event[0] for event in committed[total:]]
    assert [event["id"] for event in on.json()["items"]] == second[:1000]
    assert Cursor.decode(refused.json()["start"]).epoch == 2
