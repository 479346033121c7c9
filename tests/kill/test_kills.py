"""The service dies at any moment; nothing is lost, nothing runs twice, everything ends."""

import asyncio
import random
import signal
import ssl
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.tls import ensure_certificates
from tests.conftest import environment
from tests.driver import new_attempt
from tests.kill.world import Bot, Caller, Journal, ServiceProcess, create_many

CADENCE = {"LEASES__LEASE_SECONDS": 5, "LEASES__CLAIM_GRACE_SECONDS": 3}


@pytest.fixture
async def world(fresh_database, objects, issuer, tmp_path):
    """Makes services over one fresh database, and callers of them; all end with the test."""
    made = World(fresh_database, objects, issuer, tmp_path)
    yield made
    await made.close()


class World:
    def __init__(self, database, objects, issuer, folder: Path) -> None:
        self.database, self._objects, self._issuer = database, objects, issuer
        self._folder = folder
        self.services: list[ServiceProcess] = []
        self._callers: list[Caller] = []
        self.journal = Journal()

    async def serve(self, **settings: object) -> ServiceProcess:
        values = environment(self.database, self._objects, self._issuer, **{**CADENCE, **settings})
        service = ServiceProcess(values, self._folder / f"service-{len(self.services)}.log")
        self.services.append(service)
        return await service.start()

    def caller(self, role: str, *, first: int | None = None) -> Caller:
        """A caller that begins with service `first`; unset: they take turns."""
        token = self._issuer[0].mint(ACCOUNTS[role], AUDIENCE)
        urls = [service.url for service in self.services]
        made = Caller(urls, token, len(self._callers) if first is None else first)
        self._callers.append(made)
        return made

    def bot(self, *, first: int | None = None, **more: float) -> Bot:
        return Bot(self.caller("runner", first=first), self.journal, **more)

    async def statuses(self) -> dict[str, int]:
        connection = await asyncpg.connect(self.database)
        try:
            rows = await connection.fetch(
                "SELECT status, count(*) AS n FROM execution_attempts GROUP BY status"
            )
            return {row["status"]: row["n"] for row in rows}
        finally:
            await connection.close()

    async def until_all_ended(self, total: int, seconds: float) -> dict[str, int]:
        for _ in range(int(seconds * 4)):
            statuses = await self.statuses()
            ended = sum(
                n for status, n in statuses.items() if status not in {"queued", "leased", "running"}
            )
            if ended == total:
                return statuses
            await asyncio.sleep(0.25)
        raise AssertionError(f"not all ended in {seconds} s: {await self.statuses()}")

    async def close(self) -> None:
        for caller in self._callers:
            await caller.close()
        for service in self.services:
            if not service.has_ended:
                await service.stop()


async def kill_now_and_then(service: ServiceProcess, kills: int, dice: random.Random) -> None:
    """kill -9 at random moments, and start again at once."""
    for _ in range(kills):
        await asyncio.sleep(dice.uniform(0.3, 1.5))
        service.kill()
        await service.start()


async def many_claimers_under_kills(world: World, *, bots: int, attempts: int, kills: int) -> None:
    service = await world.serve()
    control = world.caller("control-plane")
    ids = await create_many(control, attempts)
    done = asyncio.Event()
    working = [asyncio.create_task(world.bot().run_until(done)) for _ in range(bots)]

    await kill_now_and_then(service, kills, random.Random(7))
    statuses = await world.until_all_ended(attempts, seconds=60)
    done.set()
    await asyncio.gather(*working)

    assert len(set(ids)) == attempts
    assert statuses == {"succeeded": attempts}, world.journal.told
    world.journal.assert_nothing_ran_twice()
    assert len({touch.attempt_id for touch in world.journal.touches}) == attempts


