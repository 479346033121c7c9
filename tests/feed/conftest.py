"""A service behind a real socket, on a database of the test's own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.serving import LoopbackServer
from app.main import create_app
from app.services import Services
from app.store import partitions
from app.wiring import open_services
from tests.driver import Control, RunnerClient


@dataclass(frozen=True)
class Instance:
    """One instance of the service, and who calls it."""

    services: Services
    url: str
    tokens: dict[str, str]

    def client(self, role: str = "control-plane") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60)

    def control(self, http: httpx.AsyncClient) -> Control:
        return Control(http, self.tokens["control-plane"])

    def runner(self, http: httpx.AsyncClient) -> RunnerClient:
        return RunnerClient(http, self.tokens["runner"])


OpenInstance = Callable[..., Awaitable[Instance]]


@pytest.fixture
async def open_instance(make_settings, issuer) -> AsyncIterator[OpenInstance]:
    """Instances behind sockets; `database` and settings may differ."""
    async with AsyncExitStack() as stack:

        async def open_(**more: object) -> Instance:
            services = await stack.enter_async_context(open_services(make_settings(**more)))
            await services.database.run(partitions.ensure_near)
            server = LoopbackServer(create_app(services))
            await server.start()
            stack.push_async_callback(server.stop)
            stack.callback(services.signals.drain)
            tokens = {role: issuer[0].mint(one, AUDIENCE) for role, one in ACCOUNTS.items()}
            return Instance(services, server.url, tokens)

        yield open_
