"""`make bench-routes`: each hot route alone, 16 connections that have nothing else to do.

One service process, PostgreSQL, the S3 server and the load generator share this machine. One route
after the other is called for `--seconds`, each time with something new to do: what was created is
claimed, what was claimed is started, beats and is completed. Printed for each: requests a second,
milliseconds (p50, p95, p99) and the service's CPU. Logs in bulk are `make bench-logs`, from commit
to a waiting runner is `make bench-claim`.

Authentication is on, TLS off, one process, fsync and synchronous_commit on, access log off.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import datetime as dt
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import psutil
import uvloop

from app.embedded.environment import SUBSCRIPTION
from bench.fleet import Fleet, Runner, cpu_seconds
from bench.heartbeats import Held
from bench.parts import Parts, described_machine
from bench.wire import Times, Wire, spread
from tests.driver import new_attempt

CONNECTIONS = 16
ZONE = "z0"
CHUNK = b"TASK [web : install packages] *** ok: [host-17] => changed=false\n" * 64
# Leases that nobody beats while other routes have their turn.
PATIENT = {
    "LEASES__LEASE_SECONDS": 3600,
    "LEASES__HEARTBEAT_EVERY_SECONDS": 10,
    "LEASES__CLAIM_GRACE_SECONDS": 3600,
    "LEASES__START_TIMEOUT_SECONDS": 3600,
}

Send = Callable[[Wire], Awaitable[Any]]


@dataclass
class Routes:
    """One service, and how a route of it is measured."""

    fleet: Fleet
    process: psutil.Process
    seconds: float

    async def measure(self, name: str, role: str, sends: Iterator[Send], **wire: Any) -> None:
        """Call it for so long, or until there is nothing left to do; print what came of it."""
        times: Times = defaultdict(list)
        wires = [await self.fleet.wire(role, times, **wire) for _ in range(CONNECTIONS)]
        before, began = cpu_seconds(self.process), time.perf_counter()

        async def lane(wire: Wire) -> None:
            for send in sends:
                await send(wire)
                if time.perf_counter() > began + self.seconds:
                    return

        await asyncio.gather(*(lane(wire) for wire in wires))
        took = time.perf_counter() - began
        cpu = cpu_seconds(self.process) - before
        for one in wires:
            await one.close()
        [found] = times.values()
        rate, each = len(found) / took, cpu * 1000 / len(found)
        print(f"  {name:<44}{rate:>9.0f}{spread(found)}{each:>9.2f}", flush=True)


# --- what is sent ---------------------------------------------------------------------------------


def forever(send: Send) -> Iterator[Send]:
    """The same again and again."""
    return cycle([send])


async def create(wire: Wire) -> None:
    """One attempt."""
    body = new_attempt(placement={"zone": ZONE})
    await wire.call("route", "POST", "/v1/attempts", body)


async def create_many(wire: Wire) -> None:
    """64 attempts that nobody here claims."""
    attempts = [new_attempt(placement={"zone": "elsewhere"}) for _ in range(64)]
    await wire.call("route", "POST", "/v1/attempts:batch", {"attempts": attempts})


def claims(runners: Sequence[Runner], held: list[Held]) -> Iterator[Send]:
    """Claims of one lease, in turns of the runners."""

    def by(runner: Runner) -> Send:
        async def claim(wire: Wire) -> None:
            body = {"session_id": runner.session_id, "request_id": uuid4()}
            path = f"/v1/runners/{runner.id}/leases:claim"
            answer = await wire.call("route", "POST", path, body)
            leases = answer.json()["leases"]
            held.extend(Held(runner, one["lease"]["id"], one["lease_token"]) for one in leases)

        return claim

    return cycle([by(runner) for runner in runners])


def under(verb: str, held: Sequence[Held], body: Callable[[Held], Any]) -> Iterator[Send]:
    """One call under each of these leases."""

    def on(one: Held) -> Send:
        path = f"/v1/leases/{one.lease_id}:{verb}"
        return lambda wire: wire.call("route", "POST", path, body(one), one.token)

    return (on(one) for one in held)


def beats_together(held: Sequence[Held]) -> Iterator[Send]:
    """Sixteen beats in one request; no lease is in two of them at once."""

    def of(some: Sequence[Held]) -> Send:
        return lambda wire: wire.call(
            "route", "POST", "/v1/leases:heartbeat", {"heartbeats": [one.named() for one in some]}
        )

    return cycle([of(held[first : first + 16]) for first in range(0, len(held) - 15, 16)])


async def read_page(wire: Wire) -> None:
    """The newest attempts."""
    await wire.call("route", "GET", "/v1/attempts?page_size=20")


def log_chunks(held: Sequence[Held]) -> Iterator[Send]:
    """The first piece of the log of each lease."""

    def first_of(one: Held) -> Send:
        return lambda wire: wire.call(
            "route", "POST", f"/v1/leases/{one.lease_id}/logs/stdout?offset=0", CHUNK, one.token
        )

    return (first_of(one) for one in held)


def pushed(to: str, data: Callable[[], dict[str, Any]]) -> Send:
    """The command in a message of Pub/Sub."""

    async def push(wire: Wire) -> None:
        envelope = {"v": 1, "to": to, "id": uuid4(), "data": data()}
        message = {
            "data": base64.b64encode(orjson.dumps(envelope)).decode(),
            "messageId": uuid4().hex,
            "publishTime": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        }
        body = {"message": message, "subscription": SUBSCRIPTION}
        await wire.call("route", "POST", "/push/pubsub", body)

    return push


# --- one after the other --------------------------------------------------------------------------


async def measure_all(routes: Routes) -> None:
    """Every route, in an order in which each leaves the next what it needs."""
    times: Times = defaultdict(list)
    runners = [await routes.fleet.runner(times, ZONE) for _ in range(CONNECTIONS)]
    held: list[Held] = []
    control, runner = "control-plane", "runner"
    await routes.measure("create", control, forever(create))
    await routes.measure("create, 64 in a batch", control, forever(create_many))
    await routes.measure("claim, one lease", runner, claims(runners, held))
    await routes.measure("start", runner, under("start", held, lambda _: {}))
    await routes.measure("heartbeat", runner, cycle(list(under("heartbeat", held, Held.beat))))
    await routes.measure("heartbeat, 16 in a batch", runner, beats_together(held))
    raw = {"content_type": "application/octet-stream"}
    await routes.measure("log, a first 4 KiB", runner, log_chunks(held), **raw)
    await routes.measure("push of a creation", "pubsub", forever(pushed("attempt.create", _body)))
    turns = cycle(held)
    beat = pushed("lease.heartbeat", lambda: next(turns).named())
    await routes.measure("push of a heartbeat", "pubsub", forever(beat))
    done = {"outcome": "succeeded"}
    await routes.measure("complete", runner, under("complete", held, lambda _: done))
    await routes.measure("list, 20 attempts", control, forever(read_page))
    idle = [await routes.fleet.runner(times, "nobody-asks-for") for _ in range(CONNECTIONS)]
    await routes.measure("claim, nothing there", runner, claims(idle, []))
    for one in (*runners, *idle):
        await one.close()


def _body() -> dict[str, Any]:
    return new_attempt(placement={"zone": "elsewhere"})


async def main() -> None:
    """One service, all its routes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="of each route")
    seconds = parser.parse_args().seconds
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            service = await parts.serve(**PATIENT)
            routes = Routes(Fleet(parts, service.url), psutil.Process(service.pid), seconds)
            columns = f"{'a second':>9}{'p50 ms':>8}{'p95':>8}{'p99':>8}{'CPU ms':>9}"
            print(f"\n  {'each route alone, 16 connections':<44}{columns}", flush=True)
            await measure_all(routes)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
