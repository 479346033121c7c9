"""The push endpoint with handlers of the tests: in this process, or in processes of its own."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.embedded.issuer import Issuer, issuer_app
from app.embedded.pubsub import LocalPubSub
from app.embedded.pubsub_flow import PushTuning
from app.embedded.serving import LoopbackServer
from app.handlers.registry import Registry
from app.main import create_app
from app.services import Services
from app.settings import load
from app.telemetry import Metrics
from app.wiring import open_services
from tests.conftest import environment
from tests.driver import Caller, Pusher
from tests.push.processes import PushService
from tests.push.service import HANDLERS, LEDGER, registry_of_tests

TOPIC = "projects/dev/topics/ledger"
OURS = {"PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: HANDLERS}}

OpenInstance = Callable[..., Awaitable[httpx.AsyncClient]]
OpenService = Callable[..., Awaitable[PushService]]


def envelope(to: str = "ledger.add", data: Any = None, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "to": to, "id": str(uuid4()), "data": data or {"number": 1}, **fields}


def delivery(content: Any, subscription: str = SUBSCRIPTION, **message: Any) -> dict[str, Any]:
    """The body of a push."""
    data = base64.b64encode(json.dumps(content).encode()).decode()
    return {
        "message": {"data": data, "messageId": uuid4().hex, **message},
        "subscription": subscription,
    }


@pytest.fixture
def operator(http, issuer) -> Caller:
    return Caller(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))


@pytest.fixture
def push_token(issuer) -> str:
    return issuer[0].mint(ACCOUNTS["pubsub"], AUDIENCE)


@pytest.fixture
async def ledger(sql) -> AsyncIterator[Callable[[], Awaitable[list[int]]]]:
    """The lines that handlers have written."""
    await sql.execute(LEDGER)
    await sql.execute("TRUNCATE ledger")

    async def read() -> list[int]:
        return [row["number"] for row in await sql.fetch("SELECT number FROM ledger ORDER BY 1")]

    yield read


@pytest.fixture(scope="session")
async def parts(worker_database, objects, issuer) -> AsyncIterator[Services]:
    """One set of pools and clients for all instances of a worker: making them takes longest."""
    async with open_services(load(environment(worker_database, objects, issuer))) as opened:
        yield opened


@pytest.fixture
def services(parts, database_url) -> Services:
    return parts


@pytest.fixture
async def open_instance(parts, make_settings, ledger) -> AsyncIterator[OpenInstance]:
    """Instances in this process: their registry and any setting may be chosen."""
    async with AsyncExitStack() as stack:

        async def open_(registry: Registry | None = None, **more: object) -> httpx.AsyncClient:
            settings = make_settings(**{**OURS, **more})
            services = replace(parts, settings=settings, metrics=Metrics())
            app = create_app(services, registry or registry_of_tests())
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="https://execution-plane.test"
            )
            return await stack.enter_async_context(client)

        yield open_


@pytest.fixture
def pusher_to(push_token) -> Callable[[httpx.AsyncClient], Pusher]:
    return lambda http: Pusher(http, push_token, SUBSCRIPTION)


@pytest.fixture
def operator_of(issuer) -> Callable[[httpx.AsyncClient], Caller]:
    return lambda http: Caller(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))


# --- processes -----------------------------------------------------------------------------------


@pytest.fixture
async def own_sql(fresh_database) -> AsyncIterator[asyncpg.Connection]:
    """A connection to this test's own database, which has a ledger."""
    connection = await asyncpg.connect(fresh_database)
    await connection.execute(LEDGER)
    yield connection
    await connection.close()


@pytest.fixture
async def own_issuer() -> AsyncIterator[tuple[Issuer, str]]:
    """An issuer that a test may break."""
    source = Issuer()
    server = LoopbackServer(issuer_app(source))
    await server.start()
    yield source, f"{server.url}/oauth2/v1/certs"
    await server.stop()


@pytest.fixture
async def open_service(fresh_database, objects, issuer, tmp_path) -> AsyncIterator[OpenService]:
    """Service processes on this test's own database."""
    opened: list[PushService] = []

    async def open_(
        *, database: str = fresh_database, by: Any = issuer, ready: bool = True, **more: object
    ) -> PushService:
        values = environment(database, objects, by, **{**OURS, **more})
        service = PushService(values, tmp_path / f"service-{len(opened)}.log")
        opened.append(service)
        service.spawn()
        if ready:
            await service.until_ready()
        return service

    yield open_
    for service in opened:
        if not service.has_ended:
            service.kill()


@pytest.fixture
async def open_pubsub(issuer) -> AsyncIterator[Callable[..., Awaitable[LocalPubSub]]]:
    """A Pub/Sub in front of one endpoint; it does not wait long where Google's would."""
    async with AsyncExitStack() as stack:

        async def open_(endpoint: str, **more: Any) -> LocalPubSub:
            tuning = PushTuning(pause_min_seconds=0.02, pause_max_seconds=0.3, window_max=24)
            pubsub = LocalPubSub(issuer[0].mint, tuning=tuning, ledger_size=None, **more)
            pubsub.create_topic(TOPIC)
            pubsub.create_subscription(
                SUBSCRIPTION,
                TOPIC,
                endpoint,
                ACCOUNTS["pubsub"],
                AUDIENCE,
                retry_min_seconds=0.05,
                retry_max_seconds=0.5,
            )
            await pubsub.start()
            stack.push_async_callback(pubsub.stop)
            return pubsub

        yield open_
