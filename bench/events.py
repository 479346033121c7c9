"""`make bench-events`: what a read of the feed costs in a database that has grown for years.

Each line is `feed.read` of 1,000 events, whole: its look at the epochs, its statement, the joined
attempts and the events as objects. A reader at the beginning, readers anywhere, one at the end, and
one that has read everything, in one run on one database.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import asyncpg

from app.domain.feed import Cursor
from app.store import feed
from bench.data import grown, size_option
from bench.parts import described_machine

PAGE = 1000
ROUNDS = 205
WARM = 5


async def measure(sql: asyncpg.Connection, places: Sequence[Cursor], **more: Sequence[str]) -> str:
    """Median and 95th percentile of a page after each of the places, in random order.

    And the mean time that a core works for it, here and in the server: that says something on a
    machine that others use too.
    """
    times, events = [], 0
    cpu = 0.0
    backend = await sql.fetchval("SELECT pg_backend_pid()")
    for number in range(ROUNDS):
        place = random.choice(places)  # noqa: S311
        began = perf_counter()
        async with sql.transaction():
            page = await feed.read(sql, place, PAGE, **more)
        if number == WARM:  # the first ones plan
            cpu = _cpu_seconds(backend)
        if number >= WARM:
            times.append((perf_counter() - began) * 1000)
            events += len(page.events)
    cpu = (_cpu_seconds(backend) - cpu) / (ROUNDS - WARM - 1) * 1000
    ordered = sorted(times)
    return (
        f"{events / len(times):7.0f} events   p50 {statistics.median(times):6.2f} ms   "
        f"p95 {ordered[int(len(ordered) * 0.95)]:6.2f} ms   CPU {cpu:5.2f} ms"
    )


def _cpu_seconds(backend: int) -> float:
    """What this process and a backend of the server have used so far."""
    fields = Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def places_in(sql: asyncpg.Connection, many: int) -> list[Cursor]:
    """Places all over the feed, as readers that came by would hold them."""
    rows = await sql.fetch(
        "SELECT feed_epoch, feed_xid, attempt_id, event_number, created_at FROM attempt_events "
        "TABLESAMPLE BERNOULLI (0.1) ORDER BY random() LIMIT $1",
        many,
    )
    return [
        Cursor(
            row["feed_epoch"],
            row["feed_xid"],
            row["attempt_id"],
            row["event_number"],
            row["created_at"] - feed.SKEW,
        )
        for row in rows
    ]


async def main() -> None:
    """Measure on the grown database."""
    parser = argparse.ArgumentParser(description=__doc__)
    size_option(parser)
    attempts = parser.parse_args().attempts
    print(described_machine(), flush=True)
    async with grown(attempts) as postgres:
        sql = await asyncpg.connect(postgres.dsn)
        rows, months = await sql.fetchrow(
            "SELECT (SELECT count(*) FROM attempt_events), (SELECT count(*) FROM pg_inherits "
            "WHERE inhparent = 'attempt_events'::regclass)"
        )
        print(f"  {rows:,} events in {months} partitions; pages of {PAGE:,}", flush=True)
        oldest, latest = await feed.oldest(sql), await feed.latest(sql)
        anywhere = await places_in(sql, 200)
        newest = sorted(anywhere)[-20:]
        for name, places in (
            ("from the oldest kept", [oldest]),
            ("from anywhere", anywhere),
            ("from the newest tenth", newest),
            ("caught up", [latest]),
        ):
            print(f"  {name:<26} {await measure(sql, places)}", flush=True)
        filtered = await measure(sql, anywhere, types=["attempt.succeeded"])
        print(f"  {'anywhere, one type of four':<26} {filtered}", flush=True)
        await sql.close()


if __name__ == "__main__":
    asyncio.run(main())
