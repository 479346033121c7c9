"""Real parts for every test: PostgreSQL and the S3 server from wheels, signed tokens, real HTTP.

Each worker has its own servers, made once; between tests the tables are emptied. A test that needs
a database of its own (moved clocks, migrations) asks for `fresh_database`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE, PUSH_HANDLERS, SUBSCRIPTION
from app.embedded.issuer import Issuer, issuer_app
from app.embedded.objects import EmbeddedObjects
from app.embedded.postgres import EmbeddedPostgres
from app.embedded.serving import LoopbackServer
from app.main import create_app
from app.services import Services
from app.settings import Settings, load
from app.store import migrate, tables
from app.wiring import open_services
from tests.driver import Control, Pusher, RunnerClient
from tests.pooler import PgBouncer

TEMPLATE = "template_execution_plane"

# Folders whose tests take long, by the marker that keeps them out of `make test`.
_APART = {
    "kill": ("kill",),
    "thorough": (
        "artifacts",
        "callbacks",
        "canary",
        "demo",
        "embedded",
        "feed",
        "lifecycle",
        "logs",
        "masking",
        "push",
        "retention",
        "scheduler",
    ),
}


_POOLERS: list[PgBouncer] = []
"""At most one: where `environment` leads the service instead of to the server itself."""


def pytest_addoption(parser) -> None:
    """`--pgbouncer`: the service reaches its database through a transaction pooler."""
    parser.addoption("--pgbouncer", action="store_true", help="through PgBouncer's transactions")


def pytest_collection_modifyitems(items) -> None:
    """Mark what runs by a make target of its own."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        for marker, folders in _APART.items():
            if folder in folders:
                item.add_marker(getattr(pytest.mark, marker))


@pytest.fixture(scope="session")
async def postgres(tmp_path_factory, request) -> AsyncIterator[EmbeddedPostgres]:
    """A server with a migrated template; durability is not what these tests are about."""
    server = EmbeddedPostgres(
        tmp_path_factory.mktemp("postgres"),
        options={"fsync": "off", "max_connections": 300, "shared_buffers": "64MB"},
    )
    await server.start()
    await make_template(server.admin_dsn, server.dsn)
    if request.config.getoption("--pgbouncer"):
        _POOLERS.append(await PgBouncer(server.dsn, tmp_path_factory.mktemp("pooler")).start())
    yield server
    while _POOLERS:
        _POOLERS.pop().stop()
    await server.stop()


async def make_template(admin_dsn: str, dsn: str) -> None:
    """A migrated database that others are cloned from."""
    await _admin(admin_dsn, f"CREATE DATABASE {TEMPLATE} OWNER execution_plane")
    template = dsn.rsplit("/", 1)[0] + f"/{TEMPLATE}"
    await asyncio.to_thread(migrate.upgrade, template)


async def _admin(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
async def make_database(postgres) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Clones of the template; dropped at the end with the server's folder."""

    async def make() -> str:
        name = f"db_{uuid4().hex}"
        await _admin(
            postgres.admin_dsn, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} OWNER execution_plane"
        )
        return postgres.dsn.rsplit("/", 1)[0] + f"/{name}"

    yield make


@pytest.fixture(scope="session")
async def worker_database(make_database) -> str:
    return await make_database()


@pytest.fixture
async def fresh_database(make_database) -> str:
    """A database of this test's own."""
    return await make_database()


_KEPT = {
    *("alembic_version", "placement_class_versions", "feed_epochs", "service_ticks", "leaders"),
    "installation",
}


@pytest.fixture
async def database_url(worker_database) -> AsyncIterator[str]:
    """The worker's database, emptied after the test."""
    yield worker_database
    names = ", ".join(name for name in tables.metadata.tables if name not in _KEPT)
    reset = "UPDATE leaders SET holder = NULL, expires_at = NULL, swept_at = NULL"
    await _admin(worker_database, f"TRUNCATE {names}", reset)


