"""Through PgBouncer in transaction mode: no session state survives, LISTEN hears nothing."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.settings import load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Control, RunnerClient, new_attempt
from tests.pooler import PgBouncer


@pytest.fixture
async def pooled(fresh_database, tmp_path):
    """The database's address behind a pooler of this test's own."""
    pooler = await PgBouncer(fresh_database, tmp_path).start()
    yield pooler.through(fresh_database)
    pooler.stop()


async def test_two_instances_behind_a_transaction_pooler_behave_as_one(pooled, objects, issuer):
    source, _ = issuer
    values = environment(pooled, objects, issuer, DATABASE__STATEMENT_CACHE_SIZE=0)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(open_services(load(values))) for _ in range(2)
        ]
        async with serve_in_process(first) as one, serve_in_process(second) as two:
            control = Control(one, source.mint(ACCOUNTS["control-plane"], AUDIENCE))
            runner = RunnerClient(two, source.mint(ACCOUNTS["runner"], AUDIENCE))
            await runner.register(capacity_total=50)

            waiting = asyncio.create_task(runner.claim_all(wait_seconds=20))
            await asyncio.sleep(0.2)
            await control.create()
            [held] = await waiting  # woken by the poll: the pooler swallows notifications
            await held.start()
            await held.beat(phase="executing")
            await held.log(b"through a pooler\n", 0)
            completed = await held.complete()

            assert completed.status_code == 200, completed.text
            assert await control.event_types(held.attempt_id) == [
                "created",
                "leased",
                "started",
                "heartbeat",
                "succeeded",
            ]


async def test_many_claims_through_a_pooler_give_each_attempt_once(pooled, objects, issuer):
    source, _ = issuer
    values = environment(pooled, objects, issuer, DATABASE__STATEMENT_CACHE_SIZE=0)
    async with open_services(load(values)) as services, serve_in_process(services) as http:
        control = Control(http, source.mint(ACCOUNTS["control-plane"], AUDIENCE))
        batch = {"attempts": [new_attempt() for _ in range(100)]}
        await control.call("POST", "/v1/attempts:batch", json=batch)
        token = source.mint(ACCOUNTS["runner"], AUDIENCE)
        runners = [await RunnerClient(http, token).register(capacity_total=100) for _ in range(10)]

        async def claim_until_empty(runner: RunnerClient) -> list[str]:
            got: list[str] = []
            while held := await runner.claim_all(max_leases=3):
                got += [one.attempt_id for one in held]
            return got

        claimed = await asyncio.gather(*(claim_until_empty(runner) for runner in runners))

    ids = [attempt_id for got in claimed for attempt_id in got]
    assert len(ids) == len(set(ids)) == 100
