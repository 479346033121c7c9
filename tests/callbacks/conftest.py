"""A service whose callbacks go to loopback, and workers that tests move by hand."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.loops.callback_repair import Repair
from app.loops.callback_worker import Worker
from app.loops.deliver_callbacks import DeliverCallbacks
from app.services import Services
from app.settings import Settings
from app.store import callback_leases
from app.wiring import open_services
from tests.api.conftest import quiet  # noqa: F401 - a fixture
from tests.callbacks.receiver import Receiver
from tests.driver import Control, RunnerClient

LOCAL = {
    "CALLBACKS__ALLOWED_NETWORKS": ["127.0.0.0/8"],
    "CALLBACKS__TRY_AGAIN_SECONDS": 0.01,
}


@pytest.fixture
def settings(make_settings) -> Settings:
    return make_settings(**LOCAL)


@pytest.fixture
async def services(settings) -> AsyncIterator[Services]:
    async with open_services(settings) as opened:
        yield opened


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = await Receiver().start()
    yield made
    await made.stop()


class Callbacks:
    """What callers do with subscriptions, and what workers do for them."""

    def __init__(self, services: Services, http, token: str, sql: asyncpg.Connection) -> None:
        self.services, self.sql = services, sql
        self.caller = Control(http, token)
        self.holder = uuid4()
        self._workers: list[Worker] = []
        self._repairs: dict[Worker, Repair] = {}

    async def put(self, name: str = "billing", **fields: Any) -> dict[str, Any]:
        answer = await self.caller.call("PUT", f"/v1/callback-subscriptions/{name}", json=fields)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    async def get(self, name: str = "billing") -> dict[str, Any]:
        answer = await self.caller.call("GET", f"/v1/callback-subscriptions/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, verb: str, name: str = "billing", **fields: Any) -> dict[str, Any]:
        path = f"/v1/callback-subscriptions/{name}:{verb}"
        answer = await self.caller.call("POST", path, json=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def deliveries(self, name: str = "billing", **params: Any) -> list[dict[str, Any]]:
        path = f"/v1/callback-subscriptions/{name}/deliveries"
        answer = await self.caller.call("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    async def worker(self, services: Services | None = None) -> Worker:
        """A worker of the only subscription that nobody serves."""
        services = services or self.services
        [fence] = await services.database.run(
            lambda conn: callback_leases.take(conn, self.holder, timedelta(seconds=60), 10)
        )
        made = Worker(services, fence, asyncio.Semaphore(4))
        made.trusted_until += 3600
        self._workers.append(made)
        return made

    async def drain(self, worker: Worker, *, patience: int = 50) -> None:
        """Let it work until it waits for something new; waits for a next try are cut short."""
        for _ in range(patience):
            wait = await worker.live_once()
            if wait.seconds is None:
                return
            if wait.seconds:
                await self.skip_waits()
        raise AssertionError(await self.get())

    async def repair(self, worker: Worker, *, patience: int = 50) -> None:
        """Let it work on what is parked or replayed until nothing is due."""
        for _ in range(patience):
            repair = self._repairs.setdefault(worker, Repair(worker))
            if not await repair.run_once():
                return
        raise AssertionError(await self.get())

    async def skip_waits(self) -> None:
        """Make every next try due now, as time would."""
        await self.sql.execute("UPDATE callback_cursors SET next_try_at = NULL")
        await self.sql.execute("UPDATE callback_cursors SET replay_next_try_at = NULL")
        await self.sql.execute("UPDATE callback_parked SET next_try_at = clock_fact()")

    async def close(self) -> None:
        for worker in self._workers:
            await worker.targets.close()
        for repair in self._repairs.values():
            await repair.targets.close()


@pytest.fixture
async def callbacks(services, http, issuer, sql) -> AsyncIterator[Callbacks]:
    token = issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE)
    made = Callbacks(services, http, token, sql)
    yield made
    await made.close()


class Lives:
    """Attempts that are lived through, four events each."""

    def __init__(self, control: Control, runner: RunnerClient) -> None:
        self._control, self._runner = control, runner
        self._registered = False

    async def one(self, **fields: Any) -> str:
        """created, leased, started, succeeded."""
        if not self._registered:
            await self._runner.register(capacity_total=1000)
            self._registered = True
        attempt = await self._control.create(**fields)
        held = await self._runner.start()
        await held.complete()
        return attempt["id"]

    async def created(self, count: int = 1, **fields: Any) -> list[str]:
        """created, and nothing more."""
        return [(await self._control.create(**fields))["id"] for _ in range(count)]


@pytest.fixture
def lives(control, runner) -> Lives:
    return Lives(control, runner)


@pytest.fixture
async def delivering(services) -> AsyncIterator[DeliverCallbacks]:
    """The loop as the supervisor runs it, only more often."""
    loop = DeliverCallbacks()

    async def keep() -> None:
        while True:
            await loop.run_once(services)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(keep())
    yield loop
    task.cancel()
    await asyncio.wait([task])
    await loop.close(services)
