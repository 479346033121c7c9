"""Our own outage kills nobody: neither a living runner's lease, nor a job inside its limits."""

import asyncio
import os
import platform
from pathlib import Path
from time import monotonic
from uuid import uuid4

import asyncpg
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.postgres import EmbeddedPostgres
from tests.conftest import TEMPLATE, environment, make_template
from tests.driver import new_attempt
from tests.kill.world import Caller, ServiceProcess

LEASE_SECONDS = 5
OUTAGE_SECONDS = 3 * LEASE_SECONDS


class LivingRunner:
    """A runner that beats on, whatever the service does, and completes when it is told to."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.stopped_by: list[str] = []

    async def begin(self) -> None:
        session_id = str(uuid4())
        runner = f"/v1/runners/living-{uuid4().hex[:6]}"
        profile = {
            "session_id": session_id,
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
        }
        await self.caller.call("PUT", runner, json=profile)
        claim = {"session_id": session_id, "request_id": str(uuid4()), "wait_seconds": 5}
        answer = await self.caller.call("POST", f"{runner}/leases:claim", json=claim)
        [claimed] = answer.json()["leases"]
        self._headers = {"Lease-Token": claimed["lease_token"]}
        self._path = f"/v1/leases/{claimed['lease']['id']}"
        self._session_id = session_id
        started = await self.caller.call("POST", f"{self._path}:start", headers=self._headers)
        assert started.status_code == 200, started.text

    async def beat_until(self, done: asyncio.Event) -> None:
        sequence = 0
        while not done.is_set():
            sequence += 1
            body = {"session_id": self._session_id, "sequence": sequence, "phase": "executing"}
            answer = await self.caller.call(
                "POST", f"{self._path}:heartbeat", headers=self._headers, json=body
            )
            if answer.status_code != 200:
                self.stopped_by.append(answer.json()["reason"])
                return
            await asyncio.sleep(LEASE_SECONDS / 3)

    async def complete(self) -> None:
        answer = await self.caller.call(
            "POST", f"{self._path}:complete", headers=self._headers, json={"outcome": "succeeded"}
        )
        assert answer.status_code == 200, answer.text


@pytest.fixture
async def stage(objects, issuer, tmp_path):
    """A database server and a service of this test's own, either of which may go away."""
    made = Stage(objects, issuer, tmp_path)
    await made.open()
    yield made
    await made.close()


class Stage:
    def __init__(self, objects, issuer, folder: Path) -> None:
        self._objects, self._issuer, self._folder = objects, issuer, folder
        self.postgres = EmbeddedPostgres(folder / "postgres", options={"fsync": "off"})
        self.callers: list[Caller] = []

    async def open(self) -> None:
        await self.postgres.start()
        await make_template(self.postgres.admin_dsn, self.postgres.dsn)
        self.database = self.postgres.dsn.rsplit("/", 1)[0] + f"/{TEMPLATE}"
        values = environment(
            self.database,
            self._objects,
            self._issuer,
            LEASES__LEASE_SECONDS=LEASE_SECONDS,
            LEASES__CLAIM_GRACE_SECONDS=4,
            DATABASE__CONNECT_TIMEOUT_SECONDS=1,
        )
        self.service = await ServiceProcess(values, self._folder / "service.log").start()

    def caller(self, role: str) -> Caller:
        token = self._issuer[0].mint(ACCOUNTS[role], AUDIENCE)
        self.callers.append(Caller([self.service.url], token))
        return self.callers[-1]

    async def statuses(self) -> list[str]:
        connection = await asyncpg.connect(self.database)
        try:
            rows = await connection.fetch("SELECT status FROM execution_attempts ORDER BY id")
            return [row["status"] for row in rows]
        finally:
            await connection.close()

    async def close(self) -> None:
        for caller in self.callers:
            await caller.close()
        await self.service.stop()
        await self.postgres.stop()


async def outage(stage: Stage, what: str) -> None:
    if "service" in what:
        stage.service.kill()
    if "database" in what:
        await stage.postgres.stop()
    await asyncio.sleep(OUTAGE_SECONDS)
    if "database" in what:
        await stage.postgres.start()
    if "service" in what:
        await stage.service.start()


