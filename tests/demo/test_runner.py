"""The runner of `demo/`, as a process of its own, against a service process on real parts."""

import asyncio
import hashlib
import random
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from tests.conftest import environment
from tests.driver import Control, RunnerClient
from tests.kill.world import ServiceProcess

ROOT = Path(__file__).parents[2]
ENDS = {"succeeded", "failed", "cancelled", "timed_out", "lost"}


class Runner:
    """A runner process with nothing but the standard library."""

    def __init__(self, service: ServiceProcess, token: str, folder: Path) -> None:
        self.id = f"demo-{uuid4().hex[:6]}"
        self.log = folder / f"{self.id}.log"
        (folder / "token").write_text(token)
        place = ["--url", service.url, "--token-file", str(folder / "token")]
        itself = ["--id", self.id, "--kind", "ssh", "--capability", "ssh.command.run"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-s", "demo/runner.py", *place, *itself],
                cwd=ROOT,
                stderr=log,
            )

    async def end(self, seconds: float = 15) -> int:
        return await asyncio.to_thread(self.process.wait, seconds)


class World:
    """A service, the control plane, and the runners that a test starts."""

    def __init__(self, service: ServiceProcess, http: httpx.AsyncClient, issuer, folder: Path):
        self.service, self.folder = service, folder
        self._http, self._issuer = http, issuer
        self.control = Control(http, issuer.mint(ACCOUNTS["control-plane"], AUDIENCE))
        self.runner_token = issuer.mint(ACCOUNTS["runner"], AUDIENCE)
        self.runners: list[Runner] = []

    def run(self) -> Runner:
        self.runners.append(Runner(self.service, self.runner_token, self.folder))
        return self.runners[-1]

    def client(self, runner_id: str) -> RunnerClient:
        """Another session of that runner."""
        return RunnerClient(self._http, self.runner_token, id=runner_id)

    async def create(self, script: str, **fields) -> str:
        return (await self.control.create(job_spec_ref={"script": script}, **fields))["id"]

    async def until(self, attempt_id: str, *statuses: str, seconds: float = 30) -> dict:
        async with asyncio.timeout(seconds):
            while True:
                with suppress(httpx.TransportError):
                    attempt = await self.control.get(attempt_id)
                    if attempt["status"] in statuses:
                        return attempt
                await asyncio.sleep(0.05)

    async def ended(self, attempt_id: str) -> dict:
        return await self.until(attempt_id, *ENDS)

    async def printed(self, attempt_id: str, text: bytes) -> None:
        async with asyncio.timeout(15):
            while text not in (await self.control.read_log(attempt_id)).content:
                await asyncio.sleep(0.05)

    async def log(self, attempt_id: str, stream: str = "stdout") -> bytes:
        return (await self.control.read_log(attempt_id, stream)).content


@asynccontextmanager
async def open_world(service: ServiceProcess, issuer, folder: Path):
    """A world around a running service; its runners are gone after it."""
    async with httpx.AsyncClient(base_url=service.url, timeout=15) as http:
        world = World(service, http, issuer[0], folder)
        yield world
        for runner in world.runners:
            runner.process.kill()
            runner.process.wait()


@pytest.fixture(scope="module")
async def service(make_database, objects, issuer, tmp_path_factory):
    """One service for all tests here that need no other settings."""
    variables = environment(await make_database(), objects, issuer)
    process = ServiceProcess(variables, tmp_path_factory.mktemp("service") / "log")
    yield await process.start()
    await process.stop()


@pytest.fixture
async def world(service, issuer, tmp_path):
    async with open_world(service, issuer, tmp_path) as opened:
        yield opened


@pytest.fixture
async def make_world(fresh_database, objects, issuer, tmp_path):
    """A world whose service has further settings."""
    async with AsyncExitStack() as stack:

        async def make(**settings) -> World:
            variables = environment(fresh_database, objects, issuer, **settings)
            service = await ServiceProcess(variables, tmp_path / "service.log").start()
            stack.push_async_callback(service.stop)
            return await stack.enter_async_context(open_world(service, issuer, tmp_path))

        yield make


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def gone(*pids: int) -> None:
    async with asyncio.timeout(10):
        while any(map(is_alive, pids)):
            await asyncio.sleep(0.05)


