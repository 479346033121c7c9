"""A database of its own, whose clock a test may move, and everybody around it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.wiring import open_services
from tests.conftest import serve_in_process
from tests.driver import Caller, Control, RunnerClient
from tests.lifecycle.clock import Clock
from tests.retention.world import World


@pytest.fixture
async def make_world(
    fresh_database, make_settings, issuer
) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Services with these settings over one fresh database."""
    async with AsyncExitStack() as stack:

        async def make(**settings: object) -> World:
            services = await stack.enter_async_context(
                open_services(make_settings(database=fresh_database, **settings))
            )
            http = await stack.enter_async_context(serve_in_process(services))
            sql = await asyncpg.connect(fresh_database)
            stack.push_async_callback(sql.close)

            def token(role: str) -> str:
                return issuer[0].mint(ACCOUNTS[role], AUDIENCE)

            return World(
                services,
                Control(http, token("control-plane")),
                Caller(http, token("operator")),
                lambda **profile: RunnerClient(http, token("runner"), **profile),
                sql,
                Clock(sql),
            )

        yield make


@pytest.fixture
async def world(make_world) -> World:
    return await make_world()
