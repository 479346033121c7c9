"""Logs through the whole service, in a database whose clock a test may move."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from app.services import Services
from app.settings import load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Held
from tests.lifecycle.clock import Clock
from tests.logs.world import Logs


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
async def clock(sql) -> AsyncIterator[Clock]:
    """Stands still at the test's begin."""
    clock = Clock(sql)
    await clock.stop()
    yield clock
    await clock.run_again()


@pytest.fixture
async def held(control, runner) -> Held:
    """A started lease."""
    await control.create()
    return await (await runner.register()).start()


@pytest.fixture
def logs(control, services, sql) -> Logs:
    """Everything that reads logs."""
    return Logs(control, services, sql)


@pytest.fixture
async def open_instance(make_settings) -> AsyncIterator[Callable[..., Awaitable[Services]]]:
    """Further instances over the same parts, with other settings."""
    async with AsyncExitStack() as stack:

        async def open_(**more: object) -> Services:
            return await stack.enter_async_context(open_services(make_settings(**more)))

        yield open_
