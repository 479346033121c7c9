"""A world of its own: one database a worker, whose clock its tests may move.

After every test the sweeps run once more and the auditor looks at what is left.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.services import Services
from app.settings import load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Caller
from tests.lifecycle.clock import Clock
from tests.lifecycle.world import World


@pytest.fixture(scope="session")
async def worker_database(make_database: Callable[[], Awaitable[str]]) -> str:
    """Not the one of the other tests, whose time is real."""
    return await make_database()


@pytest.fixture(scope="session")
async def services(worker_database, objects, issuer) -> AsyncIterator[Services]:
    async with open_services(load(environment(worker_database, objects, issuer))) as opened:
        yield opened


@pytest.fixture(scope="session")
async def shared_http(services) -> AsyncIterator[httpx.AsyncClient]:
    async with serve_in_process(services) as client:
        yield client


@pytest.fixture
def http(shared_http, database_url) -> httpx.AsyncClient:
    return shared_http


@pytest.fixture
def operator(http, issuer) -> Caller:
    return Caller(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))


@pytest.fixture
async def clock(sql) -> AsyncIterator[Clock]:
    """Stands still at the test's begin."""
    clock = Clock(sql)
    await clock.stop()
    yield clock
    await clock.run_again()


@pytest.fixture
async def world(clock, services, control, operator, make_runner, sql) -> AsyncIterator[World]:
    """Everybody and everything; what is left of it must hold before an auditor."""
    world = World(services, control, operator, make_runner, sql)
    yield world
    await world.sweep()
    await world.keep_keys()
    assert await world.audit() == {}
