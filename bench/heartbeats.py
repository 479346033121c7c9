"""`make bench-heartbeats`: the fan-in of 10,000 leases, each of which beats every ten seconds.

One service process, PostgreSQL, the S3 server and the load generator share this machine. 100
runners hold 100 started jobs each. For at most a minute their beats go out by the batch route, one
request a runner every ten seconds; then for `--seconds` one call each, evenly spread, over 64
connections. Printed for either: how many beats came through, their milliseconds (from when a beat
was due to its answer, so that a service which cannot follow is seen), the share of one core that
the service and PostgreSQL used, statements and transactions a second as the server counted them,
and the service's memory at the beginning, every minute and at the end. `--seconds 600` is the full
size. A way ends with the first beat that is refused: leases have expired then, and the machine was
too slow for it.

Authentication is on, TLS off, one process, fsync and synchronous_commit on, access log off.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import uvloop

from app.embedded.postgres import NAME
from bench import aims
from bench.aims import Aim
from bench.fleet import START, Fleet, Runner, cpu_seconds
from bench.parts import Parts, described_machine
from bench.wire import Wire, spread
from tests.driver import new_attempt

RUNNERS = 100
MOST = 60.0
"""Seconds of the batch route."""
EVERY_SECONDS = 10.0
CONNECTIONS = 64
LONGEST_SECONDS = 7200
MEGABYTE = 10**6

# BEGIN, SET LOCAL and COMMIT are counted by the server like any other, so these are left out.
_CALLS = """SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
    WHERE dbid = $1::oid AND query !~* '^\\s*(BEGIN|SET|COMMIT|ROLLBACK)'"""
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1"
_UPDATES = """SELECT sum(n_tup_upd)::bigint AS all, sum(n_tup_hot_upd)::bigint AS hot
    FROM pg_stat_user_tables WHERE relname = 'runner_leases'"""


@dataclass
class Held:
    """A started job of a runner, and how often it has beaten."""

    runner: Runner
    lease_id: str
    token: str
    sequence: int = 0

    def beat(self, **more: Any) -> dict[str, Any]:
        """The body of its next heartbeat."""
        self.sequence += 1
        session = self.runner.session_id
        return {"session_id": session, "sequence": self.sequence, "progress_percent": 50, **more}

    def named(self) -> dict[str, Any]:
        """The same as an item of a batch."""
        return self.beat(lease_id=self.lease_id, lease_token=self.token)


@dataclass
class Beats:
    """What came of the beats of a phase."""

    milliseconds: list[float] = field(default_factory=list)
    accepted: int = 0
    refused: list[str] = field(default_factory=list)

    async def note(self, due: float, count: int, call: Awaitable[Any]) -> None:
        """One request of so many beats, which were due at this moment."""
        try:
            await call
        except AssertionError as error:
            self.refused.append(str(error))
            return
        self.accepted += count
        self.milliseconds.append((time.perf_counter() - due) * 1000)


@dataclass(frozen=True)
class Job:
    """One request that comes due once a period: of one lease, or of all leases of a runner."""

    leases: tuple[Held, ...]

    def send(self, wire: Wire, due: float, beats: Beats) -> Awaitable[None]:
        """Send it now."""
        return beats.note(due, len(self.leases), self._call(wire))

    async def _call(self, wire: Wire) -> None:
        if len(self.leases) > 1:
            body = {"heartbeats": [held.named() for held in self.leases]}
            answer = await wire.call("beat", "POST", "/v1/leases:heartbeat", body)
            bad = [one for one in answer.json()["items"] if one["status"] != 200]  # noqa: PLR2004
            assert not bad, bad[0]
        else:
            [held] = self.leases
            path = f"/v1/leases/{held.lease_id}:heartbeat"
            await wire.call("beat", "POST", path, held.beat(), held.token)


async def drive(jobs: Sequence[Job], wires: Sequence[Wire], seconds: float) -> Beats:
    """Send each job once a period, evenly spread, over these connections."""
    beats = Beats()
    began = time.perf_counter()
    numbers = iter(range(round(len(jobs) * seconds / EVERY_SECONDS)))

    async def lane(wire: Wire) -> None:
        for number in numbers:
            if beats.refused:
                return
            due = began + number * EVERY_SECONDS / len(jobs)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await jobs[number % len(jobs)].send(wire, due, beats)

    await asyncio.gather(*(lane(wire) for wire in wires))
    return beats


# --- before ---------------------------------------------------------------------------------------


async def started_jobs(fleet: Fleet, leases: int) -> list[Held]:
    """So many leases of started jobs, over all runners; those that are ready beat meanwhile."""
    times: dict[str, list[float]] = defaultdict(list)
    control = await fleet.wire("control-plane", times)
    beating = [await fleet.wire("runner", times) for _ in range(4)]
    each = leases // RUNNERS
    ready: list[Held] = []
    async with kept_alive(ready, beating):
        for number in range(RUNNERS):
            runner = await fleet.runner(times, f"z{number}")
            placed = {"zone": runner.zone}
            bodies = [
                new_attempt(placement=placed, timeout_seconds=LONGEST_SECONDS) for _ in range(each)
            ]
            await control.call("create", "POST", "/v1/attempts:batch", {"attempts": bodies})
            claimed = await runner.claim(each)
            await runner.under_all(START, "starts", claimed)
            ready += [Held(runner, one["lease"]["id"], one["lease_token"]) for one in claimed]
            await runner.close()
    assert len(ready) == each * RUNNERS
    return ready


@asynccontextmanager
async def kept_alive(ready: list[Held], wires: Sequence[Wire]) -> AsyncIterator[None]:
    """Beats by the batch route for whatever is ready, while others are still being started."""

    async def beat() -> None:
        while True:
            for wire, first in zip(wires * len(ready), range(0, len(ready), 500), strict=False):
                body = {"heartbeats": [held.named() for held in ready[first : first + 500]]}
                await wire.call("beat", "POST", "/v1/leases:heartbeat", body)
            await asyncio.sleep(EVERY_SECONDS / 2)

    task = asyncio.create_task(beat())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    for wire in wires:
        await wire.close()


# --- measured -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a phase used, a second."""

    beats: Beats
    a_second: float
    service: float
    """Share of one core."""
    postgres: float
    statements: float
    """That read or write: without BEGIN, SET and COMMIT."""
    commits: float
    hot: float
    """Share of the leases' updates that stayed in their page."""
    memory: list[float]
    """Megabytes of the service: at the beginning, each minute, at the end."""