def pids_in(log: bytes) -> list[int]:
    return [int(pid) for pid in re.findall(rb"pid (\d+)", log)]


STUBBORN = "trap '' TERM; sleep 300 & echo pid $$, pid $!; wait; wait"
TWO_PROCESSES = "sleep 300 & echo pid $$, pid $!; wait"


async def test_job_is_done_and_its_output_is_stored_byte_for_byte(world):
    noise = world.folder / "noise"
    # The same at each run: now and then a few bytes of noise look like a password.
    noise.write_bytes(random.Random(7).randbytes(2_500_000))
    attempt_id = await world.create(
        f"cat {noise}; echo 'step 3 of 4: go' >&2; sleep 1.2; printf 'no newline' >&2"
    )

    world.run()

    attempt = await world.ended(attempt_id)
    assert (attempt["status"], attempt["result"]["exit_code"]) == ("succeeded", 0)
    assert attempt["result"]["duration_seconds"] == pytest.approx(1.2, abs=0.8)
    stored = await world.log(attempt_id)
    assert hashlib.sha256(stored).digest() == hashlib.sha256(noise.read_bytes()).digest()
    assert await world.log(attempt_id, "stderr") == b"step 3 of 4: go\nno newline"
    beats = await world.control.list_of(attempt_id, "heartbeats")
    assert (50, "step 3 of 4: go") in [(b["progress_percent"], b["message"]) for b in beats]


async def test_files_that_a_job_leaves_are_its_outputs(world):
    world.run()
    script = """mkdir outputs; cd outputs; echo '{"changed": 3}' > plan.json; printf '\\0' > raw"""

    attempt_id = await world.create(script)
    attempt = await world.ended(attempt_id)

    assert attempt["status"] == "succeeded"
    found = await world.control.list_of(attempt_id, "outputs")
    assert [(one["name"], one["output_type"]) for one in found] == [
        ("plan.json", "json"),
        ("raw", "binary"),
    ]
    content = await world.control.call(
        "GET", f"/v1/artifacts/{found[0]['artifact_ref_id']}/content"
    )
    assert content.content == b'{"changed": 3}\n'
    [evidence] = await world.control.list_of(attempt_id, "evidence")
    assert (evidence["status"], evidence["evidence_type"]) == ("passed", "assertion")


async def test_command_that_fails_is_told_with_its_exit_code_and_the_next_one_is_taken(world):
    failing = await world.create("echo oh; exit 7")
    nonsense = (await world.control.create(job_spec_ref={"playbook": "x"}))["id"]
    killed = await world.create("kill -9 $$")
    leaving = await world.create(f"({TWO_PROCESSES}) & sleep 0.3")

    world.run()

    attempt = await world.ended(failing)
    assert (attempt["status"], attempt["failure_category"]) == ("failed", "command_failed")
    assert attempt["result"]["exit_code"] == 7
    assert await world.log(failing) == b"oh\n"
    assert (await world.ended(nonsense))["failure_category"] == "validation"
    assert (await world.ended(killed))["result"]["exit_code"] == 137
    assert (await world.ended(leaving))["status"] == "succeeded"
    await gone(*pids_in(await world.log(leaving)))


async def test_cancelled_job_and_all_that_it_started_are_ended_and_its_end_is_told(world):
    attempt_id = await world.create(TWO_PROCESSES)
    world.run()
    await world.printed(attempt_id, b"pid")

    answer = await world.control.call(
        "POST", f"/v1/attempts/{attempt_id}:cancel", json={"reason": "no longer wanted"}
    )

    assert answer.status_code == 200
    attempt = await world.ended(attempt_id)
    assert (attempt["status"], attempt["stop_confirmed"]) == ("cancelled", True)
    await gone(*pids_in(await world.log(attempt_id)))


