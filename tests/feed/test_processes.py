"""Readers of two real processes, of which one is asked to stop and the other is killed."""

import asyncio
import signal
import time
from contextlib import aclosing

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from tests.conftest import environment
from tests.driver import Control
from tests.feed.crowd import follow
from tests.kill.world import ServiceProcess

EVENTS = 60


@pytest.fixture
async def processes(tmp_path, fresh_database, objects, issuer):
    variables = environment(fresh_database, objects, issuer)
    made = [ServiceProcess(variables, tmp_path / f"service-{number}.log") for number in range(2)]
    await asyncio.gather(*(one.start() for one in made))
    yield made
    for one in made:
        if not one.has_ended:
            await one.stop()


async def test_a_stream_goes_on_at_another_instance(processes, issuer):
    """What one process wrote wakes the stream of the other; no stop and no kill loses any."""
    first, second = processes
    headers = {"Authorization": f"Bearer {issuer[0].mint(ACCOUNTS['control-plane'], AUDIENCE)}"}
    made: list[str] = []
    got: list[str] = []
    cursor: str | None = None
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:

        async def create(url: str, many: int) -> None:
            async with httpx.AsyncClient(base_url=url) as client:
                control = Control(client, headers["Authorization"].removeprefix("Bearer "))
                made.extend([(await control.create())["id"] for _ in range(many)])

        async def read(url: str, enough: int) -> None:
            nonlocal cursor
            try:
                async with aclosing(follow(http, f"{url}/v1/events", cursor)) as frames:
                    async for identifier, data in frames:
                        cursor = identifier
                        if data is not None:
                            got.append(data["attempt_id"])
                        if len(got) >= enough:
                            return
            except httpx.TransportError:
                return

        async with asyncio.timeout(60):
            reading = asyncio.create_task(read(first.url, 10_000))
            await create(second.url, EVENTS)
            stopping = asyncio.create_task(first.stop())
            began = time.monotonic()
            await create(second.url, EVENTS)
            await reading
            assert await stopping == 0
            assert time.monotonic() - began < 20
            before = len(got)

            await first.start()
            reading = asyncio.create_task(read(second.url, 10_000))
            await create(first.url, EVENTS)
            while len(got) < before + EVENTS // 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(second.kill, signal.SIGKILL)
            await create(first.url, EVENTS)
            await reading
            await read(first.url, 4 * EVENTS)

    assert 0 < before < len(got)
    assert got == made
