"""`make bench-partitions`: how long it takes to remove a day of heartbeats, small and large.

Beats are written and read all the while. Both ways of removal are measured side by side in one run:
over the direct connection (detached concurrently), and without one (in a transaction). The slowest
beat says what the removal cost those who had nothing to do with it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Self

import asyncpg

from app.loops.drop_partitions import DropPartitions
from app.services import Services
from app.settings import load
from app.store import partitions
from app.wiring import open_services
from bench.parts import Parts, described_machine
from tests.conftest import environment

INSERT = """
INSERT INTO attempt_heartbeats (id, attempt_id, runner_instance_id, phase, message, created_at)
VALUES (gen_random_uuid(), gen_random_uuid(), 'runner', 'executing', 'at work', now())
"""
READ = """
SELECT count(*) FROM attempt_heartbeats WHERE created_at > now() - interval '60 days'
    AND attempt_id = (SELECT gen_random_uuid())
"""
FILL = """
INSERT INTO {name} (id, attempt_id, runner_instance_id, phase, message, created_at)
SELECT gen_random_uuid(), gen_random_uuid(), 'runner-1', 'executing', 'at work',
    $1::timestamptz + n * interval '10 ms' FROM generate_series(1, $2) n
"""


async def make_day(connection: asyncpg.Connection, days_ago: int, rows: int) -> str:
    """A partition of a day long ago with so many rows."""
    day = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=days_ago)
    suffix = f"{day:%Y%m%d}"
    async with connection.transaction():
        await partitions._make(
            connection, "attempt_heartbeats", suffix, day, day + dt.timedelta(days=1)
        )
    name = f"attempt_heartbeats_{suffix}"
    # A day that old was vacuumed long ago; just filled, it would be now.
    await connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
    start = dt.datetime.combine(day, dt.time(), dt.UTC)
    await connection.execute(FILL.format(name=name), start, rows, timeout=3600)
    return name


async def written_out(admin_dsn: str) -> None:
    """Have what was just filled on disk: a day that old has been there for long."""
    admin = await asyncpg.connect(admin_dsn)
    await admin.execute("CHECKPOINT", timeout=600)
    await admin.close()
    await asyncio.to_thread(os.sync)


class Traffic:
    """Somebody who beats and somebody who reads, until told to stop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._done = asyncio.Event()
        self.beats: list[float] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._repeat(statement, keep))
            for statement, keep in ((INSERT, True), (INSERT, True), (READ, False))
        ]
        await asyncio.sleep(0.5)
        return self

    async def _repeat(self, statement: str, keep: bool) -> None:
        connection = await asyncpg.connect(self._dsn)
        while not self._done.is_set():
            began = perf_counter()
            async with connection.transaction():
                await connection.fetch(statement)
                if not keep:
                    await asyncio.sleep(0.05)  # a reader that stays open for a while
            if keep:
                self.beats.append((perf_counter() - began) * 1000)
        await connection.close()

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await asyncio.gather(*self._tasks)


async def remove(services: Services, dsn: str) -> tuple[float, float, int]:
    """Milliseconds of the removal and of the slowest beat meanwhile, and how many beats."""
    async with Traffic(dsn) as traffic:
        traffic.beats.clear()
        began = perf_counter()
        result = await DropPartitions().run_once(services)
        took = (perf_counter() - began) * 1000
        assert result.done == 1, "one partition was due"
        beats = list(traffic.beats)
    return took, max(beats, default=0.0), len(beats)


async def run(parts: Parts, sizes: list[int], rounds: int) -> None:
    """Each size and each way, several times."""
    dsn = parts.postgres.dsn
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await partitions.ensure_near(connection)
    issuer = (parts.issuer, "http://127.0.0.1:9/certs")
    for number in range(rounds):
        for rows in sizes:
            for direct in (True, False):
                await make_day(connection, 40 + number, rows)
                await written_out(parts.postgres.admin_dsn)
                more = {"DATABASE__DIRECT_URL": dsn} if direct else {}
                settings = load(environment(dsn, parts.objects, issuer, **more))
                async with open_services(settings) as services:
                    took, slowest, beats = await remove(services, dsn)
                way = "concurrently" if direct else "in a transaction"
                print(
                    f"  {rows:>9,} rows  {way:<16}  {took:7.0f} ms   "
                    f"slowest of {beats:,} beats {slowest:6.1f} ms",
                    flush=True,
                )
    await connection.close()


async def main() -> None:
    """Measure on parts of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--rows", type=int, default=5_000_000, help="the larger one; a tenth beside"
    )
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await run(parts, [given.rows // 10, given.rows], given.rounds)


if __name__ == "__main__":
    asyncio.run(main())
