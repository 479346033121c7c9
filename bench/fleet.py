"""Runners and control planes that live whole lives against one service, and what that costs it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import psutil

from app.embedded.environment import ACCOUNTS, AUDIENCE
from bench.parts import Parts
from bench.wire import Times, Wire
from tests.driver import new_attempt

CREATE, CLAIM, START, BEAT, COMPLETE = "create", "claim", "start", "heartbeat", "complete"
CREATED, CLAIMED = 64, 16
"""What the batch routes create and claim at once."""
ZONES = 4


class Fleet:
    """Runners and control planes of one service, each on connections of its own."""

    def __init__(self, parts: Parts, url: str) -> None:
        self.url = url
        self.tokens = {role: parts.issuer.mint(ACCOUNTS[role], AUDIENCE) for role in ACCOUNTS}

    async def wire(self, role: str, times: Times, **more: str) -> Wire:
        """A connection in this role."""
        return await Wire(self.url, self.tokens[role], times, **more).open()

    async def runner(self, times: Times, zone: str) -> Runner:
        """A registered runner, on a connection of its own."""
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

    async def under_all(
        self, name: str, member: str, claimed: Sequence[dict[str, Any]], **more: Any
    ) -> None:
        """The same call under each of these leases, in one request."""
        items = [
            {"lease_id": one["lease"]["id"], "lease_token": one["lease_token"], **more}
            for one in claimed
        ]
        if items:
            answered = await self.wire.call(name, "POST", f"/v1/leases:{name}", {member: items})
            refused = [item for item in answered.json()["items"] if item["status"] != HTTPStatus.OK]
            assert not refused, refused[0]

    async def close(self) -> None:
        """Close its connection."""
        await self.wire.close()

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
    """Sixty-four lives: one batch of creations, claims of sixteen, and the rest in sixteens."""
    attempts = [new_attempt(placement={"zone": runner.zone}) for _ in range(CREATED)]
    await control.call(CREATE, "POST", "/v1/attempts:batch", {"attempts": attempts})
    done = 0
    for _ in range(CREATED // CLAIMED):
        claimed = await runner.claim(CLAIMED)
        await runner.under_all(START, "starts", claimed)
        await runner.under_all(BEAT, "heartbeats", claimed, **runner.beat())
        await runner.under_all(COMPLETE, "completions", claimed, outcome="succeeded")
        done += len(claimed)
    return done


Life = Callable[[Runner, Wire], Awaitable[int]]


@dataclass(frozen=True)
class Lives:
    """What so many lives came to."""

    a_second: float
    cpu_ms: float
    """Of the service, a life."""
    times: Times
    """Milliseconds of every call, by its name."""


async def lives(  # what is measured, and how
    fleet: Fleet,
    runners: int,
    seconds: float,
    life: Life,
    process: psutil.Process,
) -> Lives:
    """Lives of so many runners at once; what was begun in time is counted to its end."""
    times: Times = defaultdict(list)
    pairs = [
        (
            await fleet.runner(times, f"z{number % ZONES}"),
            await fleet.wire("control-plane", times),
        )
        for number in range(runners)
    ]
    for runner, control in pairs[:2]:
        await life(runner, control)
    times.clear()
    done = 0
    end = time.perf_counter() + seconds

    async def one(runner: Runner, control: Wire) -> None:
        nonlocal done
        while time.perf_counter() < end:
            lived = await life(runner, control)
            done += lived

    before, began = cpu_seconds(process), time.perf_counter()
    await asyncio.gather(*(one(*pair) for pair in pairs))
    took = time.perf_counter() - began
    cpu = (cpu_seconds(process) - before) * 1000 / max(done, 1)
    for runner, control in pairs:
        await runner.close()
        await control.close()
    return Lives(done / took, cpu, times)


def cpu_seconds(process: psutil.Process) -> float:
    """CPU that a process has used, user and system."""
    used = process.cpu_times()
    return float(used.user + used.system)
