"""`make bench-capacity`: what one command costs, and from it what a fleet would need.

Measured: each command of a life, one at a time over HTTP: CPU of service and PostgreSQL, WAL,
bytes on the wire, transactions; and what a life and a heartbeat leave in the database. Calculated
from that, line by line with its formula: instances, connections, transactions, network and storage
for 1,000, 10,000 and 100,000 runners. One at a time is the dear way: gathered commands cost less.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from bench.lifecycles import BEAT, CLAIM, COMPLETE, CREATE, START, Fleet, Runner
from bench.parts import Parts, described_machine
from bench.wire import Wire
from tests.driver import new_attempt

NAMES = (CREATE, CLAIM, START, BEAT, COMPLETE)
FLEETS = (1000, 10_000, 100_000)
LEASE_EVERY_SECONDS = 10
USABLE = 0.6
"""Of a core of an instance; the rest is for bursts and for what is not counted here."""
POOL = 8
OWN_CONNECTIONS = 1


@dataclass
class Cost:
    """Of one command: milliseconds of CPU, bytes, transactions."""

    service_ms: float
    database_ms: float
    wal: float
    wire: float
    transactions: float


@dataclass
class Counted(Wire):
    """A connection that counts its bytes, both ways."""

    sent_and_received: int = 0

    async def call(self, *given: Any, **more: Any) -> Any:
        """As before, counted: heads are estimated by the one that is sent."""
        answered = await super().call(*given, **more)
        body = given[3] if len(given) > 3 else None  # noqa: PLR2004 - name, method, path, body
        sent = 0 if body is None else len(str(body))
        self.sent_and_received += sent + len(self._head) + len(answered.body) + 300
        return answered


class Meter:
    """Reads what has been used so far."""

    def __init__(
        self, sql: asyncpg.Connection, service: int, server: int, wires: list[Counted]
    ) -> None:
        """Process ids of the service and of PostgreSQL's first process."""
        self._sql = sql
        self._service = psutil.Process(service)
        self._server = psutil.Process(server)
        self._wires = wires

    async def read(self) -> list[float]:
        """CPU of both in milliseconds, WAL bytes, bytes on the wire, transactions."""
        await asyncio.sleep(1.2)  # counters are told once a second
        processes = [self._server, *self._server.children(recursive=True)]
        server = sum(sum(one.cpu_times()[:2]) for one in processes)
        row = await self._sql.fetchrow(
            "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal, xact_commit "
            "FROM pg_stat_database WHERE datname = current_database()"
        )
        return [
            sum(self._service.cpu_times()[:2]) * 1000,
            server * 1000,
            float(row["wal"]),
            float(sum(wire.sent_and_received for wire in self._wires)),
            float(row["xact_commit"]),
        ]

    async def cost(self, many: int, work: Callable[[], Awaitable[None]]) -> Cost:
        """What one of `many` commands costs, above what an idle service uses meanwhile."""
        before = await self.read()
        await work()
        after = await self.read()
        return Cost(*((b - a) / many for a, b in zip(before, after, strict=True)))


class Lives:
    """So many lives side by side, carried on command by command, one at a time."""

    def __init__(self, runner: Runner, control: Wire, many: int, beats: int) -> None:
        """Nothing has been created."""
        self._runner, self._control = runner, control
        self._many, self._beats = many, beats
        self._claimed: list[dict[str, Any]] = []

    async def create(self) -> None:
        """All of them."""
        for _ in range(self._many):
            body = new_attempt(placement={"zone": self._runner.zone})
            await self._control.call(CREATE, "POST", "/v1/attempts", body)

    async def claim(self) -> None:
        """Each by a claim of its own; what was claimed before is left to itself."""
        self._claimed = []
        for _ in range(self._many):
            self._claimed += await self._runner.claim()

    async def start(self) -> None:
        """What was claimed."""
        for one in self._claimed:
            await self._runner.under(START, one, {})

    async def beat(self) -> None:
        """Heartbeats for each."""
        for number in range(1, self._beats + 1):
            for one in self._claimed:
                await self._runner.under(BEAT, one, self._runner.beat(sequence=number))

    async def complete(self) -> None:
        """All of them."""
        for one in self._claimed:
            await self._runner.under(COMPLETE, one, {"outcome": "succeeded"})