@pytest.fixture(scope="session")
async def objects(tmp_path_factory) -> AsyncIterator[EmbeddedObjects]:
    store = EmbeddedObjects(tmp_path_factory.mktemp("objects"))
    await store.start()
    yield store
    await store.stop()


@pytest.fixture(scope="session")
async def issuer() -> AsyncIterator[tuple[Issuer, str]]:
    """A token issuer and the address of its certificates."""
    source = Issuer()
    server = LoopbackServer(issuer_app(source))
    await server.start()
    yield source, f"{server.url}/oauth2/v1/certs"
    await server.stop()


@pytest.fixture
def make_settings(database_url, objects, issuer) -> Callable[..., Settings]:
    """Settings over the real parts; keyword arguments are further `GROUP__FIELD` values."""

    def make(*, database: str = database_url, **more: object) -> Settings:
        return load(environment(database, objects, issuer, **more))

    return make


def environment(database: str, objects, issuer, **more: object) -> dict[str, str]:
    """The variables of a service over these parts."""
    source, certificates = issuer
    grants = [
        {"role": role, "issuer": "test", "audiences": [AUDIENCE], "accounts": [account]}
        for role, account in ACCOUNTS.items()
    ]
    values = {
        "SERVER__PORT": 0,
        "DATABASE__URL": database,
        "OBJECTS__ENDPOINT_URL": objects.endpoint_url,
        "OBJECTS__BUCKET": objects.bucket,
        "OBJECTS__PREFIX": f"test-{uuid4().hex}/",
        "OBJECTS__ACCESS_KEY_ID": objects.access_key_id,
        "OBJECTS__SECRET_ACCESS_KEY": objects.secret_access_key,
        "IDENTITY__ISSUERS": {
            "test": {"issuers": [source.issuer], "certificates_url": certificates}
        },
        "IDENTITY__GRANTS": grants,
        "KEYS__CURRENT": "k1",
        "KEYS__SECRETS": {"k1": "a secret of the tests, long enough to be one"},
        "PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: PUSH_HANDLERS},
        "TELEMETRY__ACCESS_LOG": "false",
        **getattr(objects, "variables", {}),
        **more,
    }
    for pooler in _POOLERS:
        values["DATABASE__URL"] = pooler.through(str(values["DATABASE__URL"]))
        values["DATABASE__STATEMENT_CACHE_SIZE"] = 0
    return {
        f"EXECUTION_PLANE_{name}": json.dumps(value)
        if isinstance(value, (dict, list, tuple))
        else str(value)
        for name, value in values.items()
    }


@pytest.fixture
def settings(make_settings) -> Settings:
    return make_settings()


@pytest.fixture
async def services(settings) -> AsyncIterator[Services]:
    async with open_services(settings) as opened:
        yield opened


@pytest.fixture
async def http(services) -> AsyncIterator[httpx.AsyncClient]:
    """The real application behind its own ASGI interface."""
    async with serve_in_process(services) as client:
        yield client


def serve_in_process(services: Services, registry=None) -> httpx.AsyncClient:
    """A client of an application over these services."""
    app = create_app(services, registry)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="https://execution-plane.test"
    )


@pytest.fixture
def control(http, issuer) -> Control:
    return Control(http, issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE))


@pytest.fixture
def runner_token(issuer) -> str:
    return issuer[0].mint(ACCOUNTS["runner"], AUDIENCE)


@pytest.fixture
def runner(http, runner_token) -> RunnerClient:
    return RunnerClient(http, runner_token)


@pytest.fixture
def make_runner(http, runner_token) -> Callable[..., RunnerClient]:
    return lambda **profile: RunnerClient(http, runner_token, **profile)


@pytest.fixture
def pusher(http, issuer) -> Pusher:
    return Pusher(http, issuer[0].mint(ACCOUNTS["pubsub"], AUDIENCE), SUBSCRIPTION)


@pytest.fixture
async def sql(database_url) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