class Watch:
    """What the service and its database have used so far."""

    def __init__(self, process: psutil.Process, server: psutil.Process, sql: Any) -> None:
        self.process, self._server, self._sql = process, server, sql

    async def read(self) -> tuple[float, ...]:
        """Seconds of CPU of both; statements, commits, updates and HOT updates of leases."""
        database = await self._sql.fetchval("SELECT oid FROM pg_database WHERE datname = $1", NAME)
        updates = await self._sql.fetchrow(_UPDATES)
        return (
            cpu_seconds(self.process),
            self._server_seconds(),
            await self._sql.fetchval(_CALLS, database),
            await self._sql.fetchval(_COMMITS, NAME),
            updates["all"],
            updates["hot"],
        )

    def _server_seconds(self) -> float:
        """Of all its processes, also of those that have ended."""
        total = 0.0
        for process in (self._server, *self._server.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # with its children that have ended
        return total

    def megabytes(self) -> float:
        """Memory of the service."""
        return float(self.process.memory_info().rss) / MEGABYTE

    async def memory(self, found: list[float]) -> None:
        """Note it every minute, for ever."""
        while True:
            await asyncio.sleep(60)
            found.append(self.megabytes())


async def phase(watch: Watch, driven: Callable[[], Awaitable[Beats]]) -> Cost:
    """Drive, and read before and after."""
    memory = [watch.megabytes()]
    noting = asyncio.create_task(watch.memory(memory))
    before, began = await watch.read(), time.perf_counter()
    beats = await driven()
    took = time.perf_counter() - began
    after = await watch.read()
    noting.cancel()
    memory.append(watch.megabytes())
    used = [(one - other) / took for one, other in zip(after, before, strict=True)]
    service, postgres, statements, commits, updates, hot = used
    return Cost(
        *(beats, beats.accepted / took, service, postgres, statements, commits),
        hot=hot / updates if updates else 1.0,
        memory=memory,
    )


def show(name: str, cost: Cost) -> None:
    """The figures of a phase, line by line."""
    beats = cost.beats
    print(f"\n  {name}", flush=True)
    print(f"    beats accepted a second {cost.a_second:.0f}, refused {len(beats.refused)} requests")
    for refused in beats.refused[:1]:
        print(f"    ended by it: {refused[:200]}")
    print(f"    ms from due to answered, p50 p95 p99 {spread(beats.milliseconds)}")
    print(f"    of one core: service {cost.service:.0%}, PostgreSQL {cost.postgres:.0%}")
    print(
        f"    statements a second {cost.statements:.0f}, commits {cost.commits:.0f}, "
        f"statements a beat {cost.statements / max(cost.a_second, 1):.2f}; "
        f"HOT updates of leases {cost.hot:.1%}"
    )
    told = ", ".join(f"{value:.0f}" for value in cost.memory)
    print(f"    service memory at the beginning, each minute, at the end, MB: {told}", flush=True)


async def main() -> None:
    """Both phases on one service, then what is to be reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of the single calls")
    parser.add_argument("--leases", type=int, default=10_000, help="a multiple of 100")
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder), shared_preload_libraries="pg_stat_statements") as parts:
            service = await parts.serve()
            admin = await asyncpg.connect(parts.postgres.admin_dsn.rsplit("/", 1)[0] + f"/{NAME}")
            await admin.execute("CREATE EXTENSION pg_stat_statements")
            fleet = Fleet(parts, service.url)
            began = time.perf_counter()
            held = await started_jobs(fleet, given.leases)
            took = time.perf_counter() - began
            print(f"{len(held):,} jobs started in {took:.0f} s; each beats every 10 s", flush=True)
            wires = [await fleet.wire("runner", defaultdict(list)) for _ in range(CONNECTIONS)]
            watch = Watch(psutil.Process(service.pid), psutil.Process(parts.postgres.pid), admin)
            together = [Job(tuple(some)) for some in _by_runner(held)]
            batch = await phase(
                watch, lambda: drive(together, wires[:16], min(given.seconds, MOST))
            )
            show(f"batch route, {len(held) // RUNNERS} leases a request", batch)
            singly = [Job((one,)) for one in _spread_out(held)]
            single = await phase(watch, lambda: drive(singly, wires, given.seconds))
            show("single calls", single)
            await admin.close()
    aims.tell(to_reach(single, batch, given.leases))


def _by_runner(held: Sequence[Held]) -> list[Sequence[Held]]:
    each = len(held) // RUNNERS
    return [held[first : first + each] for first in range(0, len(held), each)]


def _spread_out(held: Sequence[Held]) -> list[Held]:
    """In an order in which neighbours are of different runners."""
    return [one for some in zip(*_by_runner(held), strict=True) for one in some]


def to_reach(single: Cost, batch: Cost, leases: int) -> list[Aim]:
    """What the service may use at this size."""
    wanted = leases / EVERY_SECONDS
    settled = single.memory[1:-1] or single.memory[:1]
    return [
        Aim("beats accepted / due, single calls", single.a_second / wanted, 0.99),
        Aim("beats accepted / due, batch route", batch.a_second / wanted, 0.99),
        Aim("share of one core, single calls", _kept(single, single.service), 0.6, at_least=False),
        Aim("share of one core, batch route", _kept(batch, batch.service), 0.6, at_least=False),
        Aim("most memory, MB", max(single.memory + batch.memory), 250, at_least=False),
        Aim(
            "memory at the end / after the first minute, single calls",
            single.memory[-1] / settled[0],
            1.05,
            at_least=False,
        ),
    ]


def _kept(cost: Cost, value: float) -> float | None:
    """The value, where all beats came through; what a broken phase used says nothing."""
    return None if cost.beats.refused else value


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
