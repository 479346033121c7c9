"""`make bench-limits`: what PostgreSQL itself makes of a life, without the service.

On one embedded PostgreSQL, by its own pgbench, prepared, `fsync` and `synchronous_commit` on:

- the service's statements, one life at a time on 16 connections;
- the same over sets of 64 (created together, claimed by 16 or by 64, started, beaten and completed
  as they were claimed) on 2 and on 4 connections;
- four fixed plain statements of this repository (bench/plain.sql) on 16 connections.

The statements of the service are those that its commands execute (bench/life.py). Every script runs
for a while first, then tables are vacuumed and analysed, then it is measured on new connections:
the plans and statistics of empty tables would tell of nothing. Lives are counted in the tables, so
that a round which found nothing to claim is no life.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from app.embedded.postgres import NAME, EmbeddedPostgres
from app.store import migrate
from bench.life import Runner, prepare, record
from bench.parts import described_machine
from bench.pgbench import Run, Script, hot_settings, render, run

HERE = Path(__file__).parent
CONNECTIONS = 16
ZONES = 4
SETS = ((64, 16), (64, 64))
SET_CONNECTIONS = (2, 4)
_COUNT_LIVES = "SELECT count(*) FROM execution_attempts WHERE status = 'succeeded'"
_COUNT_PLAIN = "SELECT count(*) FROM plain_jobs WHERE status = 'succeeded'"


@dataclass(frozen=True)
class Limits:
    """Lives a second by pgbench."""

    single: float
    sets: dict[tuple[int, int], dict[int, float]]
    """By (created, claimed), then by connections."""
    plain: float

    def of_sets(self, claimed: int) -> float:
        """The best over the sets that are claimed so."""
        return max(self.sets[64, claimed].values())


async def database(postgres: EmbeddedPostgres, name: str) -> str:
    """An empty database of its own on this server, owned like the service's; its address."""
    admin = await asyncpg.connect(postgres.admin_dsn)
    await admin.execute(f"CREATE DATABASE {name} OWNER {NAME}")
    await admin.close()
    return postgres.dsn.rsplit("/", 1)[0] + f"/{name}"


async def rendered(
    connection: asyncpg.Connection, runners: int, created: int = 1, claimed: int = 1
) -> Script:
    """The script of lives of so many runners, a connection each."""
    them = [await Runner(f"z{number % ZONES}").register(connection) for number in range(runners)]
    who = [them[0], *them]
    return render([await record(connection, one, created, claimed) for one in who])


def plain_script() -> Script:
    """The four plain statements; their table is in bench/plain_tables.sql."""
    return Script((HERE / "plain.sql").read_text())


class Measured:
    """One database, and how scripts are measured on it."""

    def __init__(self, dsn: str, folder: Path, seconds: float) -> None:
        self.dsn, self.folder = dsn, folder
        self.seconds = max(1, round(seconds))

    async def lives(
        self, script: Script, connections: int, count: str, settings: dict[str, str]
    ) -> float:
        """Lives a second, after a while of the same."""
        await self._run(script, connections, max(1, self.seconds // 3), settings)
        connection = await asyncpg.connect(self.dsn)
        await connection.execute("VACUUM (ANALYZE)")
        before = await connection.fetchval(count)
        measured = await self._run(script, connections, self.seconds, settings)
        after = await connection.fetchval(count)
        await connection.close()
        return (after - before) / measured.seconds

    async def _run(
        self, script: Script, connections: int, seconds: int, settings: dict[str, str]
    ) -> Run:
        limit = ("-T", str(seconds))
        return await run(
            self.dsn, script, self.folder, *limit, connections=connections, settings=settings
        )


async def measure(postgres: EmbeddedPostgres, folder: Path, seconds: float) -> Limits:
    """All of it, in a database of its own."""
    dsn = await database(postgres, "limits")
    await asyncio.to_thread(migrate.upgrade, dsn)
    connection = await asyncpg.connect(dsn)
    await prepare(connection)
    await connection.execute((HERE / "plain_tables.sql").read_text())
    measured, hot = Measured(dsn, folder, seconds), hot_settings(dsn)
    script = await rendered(connection, CONNECTIONS)
    single = await measured.lives(script, CONNECTIONS, _COUNT_LIVES, hot)
    sets: dict[tuple[int, int], dict[int, float]] = {}
    for shape in SETS:
        await connection.execute("TRUNCATE execution_attempts CASCADE")
        sets[shape] = {}
        for connections in SET_CONNECTIONS:
            script = await rendered(connection, connections, *shape)
            sets[shape][connections] = await measured.lives(script, connections, _COUNT_LIVES, hot)
            await connection.execute("DELETE FROM execution_attempts WHERE status = 'queued'")
    rate = await measured.lives(plain_script(), CONNECTIONS, _COUNT_PLAIN, {})
    await connection.close()
    return Limits(single, sets, rate)


def show(limits: Limits) -> None:
    """The figures, line by line."""
    print(f"\n  {'pgbench, without the service':<52}{'lives a second':>16}", flush=True)
    print(f"  {'four plain statements, 16 connections':<52}{limits.plain:>16.0f}")
    print(f"  {'statements of the service, 16 connections':<52}{limits.single:>16.0f}")
    for (created, claimed), rates in limits.sets.items():
        each = " / ".join(f"{rate:.0f}" for rate in rates.values())
        name = f"the same, {created} created, {claimed} a claim, 2 / 4 connections"
        print(f"  {name:<52}{each:>16}")


async def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    seconds = parser.parse_args().seconds
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder) / "postgres")
        await postgres.start()
        try:
            show(await measure(postgres, Path(folder), seconds))
        finally:
            await postgres.stop()


if __name__ == "__main__":
    asyncio.run(main())