async def measured(parts: Parts, many: int, beats: int) -> tuple[dict[str, Cost], float, float]:
    """The cost of each command, and bytes that a life and a heartbeat leave."""
    service = await parts.serve()
    tokens = Fleet(parts, service.url).tokens
    wires = [
        await Counted(service.url, tokens[role], defaultdict(list)).open()
        for role in ("runner", "control-plane")
    ]
    lives = Lives(await Runner(wires[0], "z1").register(), wires[1], many, beats)
    sql = await asyncpg.connect(parts.postgres.dsn)
    assert parts.postgres.pid is not None
    meter = Meter(sql, service.pid, parts.postgres.pid, wires)
    await lives.create()  # the first ones warm it
    await lives.claim()
    size = await _sizes(sql)
    costs = {
        CREATE: await meter.cost(many, lives.create),
        CLAIM: await meter.cost(many, lives.claim),
        START: await meter.cost(many, lives.start),
        BEAT: await meter.cost(many * beats, lives.beat),
        COMPLETE: await meter.cost(many, lives.complete),
    }
    grown = await _sizes(sql)
    await sql.close()
    return costs, (grown[0] - size[0]) / many, (grown[1] - size[1]) / many / beats


async def _sizes(sql: asyncpg.Connection) -> tuple[int, int]:
    """Bytes of all tables but the heartbeats' with their indexes, and of those."""
    row = await sql.fetchrow(
        "SELECT sum(pg_total_relation_size(oid)) FILTER (WHERE NOT beats)::bigint, "
        "sum(pg_total_relation_size(oid)) FILTER (WHERE beats)::bigint FROM ("
        "SELECT oid, relname LIKE 'attempt_heartbeats%' AS beats FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace) t"
    )
    return row[0], row[1]


def fleet_line(  # the formulas of the model, one a value
    runners: int,
    given: argparse.Namespace,
    costs: dict[str, Cost],
    life_bytes: float,
    beat_bytes: float,
) -> list[str]:
    """One column of the model."""
    lives = runners * given.busy / given.seconds
    beats = runners * given.busy / LEASE_EVERY_SECONDS
    rates = {name: beats if name == BEAT else lives for name in NAMES}

    def total(what: str) -> float:
        return sum(rates[name] * getattr(costs[name], what) for name in NAMES)

    instances = max(2, math.ceil(total("service_ms") / 1000 / USABLE))
    day = 86_400
    kept = given.heartbeat_days * beats * beat_bytes * day + given.days * lives * life_bytes * day
    return [
        f"{lives:,.1f}",
        f"{beats:,.0f}",
        f"{total('service_ms') / 1000:.1f}",
        f"{instances:,}",
        f"{instances * (POOL + OWN_CONNECTIONS):,}",
        f"{total('transactions'):,.0f}",
        f"{total('database_ms') / 1000:.1f}",
        f"{total('wire') * 8 / 1e6:,.1f}",
        f"{total('wal') / 1e6:,.1f}",
        f"{lives * life_bytes * day / 1e9:,.1f}",
        f"{beats * beat_bytes * day / 1e9:,.1f}",
        f"{kept / 1e9:,.0f}",
    ]


ROWS = (
    "attempts a second = runners · busy / seconds",
    f"heartbeats a second = runners · busy / {LEASE_EVERY_SECONDS}",
    "cores of the service = Σ rate · CPU",
    f"instances = cores / {USABLE}, at least 2",
    f"connections = instances · ({POOL} + {OWN_CONNECTIONS})",
    "transactions a second = Σ rate · transactions",
    "cores of PostgreSQL = Σ rate · CPU",
    "network, Mbit/s = Σ rate · bytes",
    "WAL, MB/s = Σ rate · WAL",
    "attempts, GB a day = attempts · bytes of a life",
    "heartbeats, GB a day = heartbeats · bytes of one",
    "kept, GB = days · attempts + heartbeat days · heartbeats",
)


async def main() -> None:
    """Measure, then calculate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=300)
    parser.add_argument("--beats", type=int, default=6, help="of each life that is measured")
    parser.add_argument("--busy", type=float, default=1.0, help="leases a runner, on average")
    parser.add_argument("--seconds", type=float, default=300, help="from claim to completion")
    parser.add_argument("--days", type=float, default=365, help="that attempts are kept")
    parser.add_argument("--heartbeat-days", type=float, default=7)
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            costs, life_bytes, beat_bytes = await measured(parts, given.lives, given.beats)
    print("\n| one command | CPU, service | CPU, PostgreSQL | WAL | wire | transactions |")
    print("|---|---|---|---|---|---|")
    for name, cost in costs.items():
        print(
            f"| {name} | {cost.service_ms:.1f} ms | {cost.database_ms:.1f} ms | "
            f"{cost.wal / 1000:.1f} kB | {cost.wire / 1000:.1f} kB | {cost.transactions:.1f} |"
        )
    print(f"\nA life leaves {life_bytes:,.0f} bytes, a heartbeat {beat_bytes:,.0f}.\n")
    columns = [fleet_line(many, given, costs, life_bytes, beat_bytes) for many in FLEETS]
    print("| | " + " | ".join(f"{many:,} runners" for many in FLEETS) + " |")
    print("|---|" + "---|" * len(FLEETS))
    for row, *values in zip(ROWS, *columns, strict=True):
        print(f"| {row} | " + " | ".join(values) + " |")


if __name__ == "__main__":
    asyncio.run(main())
