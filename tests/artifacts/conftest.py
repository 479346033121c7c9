"""Artifacts in depth, against the embedded store or any other: see `docs/storage.md`.

`STORAGE_TEST_ENDPOINT`, `_BUCKET`, `_ACCESS_KEY_ID` and `_SECRET_ACCESS_KEY` name another store;
`STORAGE_TEST_OBJECTS` is a JSON object with further settings of the group, such as its region.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import asyncpg
import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.objects.store import ObjectStore
from app.services import Services
from app.settings import load
from app.store import tables
from app.wiring import open_services
from tests.artifacts.s3_proxy import FaultyStore
from tests.conftest import _KEPT as KEPT
from tests.conftest import environment, serve_in_process
from tests.driver import Caller, Control, Held, RunnerClient

_PREFIX = "STORAGE_TEST_"


@dataclass(frozen=True)
class ForeignStore:
    """A store that somebody else runs, in the words of the embedded one."""

    endpoint_url: str
    bucket: str
    access_key_id: str
    secret_access_key: str
    variables: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture(scope="session")
async def objects(objects):
    """The store that the tests are run against."""
    if f"{_PREFIX}ENDPOINT" not in os.environ:
        return objects
    given = [
        os.environ[_PREFIX + name]
        for name in ("ENDPOINT", "BUCKET", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
    ]
    more = json.loads(os.environ.get(f"{_PREFIX}OBJECTS", "{}"))
    return ForeignStore(*given, {f"OBJECTS__{name.upper()}": value for name, value in more.items()})


_IN_ORDER = [table.name for table in reversed(tables.metadata.sorted_tables)]
_EMPTY = "; ".join(f"DELETE FROM {name}" for name in _IN_ORDER if name not in KEPT)


@pytest.fixture
async def database_url(worker_database) -> AsyncIterator[str]:
    """The worker's database, emptied after the test: rows are few, so deleting them is quicker."""
    yield worker_database
    connection = await asyncpg.connect(worker_database)
    await connection.execute(_EMPTY)
    await connection.close()


@dataclass
class Instance:
    """One instance of the service, and everybody who calls it."""

    services: Services
    http: httpx.AsyncClient
    control: Control
    operator: Caller
    runner_token: str

    async def runner(self, **profile) -> RunnerClient:
        return await RunnerClient(self.http, self.runner_token, **profile).register()

    async def held(self, **fields) -> Held:
        """A started lease of a new attempt, held by a runner of its own."""
        await self.control.create(**fields)
        return await (await self.runner()).start()

    async def content(self, artifact_id: str, **more) -> httpx.Response:
        return await self.control.call("GET", f"/v1/artifacts/{artifact_id}/content", **more)


@pytest.fixture(scope="session")
async def opened(worker_database, objects, issuer) -> AsyncIterator[Services]:
    """What all instances share: the pool, the masker, the keys."""
    async with open_services(load(environment(worker_database, objects, issuer))) as services:
        yield services


@pytest.fixture
async def open_instance(
    opened, make_settings, issuer
) -> AsyncIterator[Callable[..., Awaitable[Instance]]]:
    """Instances of the service, each with settings, a prefix and a client of the store of its own.

    They share the rest, which takes long to make.
    """
    async with AsyncExitStack() as stack:

        async def open_(**more: object) -> Instance:
            settings = make_settings(**more)
            store = ObjectStore(settings.objects)
            await store.start()
            stack.push_async_callback(store.stop)
            services = replace(opened, settings=settings, objects=store)
            http = await stack.enter_async_context(serve_in_process(services))
            tokens = {role: issuer[0].mint(ACCOUNTS[role], AUDIENCE) for role in ACCOUNTS}
            return Instance(
                services,
                http,
                Control(http, tokens["control-plane"]),
                Caller(http, tokens["operator"]),
                tokens["runner"],
            )

        yield open_


@pytest.fixture
async def here(open_instance) -> Instance:
    """The instance of a test that needs no settings of its own."""
    return await open_instance()


@pytest.fixture
async def network() -> AsyncIterator[httpx.AsyncClient]:
    """How a runner reaches the store: plain HTTP, with nothing of ours."""
    async with httpx.AsyncClient(timeout=30) as client:
        yield client


@pytest.fixture
async def faulty(objects) -> AsyncIterator[FaultyStore]:
    """The same store behind a proxy that can misbehave."""
    proxy = FaultyStore(objects.endpoint_url)
    await proxy.start()
    yield proxy
    await proxy.stop()


async def send(network: httpx.AsyncClient, request: dict, body: bytes) -> httpx.Response:
    """Send a signed request of a ticket with this body."""
    headers = {**request["headers"], "Content-Length": str(len(body))}
    return await network.request(request["method"], request["url"], content=body, headers=headers)
