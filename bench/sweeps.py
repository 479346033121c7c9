"""`make bench-sweeps`: what each loop costs when there is nothing for it to do.

One database with 100,000 active leases, and every loop of the service, one pass after the other.
Loops that ask the object store have its answers in their time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import asyncpg

from app.domain.placement import Demands
from app.loops.loop import Loop
from app.loops.supervisor import loops_of
from app.services import Services
from app.settings import load
from app.store import partitions
from app.wiring import open_services
from bench.parts import Parts, described_machine
from tests.conftest import environment
from tests.plans.conftest import Queue

ROUNDS = 30
LIMIT_MS = 5.0
ASK_THE_STORE = {"mark_bucket", "remove_orphans", "abort_uploads"}

# One runner in a hundred leases; beats are on time, and no limit is near.
RUN_ALL = """
WITH taken AS (
    UPDATE execution_attempts SET status = 'leased', claimable = false, leased_at = now(),
        runner_instance_id = 'runner-' || (random() * $1)::int, last_lease_number = 1,
        limit_at = now() + interval '1 h'
    WHERE status = 'queued' RETURNING id, runner_instance_id
)
INSERT INTO runner_leases (id, attempt_id, runner_instance_id, lease_token_hash, token_key_id,
    status, expires_at, created_at, lease_number, session_id, claim_request_id, last_sequence,
    check_at)
SELECT gen_random_uuid(), id, runner_instance_id, 'h', 'k1', 'active', now() + interval '1 h',
    now(), 1, gen_random_uuid(), gen_random_uuid(), 1, now() + interval '1 h' FROM taken
"""
RUNNERS = """
INSERT INTO runner_instances (id, runner_kind, version, capabilities, labels, registered_at,
    last_seen_at, session_id)
SELECT 'runner-' || n, 'ssh', '1', '{ssh.*}', '{}', now(), now(), gen_random_uuid()
FROM generate_series(0, $1) n
"""


async def fill(connection: asyncpg.Connection, leases: int) -> None:
    """So many active leases, a hundred a runner."""
    async with connection.transaction():
        await partitions.ensure(connection)
    queue = Queue(connection)
    await queue.fill(leases)
    await connection.execute(RUN_ALL, leases // 100, timeout=600)
    await connection.execute(RUNNERS, leases // 100)
    await queue.settle()
    demands = Demands("ssh", "ssh.command.run", None, {})
    assert demands.class_id, "the class that all of them wait in"


async def measure(loop: Loop, services: Services) -> tuple[list[float], int]:
    """Milliseconds of each pass, and how much it found to do."""
    for _ in range(3):
        await loop.run_once(services)
    times, done = [], 0
    for _ in range(ROUNDS):
        began = perf_counter()
        done += (await loop.run_once(services)).done
        times.append((perf_counter() - began) * 1000)
    return times, done


async def run(parts: Parts, leases: int) -> None:
    """Fill, then measure all loops."""
    connection = await asyncpg.connect(parts.postgres.dsn)
    await fill(connection, leases)
    active = await connection.fetchval("SELECT count(*) FROM runner_leases")
    print(f"  {active:,} active leases, {ROUNDS} passes each", flush=True)
    issuer = (parts.issuer, "http://127.0.0.1:9/certs")
    settings = load(environment(parts.postgres.dsn, parts.objects, issuer))
    async with open_services(settings) as services:
        for loop in loops_of("all"):
            times, done = await measure(loop, services)
            best, middle, slowest = min(times), statistics.median(times), max(times)
            word = "" if middle < LIMIT_MS or loop.name in ASK_THE_STORE else "   over the limit"
            note = "   asks the store" if loop.name in ASK_THE_STORE else ""
            print(
                f"  {loop.name:<18} best {best:6.2f} ms   p50 {middle:6.2f} ms   "
                f"slowest {slowest:7.2f} ms   "
                f"did {done}{note}{word}",
                flush=True,
            )
    await connection.close()


async def main() -> None:
    """Measure on parts of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--leases", type=int, default=100_000)
    leases = parser.parse_args().leases
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await run(parts, leases)


if __name__ == "__main__":
    asyncio.run(main())
