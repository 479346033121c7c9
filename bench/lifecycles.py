"""`make bench-lifecycles`: whole lives over HTTP, beside servers that do nothing.

One service process, PostgreSQL, the S3 server and the load generator share this machine. A life is
create, claim, start, one heartbeat and complete. In one run: what the generator reaches against a
bare ASGI application and a bare FastAPI echo of the same creation, creations alone, lives at 1, 4,
16 and 64 runners by single calls, and lives by batch routes (64 creations, 16 leases a claim, the
heartbeats of a runner in one request).

Authentication is on, TLS off, one process, fsync and synchronous_commit on, access log off.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import uvloop

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.ports import free_port
from bench.parts import Parts, described_machine
from bench.wire import Times, Wire, percentile
from tests.driver import new_attempt

CREATE, CLAIM, START, BEAT, COMPLETE = "create", "claim", "start", "heartbeat", "complete"


class Fleet:
    """Runners and control planes of one service, each on connections of its own."""

    def __init__(self, parts: Parts, url: str) -> None:
        self.url = url
        self.tokens = {
            role: parts.issuer.mint(ACCOUNTS[role], AUDIENCE)
            for role in ("runner", "control-plane")
        }

    async def wire(self, role: str, times: Times) -> Wire:
        """A connection in this role."""
        return await Wire(self.url, self.tokens[role], times).open()

    async def runner(self, times: Times, zone: str) -> Runner:
        """A registered runner."""
        return await Runner(await self.wire("runner", times), zone).register()


class Runner:
    """One runner, on one connection."""

    def __init__(self, wire: Wire, zone: str) -> None:
        self.wire, self.zone = wire, zone
        self.id, self.session_id = f"bench-{uuid4().hex[:10]}", str(uuid4())

    async def register(self) -> Runner:
        """Make it known."""
        body = {
            "session_id": self.session_id,
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
            "capacity_total": 1000,
            "zone": self.zone,
        }
        await self.wire.call("register", "PUT", f"/v1/runners/{self.id}", body)
        return self

    async def claim(self, most: int = 1) -> list[dict[str, Any]]:
        """Leases; waits for them a little."""
        body = {
            "session_id": self.session_id,
            "request_id": str(uuid4()),
            "max_leases": most,
            "wait_seconds": 2,
        }
        path = f"/v1/runners/{self.id}/leases:claim"
        return (await self.wire.call(CLAIM, "POST", path, body)).json()["leases"]

    async def under(self, name: str, claimed: dict[str, Any], body: Any) -> None:
        """One call under a lease."""
        path = f"/v1/leases/{claimed['lease']['id']}:{name}"
        await self.wire.call(name, "POST", path, body, claimed["lease_token"])

    def beat(self, **more: Any) -> dict[str, Any]:
        """The body of a heartbeat."""
        return {"session_id": self.session_id, "sequence": 1, "progress_percent": 50, **more}


async def live_singly(runner: Runner, control: Wire) -> int:
    """One life by single calls."""
    body = new_attempt(placement={"zone": runner.zone})
    await control.call(CREATE, "POST", "/v1/attempts", body)
    claimed = await runner.claim()
    for one in claimed:
        await runner.under(START, one, {})
        await runner.under(BEAT, one, runner.beat())
        await runner.under(COMPLETE, one, {"outcome": "succeeded"})
    return len(claimed)


async def live_in_batches(runner: Runner, control: Wire) -> int:
    """Sixty-four lives: one batch of creations, claims of sixteen, heartbeats together."""
    attempts = [new_attempt(placement={"zone": runner.zone}) for _ in range(64)]
    await control.call(CREATE, "POST", "/v1/attempts:batch", {"attempts": attempts})
    done = 0
    for _ in range(4):
        claimed = await runner.claim(16)
        for one in claimed:
            await runner.under(START, one, {})
        beats = [
            runner.beat(lease_id=one["lease"]["id"], lease_token=one["lease_token"])
            for one in claimed
        ]
        if beats:
            await runner.wire.call(BEAT, "POST", "/v1/leases:heartbeat", {"heartbeats": beats})
        for one in claimed:
            await runner.under(COMPLETE, one, {"outcome": "succeeded"})
        done += len(claimed)
    return done


Life = Callable[[Runner, Wire], Awaitable[int]]


async def lives(
    fleet: Fleet, runners: int, seconds: float, life: Life, process: psutil.Process
) -> tuple[float, float, Times]:
    """Lives a second, the service's CPU milliseconds a life, and every call's time."""
    times: Times = defaultdict(list)
    pairs = [
        (await fleet.runner(times, f"z{number % 4}"), await fleet.wire("control-plane", times))
        for number in range(runners)
    ]
    end = time.perf_counter() + seconds
    done = 0

    async def one(runner: Runner, control: Wire) -> None:
        nonlocal done
        while time.perf_counter() < end:
            lived = await life(runner, control)
            done += lived

    for runner, control in pairs[:2]:
        await life(runner, control)
    times.clear()
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    await asyncio.gather(*(one(*pair) for pair in pairs))
    took = time.perf_counter() - began
    cpu = (sum(process.cpu_times()[:2]) - before) * 1000 / max(done, 1)
    for runner, control in pairs:
        await runner.wire.close()
        await control.close()
    return done / took, cpu, times


async def calls(
    wires: list[Wire], seconds: float, path: str, process: psutil.Process
) -> tuple[float, float]:
    """Creations a second over these connections, and CPU milliseconds of the server a call."""
    end = time.perf_counter() + seconds
    count = 0

    async def one(wire: Wire) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await wire.call("bare", "POST", path, new_attempt())
            count += 1

    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    await asyncio.gather(*(one(wire) for wire in wires))
    took = time.perf_counter() - began
    return count / took, (sum(process.cpu_times()[:2]) - before) * 1000 / max(count, 1)


async def bare(kind: str, seconds: float, connections: int) -> tuple[float, float]:
    """The same creations against a server that does nothing with them."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "bench.bare", kind, str(port)])  # noqa: ASYNC220, S603
    try:
        for _ in range(200):
            try:
                wires = [await Wire(f"http://127.0.0.1:{port}").open() for _ in range(connections)]
                break
            except OSError:
                await asyncio.sleep(0.05)
        return await calls(wires, seconds, "/v1/attempts", psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()


async def main() -> None:
    """All of it, in one run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8)
    seconds = parser.parse_args().seconds
    print(described_machine(), flush=True)
    print("authentication on, TLS off, one process, fsync and synchronous_commit on", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            service = await parts.serve()
            process = psutil.Process(service.pid)
            fleet = Fleet(parts, service.url)
            asgi = await bare("asgi", seconds / 2, 16)
            echo = await bare("echo", seconds / 2, 16)
            wires = [await fleet.wire("control-plane", defaultdict(list)) for _ in range(16)]
            await calls(wires, 2, "/v1/attempts", process)
            made = await calls(wires, seconds, "/v1/attempts", process)
            print(f"\n  {'one route, 16 connections':<34}{'a second':>10}{'CPU ms a call':>15}")
            for name, (rate, cpu) in (
                ("bare ASGI (the generator's ceiling)", asgi),
                ("bare FastAPI echo of a creation", echo),
                ("creation", made),
            ):
                print(f"  {name:<34}{rate:>10.0f}{cpu:>15.2f}")
            print(
                f"  creation against echo: {made[0] / echo[0]:.2f} of its rate, "
                f"{made[1] / echo[1]:.1f} times its CPU"
            )
            print(f"\n  {'lives':<34}{'a second':>10}{'CPU ms a life':>15}", flush=True)
            for runners in (1, 4, 16, 64):
                rate, cpu, times = await lives(fleet, runners, seconds, live_singly, process)
                print(f"  {f'single calls, {runners} runners':<34}{rate:>10.0f}{cpu:>15.2f}")
                if runners == 16:  # noqa: PLR2004
                    routes = times
            for runners in (4, 16):
                rate, cpu, _ = await lives(fleet, runners, seconds, live_in_batches, process)
                print(f"  {f'batch routes, {runners} runners':<34}{rate:>10.0f}{cpu:>15.2f}")
            print("\n  each route at 16 runners, ms             p50    p95    p99")
            for name in (CREATE, CLAIM, START, BEAT, COMPLETE):
                shares = [percentile(routes[name], share) for share in (0.5, 0.95, 0.99)]
                print(f"  {name:<34}" + "".join(f"{value:>7.1f}" for value in shares))
            memory = process.memory_info().rss / 2**20
            print(f"\n  memory of the service afterwards: {memory:.0f} MiB")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
