"""`make bench-claim`: how long a waiting runner waits for an attempt that was just enqueued.

One service process, PostgreSQL and the runners share this machine. Idle runners wait in long polls;
an attempt is created; measured is the time from its creation's 201 to the claim's answer that holds
it, at one of the waiting runners. Beside it, in the same run, the same with no idle runners.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import httpx

from bench.parts import Parts, described_machine
from tests.driver import new_attempt

ROUNDS = 300
IDLE = 200


class Waiter:
    """A runner that claims by long poll and tells when it got something."""

    def __init__(
        self, http: httpx.AsyncClient, zone: str, got: asyncio.Queue[tuple[str, float]]
    ) -> None:
        self.http, self.zone, self.got = http, zone, got
        self.id, self.session_id = f"bench-{uuid4().hex[:8]}", str(uuid4())

    async def run(self) -> None:
        """Register, then claim for ever."""
        profile = {
            "session_id": self.session_id,
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
            "capacity_total": 10_000,
            "zone": self.zone,
        }
        (await self.http.put(f"/v1/runners/{self.id}", json=profile)).raise_for_status()
        while True:
            body = {
                "session_id": self.session_id,
                "request_id": str(uuid4()),
                "wait_seconds": 30,
            }
            answer = await self.http.post(f"/v1/runners/{self.id}/leases:claim", json=body)
            now = perf_counter()
            for claimed in answer.json()["leases"]:
                self.got.put_nowait((claimed["attempt"]["id"], now))
                await self._finish(claimed)

    async def _finish(self, claimed: dict[str, Any]) -> None:
        """A runner that never starts what it claims would be unhealthy before long."""
        headers = {"Lease-Token": claimed["lease_token"]}
        path = f"/v1/leases/{claimed['lease']['id']}"
        await self.http.post(f"{path}:start", headers=headers)
        await self.http.post(f"{path}:complete", headers=headers, json={"outcome": "succeeded"})


async def measure(parts: Parts, waiting: int) -> list[float]:
    """Milliseconds from 201 to the claim's answer, for each of ROUNDS attempts."""
    got: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    zone = f"zone-{waiting}"  # so that a poll of the round before cannot take anything
    limits = httpx.Limits(max_connections=waiting + 10)
    async with (
        parts.client("runner", limits=limits) as runners,
        parts.client("control-plane") as control,
    ):
        tasks = [asyncio.create_task(Waiter(runners, zone, got).run()) for _ in range(waiting)]
        await asyncio.sleep(3)
        times = []
        for _ in range(ROUNDS):
            answer = await control.post("/v1/attempts", json=new_attempt(placement={"zone": zone}))
            created = perf_counter()
            attempt_id, at = await asyncio.wait_for(got.get(), 10)
            assert attempt_id == answer.json()["id"]
            times.append(max(0.0, at - created) * 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return times


def line(name: str, times: list[float]) -> str:
    """One row of the report."""
    cuts = statistics.quantiles(times, n=100)
    return f"  {name:<28} p50 {cuts[49]:6.1f} ms   p95 {cuts[94]:6.1f} ms   p99 {cuts[98]:6.1f} ms"


async def main() -> None:
    """Run both, print one report."""
    print(described_machine())
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await parts.serve()
            rows: dict[str, Any] = {}
            for name, waiting in (("1 waiting runner", 1), (f"{IDLE} waiting runners", IDLE)):
                rows[name] = await measure(parts, waiting)
    print(f"created to claimed, {ROUNDS} attempts each:")
    for name, times in rows.items():
        print(line(name, times))


if __name__ == "__main__":
    asyncio.run(main())
