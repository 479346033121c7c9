"""One service for a whole worker: what a test leaves behind is in the database, which is emptied.

A test that needs other settings, or a second instance, opens one with `open_instance`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import asyncpg
import httpx
import pytest
import structlog

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.services import Services
from app.settings import load
from app.store import tables
from app.wiring import open_services
from tests.conftest import _KEPT as KEPT
from tests.conftest import environment, serve_in_process
from tests.driver import Control


@pytest.fixture(scope="session")
async def services(worker_database, objects, issuer) -> AsyncIterator[Services]:
    async with open_services(load(environment(worker_database, objects, issuer))) as opened:
        yield opened


@pytest.fixture(scope="session")
async def shared_http(services) -> AsyncIterator[httpx.AsyncClient]:
    async with serve_in_process(services) as client:
        yield client


_IN_ORDER = [table.name for table in reversed(tables.metadata.sorted_tables)]


_EMPTY = "; ".join(f"DELETE FROM {name}" for name in _IN_ORDER if name not in KEPT)


@pytest.fixture(scope="session")
async def sweeper(worker_database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(worker_database)
    yield connection
    await connection.close()


@pytest.fixture
async def database_url(worker_database, sweeper) -> AsyncIterator[str]:
    """The worker's database, emptied after the test: rows are few, so deleting them is quicker."""
    yield worker_database
    await sweeper.execute(_EMPTY)


@pytest.fixture
def http(shared_http, database_url) -> httpx.AsyncClient:
    """The application of this worker, on a database that is empty and will be emptied again."""
    return shared_http


@pytest.fixture
def operator(http, issuer) -> Control:
    """Reads what the control plane reads, and more."""
    return Control(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))


@pytest.fixture
async def open_instance(
    make_settings,
) -> AsyncIterator[Callable[..., Awaitable[httpx.AsyncClient]]]:
    """Further instances of the service over the same parts: `registry` and settings may differ."""
    async with AsyncExitStack() as stack:

        async def open_(registry=None, **more: object) -> httpx.AsyncClient:
            services = await stack.enter_async_context(open_services(make_settings(**more)))
            return await stack.enter_async_context(serve_in_process(services, registry))

        yield open_


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults on purpose fill no terminal: a traceback in colours takes longer than its test."""
    before = structlog.get_config()
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.configure(**before)


async def end_lease(sql: asyncpg.Connection, lease_id: str, status: str) -> None:
    """End a lease by hand; what follows for its attempt is decided elsewhere."""
    await sql.execute(
        "UPDATE runner_leases SET status = $2, released_at = clock_fact() WHERE id = $1",
        lease_id,
        status,
    )
