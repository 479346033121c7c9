"""`make bench-growth`: what a claim costs as the queue grows by what this runner cannot take.

Side by side in one run, on one database: an almost empty queue, then a million queued attempts that
only others may take (in one class, then over 2,000), then a million behind one held key. Each
line is the claim's two statements, the look and the lease, in transactions that are rolled back.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from uuid import UUID, uuid4

import asyncpg

from app.domain.placement import Demands
from app.embedded.postgres import EmbeddedPostgres
from app.store import claims, migrate, partitions
from app.store.claims import Asked
from bench.parts import described_machine
from tests.plans.conftest import Queue

ROUNDS = 200


async def claim(connection: asyncpg.Connection, classes: Sequence[UUID]) -> tuple[float, float]:
    """Milliseconds of one look and one lease; what it leased is given back by a rollback."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await connection.execute("SET LOCAL enable_seqscan = off")
    began = perf_counter()
    asked = [Asked("runner-1", uuid4(), uuid4(), 1, 1)]
    [looked] = await claims.look(connection, "ssh", asked, classes)
    middle = perf_counter()
    terms = claims.LeaseTerms(
        [uuid4()], ["hash"], "k1", timedelta(seconds=15), timedelta(seconds=600)
    )
    [leased] = await claims.lease(connection, classes, asked, terms)
    ended = perf_counter()
    await transaction.rollback()
    assert looked.available, "there is always something for this runner"
    assert len(leased) == 1, "and it gets it"
    return (middle - began) * 1000, (ended - middle) * 1000


async def measure(connection: asyncpg.Connection, classes: Sequence[UUID]) -> tuple[float, float]:
    """Medians over ROUNDS claims."""
    for _ in range(20):
        await claim(connection, classes)
    times = [await claim(connection, classes) for _ in range(ROUNDS)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def class_of(zone: str | None) -> UUID:
    """The class of plain ssh attempts in a zone."""
    return Demands("ssh", "ssh.command.run", zone, {}).class_id


async def run(connection: asyncpg.Connection, many: int) -> None:
    """Fill and measure, step by step."""
    queue = Queue(connection)
    async with connection.transaction():
        await partitions.ensure_near(connection)
    own = [class_of(None)]
    await queue.fill(200)
    await queue.settle()
    base = await measure(connection, own)
    show("200 that it can take", base, base)
    await queue.fill(many, zone="elsewhere")
    await queue.settle()
    show(f"and {many:,} in one foreign class", await measure(connection, own), base)
    for number in range(2000):
        await queue.fill(many // 2000, zone=f"zone-{number}")
    await queue.settle()
    show(f"and {many:,} over 2,000 foreign classes", await measure(connection, own), base)
    await queue.fill(many, key="one-host", claimable=False)
    await queue.settle()
    show(f"and {many:,} behind one held key", await measure(connection, own), base)
    all_zones = [*own, *(class_of(f"zone-{number}") for number in range(1999))]
    show("a runner that may take 2,000 classes", await measure(connection, all_zones), base)


def show(name: str, times: tuple[float, float], base: tuple[float, float]) -> None:
    """One row: medians, and how they compare with the empty queue."""
    total, reference = sum(times), sum(base)
    print(
        f"  {name:<42} look {times[0]:6.2f} ms   lease {times[1]:6.2f} ms   "
        f"x {total / reference:4.1f}",
        flush=True,
    )


async def main() -> None:
    """Measure on a database of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder), options={"fsync": "off", "max_wal_size": "4GB"})
        await postgres.start()
        try:
            await asyncio.to_thread(migrate.upgrade, postgres.dsn)
            connection = await asyncpg.connect(postgres.dsn)
            await run(connection, rows)
            await connection.close()
        finally:
            await postgres.stop()


if __name__ == "__main__":
    asyncio.run(main())