async def test_every_attempt_ends_and_none_runs_twice_while_the_service_is_killed(world):
    await many_claimers_under_kills(world, bots=12, attempts=250, kills=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_fifty_claimers_two_thousand_attempts_twenty_kills(world):
    await many_claimers_under_kills(world, bots=50, attempts=2000, kills=20)


@pytest.mark.parametrize(
    "moment",
    [
        "create.after_insert",
        "create.after_commit",
        "claim.after_select",
        "claim.after_commit",
        "start.after_commit",
        "complete.before_event",
        "complete.after_commit",
    ],
)
async def test_a_process_that_dies_at_a_named_moment_loses_nothing(world, moment):
    deadly = {moment: {"action": "kill", "times": 1}}
    service = await world.serve(TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=deadly)
    healthy = await world.serve()
    control, bot = world.caller("control-plane", first=0), world.bot(first=0)
    await bot.register()

    ids = [(await create_one(control)) for _ in range(2)]
    for _ in ids:
        await bot.work_once(wait_seconds=2)
    await bot.work_once(wait_seconds=0)

    assert service.has_ended, "the moment was never reached"
    assert not healthy.has_ended
    assert await world.statuses() == {"succeeded": 2}
    world.journal.assert_nothing_ran_twice()


async def create_one(control: Caller) -> str:
    answer = await control.call("POST", "/v1/attempts", json=new_attempt())
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()["id"]


@pytest.mark.parametrize("action", ["drop_answer", "after_then_error"])
async def test_a_lost_answer_is_found_again_by_the_repeat(world, action):
    moments = ("create", "claim", "start", "complete")
    points = {f"{name}.after_commit": {"action": action, "times": 3} for name in moments}
    await world.serve(TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=points)
    control, bot = world.caller("control-plane"), world.bot()
    await bot.register()

    for _ in range(3):
        await create_one(control)
        await bot.work_once(wait_seconds=2)

    assert await world.statuses() == {"succeeded": 3}
    world.journal.assert_nothing_ran_twice()


async def test_a_stopped_process_neither_ends_living_leases_nor_writes_when_it_wakes(world):
    """SIGSTOP keeps connections open: the gray failure."""
    first, second = await world.serve(), await world.serve()
    control = world.caller("control-plane")
    ids = await create_many(control, 20)
    done = asyncio.Event()
    bots = [asyncio.create_task(world.bot().run_until(done)) for _ in range(4)]

    first.kill(signal.SIGSTOP)
    await asyncio.sleep(3)
    first.kill(signal.SIGCONT)
    statuses = await world.until_all_ended(len(ids), seconds=60)
    done.set()
    await asyncio.gather(*bots)

    assert statuses == {"succeeded": 20}
    assert not second.has_ended
    world.journal.assert_nothing_ran_twice()


async def test_a_client_that_says_no_farewell_does_not_hold_up_the_end(
    fresh_database, objects, issuer, tmp_path
):
    """Over TLS a connection is closed by two; one that stays silent must not cost the grace."""
    tls = ensure_certificates(tmp_path)
    values = environment(
        fresh_database,
        objects,
        issuer,
        SERVER__TLS_CERTIFICATE_FILE=tls.certificate_file,
        SERVER__TLS_KEY_FILE=tls.key_file,
        SERVER__GRACEFUL_STOP_SECONDS=300,
    )
    service = ServiceProcess(values, tmp_path / "service.log", tls.ca_file)
    await service.start()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", service.port, ssl=ssl.create_default_context(cafile=tls.ca_file)
    )
    writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.transport.pause_reading()  # it does not even hear that we want to part

    assert await service.stop() == 0

    writer.transport.abort()


async def test_a_service_asked_to_stop_ends_cleanly_while_claims_wait(world):
    service = await world.serve()
    bot = world.bot()
    await bot.register()
    waiting = asyncio.create_task(bot.work_once(wait_seconds=30))
    await asyncio.sleep(0.5)

    code = await service.stop()

    waiting.cancel()
    with suppress(asyncio.CancelledError, AssertionError):
        await waiting
    assert code == 0, service.log_text()[-2000:]
