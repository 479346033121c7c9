"""`make bench-placement`: how long "why does it wait?" takes in a long queue.

One service, 10,000 queued attempts and 200 runners that cannot take them; the answer about the last
in line, about one in the middle and about one behind a held key, over HTTP, authentication on.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter
from uuid import uuid4

import asyncpg
import httpx

from bench.parts import Parts, described_machine
from bench.wire import percentile
from tests.plans.conftest import Queue

QUEUED = 10_000
RUNNERS = 200
ROUNDS = 200


async def register(client: httpx.AsyncClient) -> None:
    """Runners of another zone."""
    for number in range(RUNNERS):
        profile = {
            "session_id": str(uuid4()),
            "runner_kind": "ssh",
            "version": "1.0.0",
            "capabilities": ["ssh.command.run"],
            "zone": "here",
        }
        (await client.put(f"/v1/runners/bench-{number}", json=profile)).raise_for_status()


async def ask(client: httpx.AsyncClient, attempt_id: str) -> float:
    """Milliseconds of one answer."""
    began = perf_counter()
    (await client.get(f"/v1/attempts/{attempt_id}/placement")).raise_for_status()
    return (perf_counter() - began) * 1000


async def main() -> None:
    """Fill, then ask."""
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await parts.serve()
            sql = await asyncpg.connect(parts.postgres.dsn)
            queue = Queue(sql)
            await queue.fill(QUEUED, zone="elsewhere")
            await queue.fill(100, key="one-host", claimable=False)
            await queue.settle()
            found = await sql.fetch(
                "SELECT id::text FROM execution_attempts ORDER BY concurrency_key NULLS FIRST, "
                "priority, created_at, id"
            )
            async with parts.client("runner") as runners:
                await register(runners)
            async with parts.client("operator") as client:
                for name, place in (("middle", QUEUED // 2), ("last", QUEUED - 1), ("keyed", -1)):
                    times = [await ask(client, found[place]["id"]) for _ in range(ROUNDS)]
                    shares = [percentile(times, share) for share in (0.5, 0.95)]
                    print(f"  {name:<8} p50 {shares[0]:5.1f} ms   p95 {shares[1]:5.1f} ms")
            await sql.close()


if __name__ == "__main__":
    asyncio.run(main())
