"""Removal that dies, or whose store goes away, at every step: rows and objects agree afterwards."""

import asyncio
import random
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.loops.remove_orphans import RemoveOrphans
from app.store import partitions
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Caller, Control, RunnerClient
from tests.kill.world import ServiceProcess
from tests.lifecycle.clock import Clock
from tests.retention.s3_proxy import StubbornStore
from tests.retention.world import World

TWO_DAYS_LATER = """
CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT now() + interval ''2 d''';
CREATE OR REPLACE FUNCTION clock_fact() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT clock_timestamp() + interval ''2 d''';
"""


class Stage(World):
    """A database full of what is due, and processes that may be killed while they remove it."""

    def __init__(self, *parts, database: str, values: dict[str, object], objects, issuer, folder):
        super().__init__(*parts)
        self.database, self.values = database, values
        self._objects, self._issuer, self._folder = objects, issuer, folder
        self.processes: list[ServiceProcess] = []

    async def fill(self, expired: int, orphans: int) -> None:
        """Expired artifacts (some shared, some held), kept ones, strays and an old partition."""
        attempt_id = await self.ended(b"a log\n")
        past = self.clock.now - timedelta(hours=1)
        for number in range(expired):
            key = f"shared/{number // 6}" if number % 3 == 0 else None
            await self.artifact(attempt_id, key=key, expires_at=past, body=b"%d" % (number // 6))
        self.held = {await self.artifact(attempt_id, days_old=500) for _ in range(5)}
        for one in self.held:
            assert (await self.hold(f"artifacts/{one}")).status_code == 200
        self.kept = {await self.artifact(attempt_id) for _ in range(5)}
        for number in range(orphans):
            await self.services.objects.put_once(f"stray/{number}", b"{}")
        await self.add_days(40, 38)
        await self.sql.execute(TWO_DAYS_LATER)

    async def serve(self, **settings: object) -> ServiceProcess:
        values = environment(
            self.database,
            self._objects,
            self._issuer,
            **{**self.values, "DATABASE__DIRECT_URL": self.database, **settings},
        )
        process = ServiceProcess(values, self._folder / f"service-{len(self.processes)}.log")
        self.processes.append(process)
        process.spawn()
        return process

    async def until(self, seconds: float, what) -> None:
        for _ in range(int(seconds * 10)):
            if await what():
                return
            await asyncio.sleep(0.1)
        raise AssertionError(self.processes[-1].log_text()[-4000:])

    async def has_leader(self) -> bool:
        return await self.sql.fetchval("SELECT holder IS NOT NULL FROM leaders")

    async def is_clean(self) -> bool:
        """All that was due is gone: artifacts, strays, partitions."""
        due = await self.sql.fetchval(
            "SELECT count(*) FROM artifact_refs WHERE state = 'removing' OR "
            "(held_at IS NULL AND expires_at < clock_now())"
        )
        strays = {key for key in await self.keys() if key.startswith("stray/")}
        begun = await self.sql.fetchval(
            "SELECT count(*) FROM removed_partitions WHERE removed_at IS NULL"
        )
        gone = await self.sql.fetchval("SELECT count(*) FROM removed_partitions")
        return not due and not strays and not begun and gone == 3

    async def assert_rows_and_objects_agree(self) -> None:
        rows = await self.sql.fetch("SELECT id, key, held_at FROM artifact_refs")
        prefix = self.services.settings.objects.prefix
        assert {row["key"].removeprefix(prefix) for row in rows} == await self.keys()
        ids = {row["id"] for row in rows}
        assert self.held | self.kept <= ids
        assert {row["id"] for row in rows if row["held_at"]} == self.held
        assert not [name for name in await self.names() if name.endswith(tuple(self.old_days()))]

    def old_days(self) -> list[str]:
        return [f"{self.clock.now - timedelta(days=n):%Y%m%d}" for n in (40, 39, 38)]


@pytest.fixture
async def make_stage(fresh_database, objects, issuer, make_settings, tmp_path):
    async with AsyncExitStack() as stack:

        async def make(**settings: object) -> Stage:
            values = {"OBJECTS__PREFIX": f"kill-{uuid4().hex}/"}
            services = await stack.enter_async_context(
                open_services(make_settings(database=fresh_database, **values))
            )
            http = await stack.enter_async_context(serve_in_process(services))
            sql = await asyncpg.connect(fresh_database)
            stack.push_async_callback(sql.close)
            async with sql.transaction():
                await partitions.ensure(sql)

            def token(role: str) -> str:
                return issuer[0].mint(ACCOUNTS[role], AUDIENCE)

            stage = Stage(
                services,
                Control(http, token("control-plane")),
                Caller(http, token("operator")),
                lambda **profile: RunnerClient(http, token("runner"), **profile),
                sql,
                Clock(sql),
                database=fresh_database,
                values={**values, **settings},
                objects=objects,
                issuer=issuer,
                folder=tmp_path,
            )
            stack.push_async_callback(_end, stage)
            await stage.mark_bucket()
            return stage

        yield make


async def _end(stage: Stage) -> None:
    for process in stage.processes:
        if not process.has_ended:
            process.kill()


@pytest.mark.parametrize(
    "moment",
    [
        "retention.after_mark",
        "retention.after_object",
        "orphans.after_close",
        "partitions.after_detach",
    ],
)
async def test_removal_that_dies_at_a_named_moment_is_finished_by_the_next(make_stage, moment):
    stage = await make_stage()
    await stage.fill(expired=30, orphans=5)
    deadly = {moment: {"action": "kill", "times": 1}}
    first = await stage.serve(TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=deadly)

    async def has_died() -> bool:
        return first.has_ended

    await stage.until(60, has_died)
    await stage.serve()
    await stage.until(60, stage.is_clean)

    await stage.assert_rows_and_objects_agree()


async def removal_under_kills(stage: Stage, objects, kills: int, seed: int) -> None:
    """kill -9 at random moments of the removal, while the store comes and goes."""
    dice = random.Random(seed)
    async with StubbornStore(stage.services.objects, objects.endpoint_url) as store:
        for _ in range(kills):
            process = await stage.serve(OBJECTS__ENDPOINT_URL=store.url)
            store.refuses = lambda _: dice.random() < 0.2
            store.away_after = dice.choice([None, 1, 2])
            store.batches.clear()
            await stage.until(30, stage.has_leader)
            await asyncio.sleep(dice.uniform(0, 1))
            process.kill()
            store.away = False
            await stage.sql.execute("UPDATE leaders SET holder = NULL, expires_at = NULL")
    await stage.serve()
    await stage.until(90, stage.is_clean)
    await stage.assert_rows_and_objects_agree()


@pytest.mark.timeout(180)
async def test_rows_and_objects_agree_after_kills_with_a_store_that_comes_and_goes(
    make_stage, objects
):
    stage = await make_stage()
    await stage.fill(expired=60, orphans=10)

    await removal_under_kills(stage, objects, kills=3, seed=11)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
async def test_rows_and_objects_agree_after_many_kills(make_stage, objects, seed):
    stage = await make_stage()
    await stage.fill(expired=1500, orphans=60)

    await removal_under_kills(stage, objects, kills=15, seed=seed)


async def test_two_leaders_that_remove_at_once_agree(make_stage):
    """What a leader that does not know that it was replaced would do."""
    stage = await make_stage()
    await stage.fill(expired=30, orphans=20)

    await asyncio.gather(
        *(stage.remove_expired() for _ in range(3)),
        *(stage.run(RemoveOrphans()) for _ in range(3)),
        stage.drop_partitions(),
    )

    assert await stage.is_clean()
    await stage.assert_rows_and_objects_agree()
