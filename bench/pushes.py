"""`make bench-pushes`: pushes a second of each kind, at 64 senders and at one.

One service process, PostgreSQL and the senders share this machine; tokens are verified, fsync and
synchronous_commit are on. Every message is different. `ledger.add` is a handler with a transaction
of its own, `ledger.note` one that takes many messages in one; both leave a row that says that their
message is done. What else runs is idempotent by its own key. Writes a push: transactions that wrote
something, by the server's own count.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import orjson
import psutil
import uvloop

from app.embedded.environment import ACCOUNTS, AUDIENCE, PUSH_HANDLERS, SUBSCRIPTION
from bench.lifecycles import Fleet, Runner
from bench.parts import Parts, described_machine
from bench.wire import Wire, percentile
from tests.driver import new_attempt
from tests.kill.world import ROOT, ServiceProcess
from tests.push.service import LEDGER, registry_of_tests

SENDERS = 64
RUNNERS = 64
LEASES = 512
LINE = b"a line of a log\n"

Data = Callable[[], dict[str, Any]]


class Service(ServiceProcess):
    """The service with the handlers of the tests."""

    def spawn(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.push.service"],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )


def delivery(to: str, data: dict[str, Any]) -> dict[str, Any]:
    """The body of a push of one new message."""
    envelope = {"v": 1, "to": to, "id": str(uuid4()), "data": data}
    text = base64.b64encode(orjson.dumps(envelope)).decode()
    return {"message": {"data": text, "messageId": uuid4().hex}, "subscription": SUBSCRIPTION}


async def leases(fleet: Fleet) -> list[tuple[Runner, dict[str, Any]]]:
    """Started leases; neighbours are of different runners."""
    times: Any = defaultdict(list)
    control = await fleet.wire("control-plane", times)
    held = []
    for number in range(RUNNERS):
        runner = await fleet.runner(times, f"z{number}")
        attempts = [
            new_attempt(placement={"zone": runner.zone}, timeout_seconds=86_400)
            for _ in range(LEASES // RUNNERS)
        ]
        await control.call("create", "POST", "/v1/attempts:batch", {"attempts": attempts})
        while len(held) < LEASES // RUNNERS * (number + 1):
            for claimed in await runner.claim(64):
                await runner.under("start", claimed, {})
                held.append((runner, claimed))
    each = LEASES // RUNNERS
    return [held[place] for first in range(each) for place in range(first, LEASES, each)]


def kinds(held: list[tuple[Runner, dict[str, Any]]]) -> dict[str, Data]:
    """What each kind of message says; every call gives another message."""
    numbers = itertools.count(1)
    places: Iterator[tuple[Runner, dict[str, Any]]] = itertools.cycle(held)
    offsets: dict[str, int] = defaultdict(int)

    def proof(claimed: dict[str, Any]) -> dict[str, Any]:
        return {"lease_id": claimed["lease"]["id"], "lease_token": claimed["lease_token"]}

    def beat() -> dict[str, Any]:
        runner, claimed = next(places)
        return {**proof(claimed), "session_id": runner.session_id, "sequence": next(numbers)}

    def report() -> dict[str, Any]:
        runner, _ = next(places)
        return {
            "runner_id": runner.id,
            "session_id": runner.session_id,
            "sequence": next(numbers),
            "status": "ready",
            "capacity_total": 1000,
        }

    def line() -> dict[str, Any]:
        _, claimed = next(places)
        offset = offsets[claimed["lease_token"]]
        offsets[claimed["lease_token"]] += len(LINE)
        data = base64.b64encode(LINE).decode()
        return {**proof(claimed), "stream": "stdout", "offset": offset, "data_base64": data}

    return {
        "lease.heartbeat": beat,
        "attempt.create": new_attempt,
        "runner.report_status": report,
        "log.append": line,
        "ledger.add": lambda: {"number": next(numbers)},
        "ledger.note": lambda: {"number": next(numbers)},
    }


async def push(wires: list[Wire], to: str, data: Data, end: float) -> int:
    """Push until that moment; how many were acknowledged."""
    count = 0

    async def one(wire: Wire) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await wire.call(to, "POST", "/push/pubsub", delivery(to, data()))
            count += 1

    await asyncio.gather(*(one(wire) for wire in wires))
    return count


async def main() -> None:
    """Every kind once, in one run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--kind", action="append")
    options = parser.parse_args()
    print(described_machine())
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            sql = await asyncpg.connect(parts.postgres.dsn)
            await sql.execute(LEDGER)
            names = [*PUSH_HANDLERS, "ledger.add", "ledger.note"]
            more = {"LEASES__LEASE_SECONDS": 3600, "PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: names}}
            service = Service(
                parts.variables(TELEMETRY__LOG_LEVEL="error", **more), Path(folder) / "service.log"
            )
            parts.services.append(service)
            await service.start()
            try:
                await measure(parts, service, sql, options)
            finally:
                await sql.close()


async def measure(parts: Parts, service: Service, sql: Any, options: Any) -> None:
    """One line a kind."""
    fleet = Fleet(parts, service.url)
    fleet.tokens["pubsub"] = parts.issuer.mint(ACCOUNTS["pubsub"], AUDIENCE)
    known = registry_of_tests().names
    process = psutil.Process(service.pid)
    head = f"{'pushes':<22}{'a second':>9}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'writes':>8}"
    print(f"\n  {head}{'alone: p50 ms':>16}")
    for to, data in kinds(await leases(fleet)).items():
        if to not in known or (options.kind and to not in options.kind):
            continue
        times: Any = defaultdict(list)
        wires = [await fleet.wire("pubsub", times) for _ in range(SENDERS)]
        await push(wires, to, data, time.perf_counter() + 1)
        times.clear()
        await push(wires[:1], to, data, time.perf_counter() + options.seconds / 3)
        lone = percentile(times[to], 0.5)
        times.clear()
        wrote, cpu = await xid(sql), sum(process.cpu_times()[:2])
        began = time.perf_counter()
        count = await push(wires, to, data, began + options.seconds)
        took = time.perf_counter() - began
        cpu, wrote = sum(process.cpu_times()[:2]) - cpu, await xid(sql) - wrote
        shares = "".join(f"{percentile(times[to], share):>8.1f}" for share in (0.5, 0.99))
        rest = f"{cpu * 1000 / count:>8.2f}{wrote / count:>8.2f}{lone:>16.1f}"
        print(f"  {to:<22}{count / took:>9.0f}{shares}{rest}", flush=True)
        for wire in wires:
            await wire.close()
    letters = await sql.fetch("SELECT reason, count(*) AS n FROM dead_letters GROUP BY reason")
    assert not letters, letters


async def xid(sql: Any) -> int:
    """A number that every transaction that writes takes one of."""
    return int(await sql.fetchval("SELECT pg_current_xact_id()::text::bigint"))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner_:
        runner_.run(main())
