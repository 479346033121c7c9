"""`make bench-growth`: what commands cost as history and queue grow, and beside an old transaction.

The service's own commands, each in a transaction of its own, one after the other; medians of what
their statements take. In databases with 0, 1 and 10 million finished attempts (`bench.data` builds
them once): almost empty otherwise, then beside a million queued that this runner cannot take, in
one class, over 2,000 classes, and behind one held key; what was added is removed again.

Then, in a database of its own, thousands of lives while another connection holds a snapshot open:
no row that dies can be removed, and the claim's index fills with entries of what was claimed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg

from app.embedded.postgres import EmbeddedPostgres
from app.store import migrate, partitions
from bench.commands import BEAT, CLAIM, NAMES, Commands, commands_over
from bench.data import OPTIONS, grown
from bench.parts import described_machine
from tests.plans.conftest import Queue

ROUNDS = 300
WARM = 60
OWN = 200
CLASSES = 2000
HISTORIES = (0, 1_000_000, 10_000_000)
Medians = dict[str, float]

REMOVE = """
DELETE FROM execution_attempts WHERE requested_by_service = 'filler' AND status = 'queued'
"""


async def measure(commands: Commands) -> Medians:
    """Medians over ROUNDS lives, one at a time."""
    for _ in range(WARM):
        await commands.live()
    commands.medians()
    for _ in range(ROUNDS):
        await commands.live()
    return commands.medians()


def show(name: str, found: Medians, base: Medians) -> None:
    """One row: milliseconds, and how claim and heartbeat compare with the empty database."""
    shown = "".join(f"{found[name]:>10.2f}" for name in NAMES)
    ratios = "".join(f"{found[name] / base[name]:>8.2f}" for name in (CLAIM, BEAT))
    print(f"  {name:<44}{shown}{ratios}", flush=True)


def head(title: str) -> None:
    """The names of the columns."""
    names = "".join(f"{name:>10}" for name in NAMES)
    print(f"\n  {title:<44}{names}   claim    beat   (against the first)", flush=True)


async def grow(sql: asyncpg.Connection, commands: Commands, title: str, many: int) -> Medians:
    """One history: the queue grows beside it; its own first line, for the next history."""
    queue = Queue(sql)
    async with sql.transaction():
        await partitions.ensure_near(sql)
    await commands.create(OWN)
    await queue.settle()
    head(title)
    base = await measure(commands)
    show("nothing else queued", base, base)
    await queue.fill(many, zone="elsewhere")
    await queue.settle()
    show(f"{many:,} in one foreign class", await measure(commands), base)
    await sql.execute(REMOVE, timeout=600)
    for number in range(CLASSES):
        await queue.fill(many // CLASSES, zone=f"zone-{number}")
    await queue.settle()
    show(f"{many:,} over {CLASSES:,} foreign classes", await measure(commands), base)
    await sql.execute(REMOVE, timeout=600)
    await queue.fill(many, key="one-host", claimable=False)
    await queue.settle()
    show(f"{many:,} behind one held key", await measure(commands), base)
    await sql.execute(REMOVE, timeout=600)
    await queue.settle()
    again = await measure(commands)
    show("nothing else queued, once more", again, base)
    return {name: min(base[name], again[name]) for name in NAMES}


async def with_history(many: int, queued: int) -> Medians:
    """The growing queue in a database with so many finished attempts."""
    title = f"{many:,} finished attempts"
    if many == 0:
        return await in_own_database(lambda sql, commands: grow(sql, commands, title, queued))
    async with grown(many, events=1) as postgres:
        return await with_commands(
            postgres.dsn, lambda sql, commands: grow(sql, commands, title, queued)
        )


Work = Callable[[asyncpg.Connection, Commands], Awaitable[Medians]]


async def with_commands(dsn: str, work: Work) -> Medians:
    """Do this with a connection and the commands of a runner."""
    sql = await asyncpg.connect(dsn, command_timeout=600)
    try:
        async with commands_over(dsn) as commands:
            return await work(sql, commands)
    finally:
        await sql.close()


async def in_own_database(work: Work, **options: str | int) -> Medians:
    """Do this in a new database, with the settings of the grown ones."""
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder), options=OPTIONS | options)
        await postgres.start()
        try:
            await asyncio.to_thread(migrate.upgrade, postgres.dsn)
            return await with_commands(postgres.dsn, work)
        finally:
            await postgres.stop()


async def beside_old_snapshot(sql: asyncpg.Connection, commands: Commands, lives: int) -> Medians:
    """Lives in batches, and between them single ones that are measured, under an open snapshot."""
    async with sql.transaction():
        await partitions.ensure_near(sql)
    await commands.create(OWN)
    for _ in range(20):
        await commands.live(50)
    await sql.execute("VACUUM ANALYZE")
    head("an old transaction is left open")
    base = await measure(commands)
    show("before it", base, base)
    found = base
    async with sql.transaction(isolation="repeatable_read"):
        await sql.fetchval("SELECT count(*) FROM execution_attempts")
        done = 0
        while done < lives:
            for _ in range(max(1, (done or 2000) // 50)):
                await commands.live(50)
                done += 50
            found = await measure(commands)
            done += ROUNDS + WARM
            show(f"after {done:,} lives beside it", found, base)
    show("it has ended", await measure(commands), base)
    await sql.execute("VACUUM ANALYZE")
    show("and all was vacuumed", await measure(commands), base)
    return found


async def main() -> None:
    """Every history, then the old transaction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000, help="that others must take")
    parser.add_argument("--finished", type=int, nargs="*", default=HISTORIES)
    parser.add_argument("--lives", type=int, default=50_000, help="beside the old transaction")
    given = parser.parse_args()
    print(described_machine(), flush=True)
    print("milliseconds at the median, statements only; fsync off, autovacuum off", flush=True)
    bases: dict[int, Medians] = {}
    for many in given.finished:
        bases[many] = await with_history(many, given.queued)
    if len(bases) > 1:
        head("with nothing else queued")
        for many, found in bases.items():
            show(f"{many:,} finished attempts", found, next(iter(bases.values())))
    if given.lives:
        await in_own_database(
            lambda sql, commands: beside_old_snapshot(sql, commands, given.lives), autovacuum="on"
        )
    print(f"\n  load {os.getloadavg()[0]:.1f} afterwards")


if __name__ == "__main__":
    asyncio.run(main())
