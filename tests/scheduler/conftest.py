"""A database whose clock may be moved, callers of its API, and further processes of an election."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import httpx
import pytest

from app.api.dispatch import Dispatcher
from app.api.inside import Inside
from app.commands.leadership import Leadership
from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.handlers import all_handlers
from app.loops.leader import Leader
from app.services import Services
from app.settings import load
from app.wiring import open_services
from tests.api.conftest import quiet
from tests.conftest import environment, serve_in_process
from tests.driver import Caller, Control
from tests.lifecycle.clock import Clock
from tests.scheduler.world import World

__all__ = ["quiet"]


@pytest.fixture(scope="session")
async def worker_database(make_database: Callable[[], Awaitable[str]]) -> str:
    """Not the one of the other tests, whose time is real."""
    return await make_database()


@pytest.fixture(scope="session")
async def shared_services(worker_database, objects, issuer) -> AsyncIterator[Services]:
    async with open_services(load(environment(worker_database, objects, issuer))) as opened:
        yield opened


@pytest.fixture
def services(shared_services, database_url) -> Services:
    """A process that has not been elected."""
    return as_process(shared_services)


def as_process(services: Services) -> Services:
    """As if it were another process, as far as the election goes."""
    return replace(services, leadership=Leadership(services.settings.scheduler))


@pytest.fixture
def another(services) -> Callable[[], Services]:
    return lambda: as_process(services)


@pytest.fixture
async def http(services) -> AsyncIterator[httpx.AsyncClient]:
    async with serve_in_process(services) as client:
        yield client


@pytest.fixture
def control(http, issuer) -> Control:
    return Control(http, issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE))


@pytest.fixture
def operator(http, issuer) -> Caller:
    return Caller(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))


@pytest.fixture
async def clock(sql: asyncpg.Connection) -> AsyncIterator[Clock]:
    """Stands still at the test's begin."""
    clock = Clock(sql)
    await clock.stop()
    yield clock
    await clock.run_again()


@pytest.fixture
async def leader(services, clock) -> Services:
    """A process that leads. Its database's clock stands still."""
    assert await Leader(services).renew()
    return services


@pytest.fixture
def inside(services) -> Inside:
    return Inside(services, Dispatcher(services, all_handlers.build()))


@pytest.fixture
def world(leader, clock, control, inside, sql) -> World:
    return World(leader, clock, control, inside, sql)
