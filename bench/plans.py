"""`make bench-plans`: how the hot statements are carried out in a database that has grown.

Lives by the service's own commands; each statement that they send is explained once, with its very
values, under the settings that the service pins, and rolled back, before it is really run. Writes
`docs/plans.md`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from app.store import ends, feed, holds, partitions
from app.store.database import Connection
from bench.commands import Commands
from bench.data import grown
from bench.parts import described_machine

T = TypeVar("T")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "plans.md"
PINNED = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) "
HEAD = """# How the hot statements are carried out

Written by `make bench-plans` from the statements themselves: one life in a database of {attempts:,}
finished attempts ({events:,} events, {partitions} monthly partitions of them), each statement
explained with its own values, those of commands under the settings that the service pins.
{machine}.

[`tests/plans/`](../tests/plans/) holds them at 50,000 rows: no plan may read an index from its
beginning, whatever the statistics were when it was made.

| statement | pages touched | of them read from outside the buffers | ms |
|---|---|---|---|
"""


class Explained:
    """A connection that explains each statement once before it runs it."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self.plans: dict[str, list[str]] = {}

    async def run(
        self,
        command: Callable[[Connection], Awaitable[T]],
        *,
        pinned: bool = False,  # noqa: ARG002
    ) -> T:
        """Carry a command out and commit it."""
        async with self._sql.transaction():
            return await command(self)  # type: ignore[arg-type]

    async def _explain(self, statement: str, values: tuple[object, ...]) -> None:
        name = statement.split()[1]
        if name in self.plans or not statement.lstrip().startswith("-- "):
            return
        if [] in values:  # a batch of nothing
            return
        savepoint = self._sql.transaction()
        await savepoint.start()
        rows = await self._sql.fetch(EXPLAIN + statement, *values)
        await savepoint.rollback()
        self.plans[name] = [row[0] for row in rows]

    async def fetch(self, statement: str, *values: object) -> list[asyncpg.Record]:
        """As the connection's."""
        await self._explain(statement, values)
        return await self._sql.fetch(statement, *values)

    async def fetchrow(self, statement: str, *values: object) -> asyncpg.Record | None:
        """As the connection's."""
        rows = await self.fetch(statement, *values)
        return rows[0] if rows else None

    async def fetchval(self, statement: str, *values: object) -> Any:
        """As the connection's."""
        row = await self.fetchrow(statement, *values)
        return None if row is None else row[0]

    async def execute(self, statement: str, *values: object) -> str:
        """As the connection's."""
        await self._explain(statement, values)
        return await self._sql.execute(statement, *values)


def pages_of(plan: list[str]) -> tuple[int, int]:
    """Pages that a plan touched, and those that were not in the buffers."""
    for line in plan:
        if "Buffers: shared" in line:
            counts = dict(part.split("=") for part in line.split() if "=" in part)
            return int(counts.get("hit", 0)) + int(counts.get("read", 0)), int(
                counts.get("read", 0)
            )
    return 0, 0


def page_of(head: str, plans: dict[str, list[str]]) -> str:
    """The whole page: a table, then each plan."""
    lines, parts = [], []
    for name, plan in plans.items():
        touched, outside = pages_of(plan)
        [took] = [line.split()[-2] for line in plan if line.startswith("Execution Time")]
        lines.append(f"| [`{name}`](#{name.replace('.', '')}) | {touched} | {outside} | {took} |\n")
        body = "\n".join(plan)
        parts.append(f"\n## {name}\n\n```\n{body}\n```\n")
    return head + "".join(lines) + "".join(parts)


async def _sweeps_and_feed(conn: Connection) -> None:
    """What the loops ask each second, and two pages of the feed."""
    await ends.list_due(conn, 200)
    await holds.list_waited_for(conn, "", 100)
    await holds.release_due(conn, timedelta(minutes=5), [], 100)
    await feed.read(conn, await feed.oldest(conn), 1000)


async def main() -> None:
    """Explain the statements of some lives and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    machine = described_machine()
    async with grown(given.attempts, events=1) as postgres:
        sql = await asyncpg.connect(postgres.dsn, command_timeout=600)
        async with sql.transaction():
            await partitions.ensure_near(sql)
        warm = Commands(Explained(sql))
        await (await warm.register()).live(4)
        await sql.execute(PINNED)
        explained = Explained(sql)
        commands = await Commands(explained).register()
        await commands.create(200)
        explained.plans.clear()
        for _ in range(2):
            await commands.live(1)
        await sql.execute("RESET plan_cache_mode; RESET enable_seqscan")
        await explained.run(_sweeps_and_feed)
        facts = await sql.fetchrow(
            "SELECT sum(greatest(reltuples, 0))::bigint AS events, count(*) AS partitions "
            "FROM pg_class WHERE oid IN (SELECT inhrelid FROM pg_inherits "
            "WHERE inhparent = 'attempt_events'::regclass)"
        )
        await sql.close()
    head = HEAD.format(attempts=given.attempts, machine=machine, **dict(facts))
    given.out.write_text(page_of(head, explained.plans))
    print(f"wrote {given.out}: {len(explained.plans)} statements")


if __name__ == "__main__":
    asyncio.run(main())