async def living_runners_survive(stage: Stage, what: str) -> None:
    control = stage.caller("control-plane")
    runners = [LivingRunner(stage.caller("runner")) for _ in range(8)]
    for runner in runners:
        created = await control.call("POST", "/v1/attempts", json=new_attempt())
        assert created.status_code == 201, created.text
        await runner.begin()
    done = asyncio.Event()
    beating = [asyncio.create_task(runner.beat_until(done)) for runner in runners]

    await outage(stage, what)
    await asyncio.sleep(2 * LEASE_SECONDS)  # longer than the pause: now sweeps end what is silent
    done.set()
    await asyncio.gather(*beating)

    assert [runner.stopped_by for runner in runners] == [[]] * len(runners)
    for runner in runners:
        await runner.complete()
    assert set(await stage.statuses()) == {"succeeded"}


async def test_service_and_database_away_for_three_leases_end_no_living_runners_attempt(stage):
    await living_runners_survive(stage, "service and database")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["service", "database"])
async def test_either_away_for_three_leases_ends_no_living_runners_attempt(stage, what):
    await living_runners_survive(stage, what)


async def test_a_silent_runner_is_lost_within_a_lease_and_a_sweep(stage, record_property):
    control, runner = stage.caller("control-plane"), LivingRunner(stage.caller("runner"))
    created = await control.call("POST", "/v1/attempts", json=new_attempt())
    # The pause after our own start is over when the first tick is a lease time old.
    await asyncio.sleep(LEASE_SECONDS + 1)
    await runner.begin()

    began = monotonic()
    path = f"/v1/attempts/{created.json()['id']}"
    answer = await control.call("GET", path, params={"wait_seconds": 30})
    seconds = monotonic() - began

    assert (answer.json()["status"], answer.json()["failure_category"]) == (
        "lost",
        "heartbeat_lost",
    )
    events = (await control.call("GET", f"{path}/events")).json()["items"]
    assert [event["event_type"] for event in events][-2:] == ["lease_expired", "lost"]
    record_property("seconds_until_lost", round(seconds, 1))


LIBFAKETIME = Path(f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketime.so.1")


async def test_a_clock_thirty_seconds_off_on_one_of_two_instances_changes_nothing(
    fresh_database, objects, issuer, tmp_path
):
    if not LIBFAKETIME.exists():
        assert os.environ.get("CI") != "true", "the CI installs faketime"
        pytest.skip("faketime is not installed (Debian package faketime)")
    common = {"LEASES__LEASE_SECONDS": LEASE_SECONDS, "IDENTITY__CLOCK_SKEW_SECONDS": 60}
    values = environment(fresh_database, objects, issuer, **common)
    wrong = {
        **values,
        "LD_PRELOAD": str(LIBFAKETIME),
        "FAKETIME": "+30s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    services = [
        await ServiceProcess(environment_, tmp_path / f"{number}.log").start()
        for number, environment_ in enumerate((values, wrong))
    ]
    urls = [service.url for service in services]
    control = Caller(urls, issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE))
    runners = [
        LivingRunner(Caller(urls[n:] + urls[:n], issuer[0].mint(ACCOUNTS["runner"], AUDIENCE)))
        for n in range(2)
    ]
    try:
        for runner in runners:
            await control.call("POST", "/v1/attempts", json=new_attempt())
            await runner.begin()
        done = asyncio.Event()
        beating = [asyncio.create_task(runner.beat_until(done)) for runner in runners]
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        done.set()
        await asyncio.gather(*beating)

        assert [runner.stopped_by for runner in runners] == [[], []]
        for runner in runners:
            await runner.complete()
        connection = await asyncpg.connect(fresh_database)
        span = await connection.fetchval(
            "SELECT max(created_at) - min(created_at) FROM attempt_events"
        )
        await connection.close()
        assert span.total_seconds() < 25, "a fact carries an application's clock"
    finally:
        for caller in (control, *(runner.caller for runner in runners)):
            await caller.close()
        for service in services:
            await service.stop()