async def test_job_that_takes_too_long_is_ended_by_the_runner_itself(world):
    attempt_id = await world.create(TWO_PROCESSES, timeout_seconds=1)

    world.run()

    attempt = await world.ended(attempt_id)
    assert (attempt["status"], attempt["failure_category"]) == ("timed_out", "timeout")
    await gone(*pids_in(await world.log(attempt_id)))


async def test_kill_9_of_the_runner_leaves_nothing_of_the_job_even_if_it_resists(world):
    attempt_id = await world.create(STUBBORN)
    runner = world.run()
    await world.printed(attempt_id, b"pid")
    pids = pids_in(await world.log(attempt_id))
    assert len(pids) == 2
    assert all(map(is_alive, pids))

    runner.process.kill()

    await gone(*pids)
    assert await world.control.status(attempt_id) == "running"


async def test_new_session_of_the_same_runner_ends_the_job_of_the_old_one(world):
    attempt_id = await world.create(STUBBORN)
    runner = world.run()
    await world.printed(attempt_id, b"pid")

    await world.client(runner.id).register()

    await gone(*pids_in(await world.log(attempt_id)))
    assert await runner.end() != 0
    assert "session-replaced" in runner.log.read_text()
    assert (await world.ended(attempt_id))["status"] == "lost"


async def test_runner_told_to_stop_ends_its_job_first_and_at_the_second_time_at_once(world):
    first, second = (
        await world.create("echo on; sleep 1; echo off"),
        await world.create(TWO_PROCESSES),
    )
    runner = world.run()
    await world.printed(first, b"on")
    runner.process.send_signal(signal.SIGTERM)
    assert await runner.end() == 0
    assert await world.log(first) == b"on\noff\n"
    assert await world.control.status(second) == "queued"

    runner = world.run()
    await world.printed(second, b"pid")
    runner.process.send_signal(signal.SIGTERM)
    runner.process.send_signal(signal.SIGINT)
    assert await runner.end() == 0
    assert (await world.ended(second))["failure_category"] == "internal"

    idle = world.run()
    async with asyncio.timeout(10):
        while "is registered" not in idle.log.read_text():
            await asyncio.sleep(0.05)
    idle.process.send_signal(signal.SIGTERM)
    assert await idle.end(5) == 0


async def test_service_that_dies_in_the_middle_costs_neither_the_job_nor_its_log(world):
    attempt_id = await world.create("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done")
    runner = world.run()
    await world.printed(attempt_id, b"line 2")

    world.service.kill()
    await asyncio.sleep(1.5)
    await world.service.start()

    attempt = await world.ended(attempt_id)
    assert attempt["status"] == "succeeded"
    assert await world.log(attempt_id) == b"".join(b"line %d\n" % i for i in range(1, 7))
    assert "the service is back" in runner.log.read_text()


async def test_every_kind_of_answer_may_be_lost_once_and_all_is_done_once(make_world):
    moments = ("claim", "start", "heartbeat", "log", "complete")
    lost = {f"{moment}.after_commit": {"action": "drop_answer", "times": 1} for moment in moments}
    world = await make_world(
        TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=lost, LEASES__LEASE_SECONDS=6
    )
    attempt_id = await world.create(f"echo done >> {world.folder}/touched; echo one; echo two >&2")

    world.run()

    assert (await world.ended(attempt_id))["status"] == "succeeded"
    assert (world.folder / "touched").read_text() == "done\n"
    assert await world.log(attempt_id) == b"one\n"
    assert await world.log(attempt_id, "stderr") == b"two\n"
    assert len(await world.control.list_of(attempt_id, "leases")) == 1


async def test_start_that_was_answered_late_is_asked_for_again_before_anything_is_touched(
    make_world,
):
    world = await make_world(
        TESTING__ALLOW_FAILPOINTS="true",
        TESTING__FAILPOINTS={
            "start.after_commit": {"action": "sleep", "times": 1, "seconds": 3.5},
        },
        LEASES__LEASE_SECONDS=6,
    )
    attempt_id = await world.create("true")

    world.run()

    assert (await world.ended(attempt_id))["status"] == "succeeded"
    metrics = (await world.control.call("GET", "/metrics")).text
    assert re.search(r'execution_plane_commands_total{.*"lease.start".*} 2', metrics)
