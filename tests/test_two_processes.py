"""Two processes of the service on one database behave as one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE, ROOT
from app.embedded.ports import free_port
from tests.conftest import environment
from tests.driver import Control, RunnerClient, new_attempt

ATTEMPTS = 500
CLAIMERS = 50


class Process:
    """One process of the service."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self.url = f"http://127.0.0.1:{free_port(0)}"

    def start(self, variables: dict[str, str]) -> None:
        port = {"EXECUTION_PLANE_SERVER__PORT": self.url.rpartition(":")[2]}
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app", "serve"],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], **variables, **port},
                stdout=log,
                stderr=log,
            )

    async def until_ready(self) -> None:
        async with httpx.AsyncClient() as http, asyncio.timeout(60):
            while not await self._is_ready(http):
                await asyncio.sleep(0.02)

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        assert self._process.poll() is None, self._log_file.read_text()
        try:
            return (await http.get(f"{self.url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def stopped(self) -> None:
        code = await asyncio.to_thread(self._process.wait, 15)
        assert code == 0, self._log_file.read_text()


@pytest.fixture
async def instances(fresh_database, objects, issuer, tmp_path) -> AsyncIterator[list[str]]:
    """The addresses of two processes; leases live long enough for a slow machine."""
    variables = environment(
        fresh_database, objects, issuer, LEASES__CLAIM_GRACE_SECONDS=300, DATABASE__POOL_SIZE=16
    )
    processes = [Process(tmp_path / f"{name}.log") for name in ("one", "two")]
    for process in processes:
        process.start(variables)
    try:
        await asyncio.gather(*(process.until_ready() for process in processes))
        yield [process.url for process in processes]
    finally:
        for process in processes:
            process.ask_to_stop()
        for process in processes:
            await process.stopped()


async def test_fifty_claimers_over_two_processes_get_each_attempt_exactly_once(instances, issuer):
    mint = issuer[0].mint
    limits = httpx.Limits(max_connections=CLAIMERS)
    async with (
        httpx.AsyncClient(base_url=instances[0], limits=limits, timeout=30) as one,
        httpx.AsyncClient(base_url=instances[1], limits=limits, timeout=30) as two,
    ):
        control = Control(one, mint(ACCOUNTS["control-plane"], AUDIENCE))
        token = mint(ACCOUNTS["runner"], AUDIENCE)
        created = await create(control, ATTEMPTS)
        runners = [
            await RunnerClient((one, two)[number % 2], token).register(capacity_total=ATTEMPTS)
            for number in range(CLAIMERS)
        ]

        claimed = await asyncio.gather(*(claim_until_empty(runner) for runner in runners))

        given = Counter(attempt_id for some in claimed for attempt_id in some)
        assert set(given) == set(created)
        assert set(given.values()) == {1}
        assert sum(map(len, claimed[::2])) > 0
        assert sum(map(len, claimed[1::2])) > 0
        for attempt_id in created[:: ATTEMPTS // 20]:
            leases = await control.list_of(attempt_id, "leases")
            assert [lease["lease_number"] for lease in leases] == [1]
            assert await control.event_types(attempt_id) == ["created", "leased"]


async def create(control: Control, count: int) -> list[str]:
    """Attempts that any of the runners can take."""
    requests = [new_attempt() for _ in range(count)]
    answer = await control.call("POST", "/v1/attempts:batch", json={"attempts": requests})
    return [item["attempt"]["id"] for item in answer.json()["items"]]


async def claim_until_empty(runner: RunnerClient) -> list[str]:
    """The attempts that this runner was given, a few at a time, until there is no more."""
    taken: list[str] = []
    while leases := await runner.claim_all(max_leases=2):
        taken += [held.attempt_id for held in leases]
    return taken
