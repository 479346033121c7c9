"""`make bench-lifecycles`: whole lives over HTTP, beside all that bounds them, in one run.

One service process, PostgreSQL, the S3 server and the load generator share this machine. A life is
create, claim, start, one heartbeat and complete. In one run:

- what the generator reaches against a bare ASGI application and a bare FastAPI echo of the same
  creation, and creations alone, over 16, 64 and 128 connections;
- a lone creation, one at a time: over HTTP, through the gatherer, and by its statements alone;
- lives at 1, 4, 16 and 64 runners by single calls, and by batch routes (64 creations, 16 leases a
  claim, and the starts, heartbeats and completions of a claim in a request each);
- each route's milliseconds at 16 runners;
- the same statements by pgbench, and four plain ones (bench/limits.py), on the same server;
- procrastinate and PgQueuer on the same server, where they are installed (bench/rivals.py);
- at the end the ratios that are to be reached, beside their aims.

Authentication is on, TLS off, one process, fsync and synchronous_commit on, access log off.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path

import psutil
import uvloop

from bench import aims, limits, lone, rivals
from bench.aims import Aim, share
from bench.ceiling import Calls, bare, creations
from bench.fleet import BEAT, CLAIM, CLAIMED, COMPLETE, CREATE, START, Fleet, Life, Lives, lives
from bench.fleet import live_in_batches as in_batches
from bench.fleet import live_singly as singly
from bench.limits import Limits
from bench.parts import Parts, described_machine
from bench.rivals import PGQUEUER, PGQUEUER_BATCHES, PROCRASTINATE, Rates, Rival
from bench.wire import Times, spread

SINGLY = (1, 4, 16, 64)
IN_BATCHES = (4, 16)
CONNECTIONS = (16, 64, 128)
ECHO, CREATION = "bare FastAPI echo of a creation", "creation"
ROUTES = (CREATE, CLAIM, START, BEAT, COMPLETE)


async def one_route(
    fleet: Fleet, seconds: float, process: psutil.Process, connections: int
) -> dict[str, Calls]:
    """Creations against servers that do less and less."""
    found = {
        "bare ASGI (the generator's ceiling)": await bare("asgi", seconds / 2, connections),
        ECHO: await bare("echo", seconds / 2, connections),
    }
    wires = [await fleet.wire("control-plane", defaultdict(list)) for _ in range(connections)]
    await creations(wires, 2, process)
    found[CREATION] = await creations(wires, seconds, process)
    for wire in wires:
        await wire.close()
    print(f"\n  {f'one route, {connections} connections':<52}{'a second':>10}{'CPU ms a call':>15}")
    for name, measured in found.items():
        print(f"  {name:<52}{measured.a_second:>10.0f}{measured.cpu_ms:>15.2f}", flush=True)
    return found


async def whole_lives(
    fleet: Fleet, seconds: float, process: psutil.Process
) -> tuple[dict[int, Lives], dict[int, Lives]]:
    """Lives by single calls and by batch routes, by the number of runners."""
    print(f"\n  {'lives over HTTP':<52}{'a second':>10}{'CPU ms a life':>15}", flush=True)

    async def measured(name: str, runners: int, life: Life) -> Lives:
        done = await lives(fleet, runners, seconds, life, process)
        print(f"  {f'{name}, {runners} runners':<52}{done.a_second:>10.0f}{done.cpu_ms:>15.2f}")
        return done

    single = {runners: await measured("single calls", runners, singly) for runners in SINGLY}
    batches = {
        runners: await measured("batch routes", runners, in_batches) for runners in IN_BATCHES
    }
    return single, batches


def show_routes(times: Times) -> None:
    """Each route's milliseconds."""
    print(f"\n  {'each route at 16 runners, ms':<52}{'p50':>8}{'p95':>8}{'p99':>8}")
    for name in ROUTES:
        print(f"  {name:<52}{spread(times[name])}")


def to_reach(
    routes: dict[int, dict[str, Calls]],
    alone: lone.Lone,
    single: dict[int, Lives],
    batches: float,
    found: Limits,
    others: dict[Rival, Rates],
) -> list[Aim]:
    """The ratios of one run, each against the most that the other side reached."""
    best = {rival: max(rates.values()) for rival, rates in others.items()}
    return [
        *(aim for connections in CONNECTIONS for aim in against_echo(connections, routes)),
        Aim(
            "p50 of a lone creation gathered / its statements",
            alone.gathered / alone.direct,
            1.1,
            at_least=False,
        ),
        Aim("batch routes / pgbench over the same sets", batches / found.of_sets(CLAIMED), 0.5),
        Aim("batch routes / PgQueuer", share(batches, best.get(PGQUEUER)), 2),
        Aim(
            "batch routes / PgQueuer batching everything",
            share(batches, best.get(PGQUEUER_BATCHES)),
            0.6,
        ),
        Aim("batch routes / procrastinate", share(batches, best.get(PROCRASTINATE)), 6),
        *against_pgbench("single calls, 16 runners", single[16].a_second, found),
        *against_pgbench("single calls, most", max(one.a_second for one in single.values()), found),
    ]


def against_echo(connections: int, routes: dict[int, dict[str, Calls]]) -> list[Aim]:
    """Creations against a FastAPI that does nothing with them."""
    echo, create = routes[connections][ECHO], routes[connections][CREATION]
    name = f"creations, {connections} connections"
    return [
        Aim(f"{name} / FastAPI echo", create.a_second / echo.a_second, 0.5),
        Aim(f"{name}: service CPU / echo's", create.cpu_ms / echo.cpu_ms, 1.6, at_least=False),
    ]


def against_pgbench(name: str, rate: float, found: Limits) -> list[Aim]:
    """Lives by single calls against what 16 connections of pgbench make of it."""
    return [
        Aim(f"{name} / pgbench, the same statements", rate / found.single, 0.4),
        Aim(f"{name} / pgbench, four plain statements", rate / found.plain, 0.25),
    ]


async def main() -> None:
    """All of it, in one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8)
    seconds = parser.parse_args().seconds
    print(described_machine(), flush=True)
    print("authentication on, TLS off, one process, fsync and synchronous_commit on", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            service = await parts.serve()
            process = psutil.Process(service.pid)
            fleet = Fleet(parts, service.url)
            routes = {one: await one_route(fleet, seconds, process, one) for one in CONNECTIONS}
            alone = await lone.measure(fleet, parts.postgres.dsn, seconds)
            lone.show(alone)
            single, batches = await whole_lives(fleet, seconds, process)
            show_routes(single[16].times)
            memory = process.memory_info().rss / 2**20
            print(f"\n  memory of the service afterwards: {memory:.0f} MiB", flush=True)
            await parts.services.pop().stop()
            found = await limits.measure(parts.postgres, Path(folder), seconds)
            limits.show(found)
            others = await rivals.measure(parts.postgres, seconds)
            rivals.show(others)
    aims.tell(
        to_reach(
            routes,
            alone,
            single,
            max(one.a_second for one in batches.values()),
            found,
            others,
        )
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
