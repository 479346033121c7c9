"""`make bench-push`: authenticated, deduplicated pushes a second, and beats while the issuer fails.

Two service processes on one PostgreSQL, which differ in one thing: one verifies each token, the
other takes every caller for Pub/Sub. Rounds of the two alternate, so what else the machine does
meets both. Each message is different, with a row for its dedupe and a row for its effect, committed
as durably as PostgreSQL is by default; the sender shares the machine.

Then heartbeats over REST are timed while pushes with unknown key ids arrive, first with an issuer
that answers, then with one that hangs and whose keys are stale.
"""

from __future__ import annotations

import asyncio
import base64
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast
from uuid import uuid4

import asyncpg

from app.auth.roles import Identity
from app.auth.tokens import TokenVerifier
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.embedded.issuer import Fault
from app.serve import run, serve_with
from app.settings import load
from app.wiring import open_services
from bench.parts import Parts, described_machine
from tests.conftest import environment
from tests.driver import Control, Held, RunnerClient
from tests.kill.world import ROOT, ServiceProcess
from tests.push.service import HANDLERS, LEDGER, registry_of_tests

ROUNDS = 6
MESSAGES = 1500
SENDERS = 12
BEATS = 600
WANTED = 0.70


class TakesEverybody:
    """What stands in for the verifier of tokens where verification is switched off."""

    async def verify(self, _: object) -> Identity:
        """Pub/Sub, whatever was sent."""
        return Identity(ACCOUNTS["pubsub"], "none", frozenset({"pubsub"}), ())


def serve(verification: str) -> None:
    """The service with the handlers of the tests, with or without verification."""
    settings = load()

    async def serving() -> None:
        async with open_services(settings) as opened:
            open_door = cast("TokenVerifier", TakesEverybody())
            tokens = open_door if verification == "off" else opened.tokens
            services = replace(opened, tokens=tokens)
            await serve_with(services, asyncio.Event(), registry_of_tests())

    run(serving(), settings)


class Service(ServiceProcess):
    """One of the two processes."""

    verification = "on"

    def spawn(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ours
                [sys.executable, "-m", "bench.push", "serve", self.verification],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=log,
            )


# --- pushes a second ------------------------------------------------------------------------------


def requests(token: str, count: int) -> list[bytes]:
    """Whole requests of pushes of different messages."""
    made = []
    for number in range(count):
        envelope = {
            "v": 1,
            "to": "ledger.add",
            "id": str(uuid4()),
            "data": {"number": number},
        }
        message = {
            "data": base64.b64encode(json.dumps(envelope).encode()).decode(),
            "messageId": uuid4().hex,
            "publishTime": "2026-11-30T10:00:00.123Z",
        }
        body = json.dumps({"message": message, "subscription": SUBSCRIPTION}).encode()
        head = (
            f"POST /push/pubsub HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


async def send_all(port: int, wanted: bytes, left: Iterator[bytes]) -> None:
    """Send requests over one connection until none is left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in left:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(wanted), head
    writer.close()
    await writer.wait_closed()


async def pushes_per_second(port: int, token: str, count: int = MESSAGES) -> float:
    """Push so many different messages over a dozen connections."""
    left = iter(requests(token, count))
    began = perf_counter()
    await asyncio.gather(*(send_all(port, b"HTTP/1.1 204", left) for _ in range(SENDERS)))
    return count / (perf_counter() - began)


async def compare(on: Service, off: Service, token: str) -> None:
    """Rounds of both, alternating, and the ratio of their medians."""
    rates: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(2):  # connections, prepared statements and the verdict are there afterwards
        await pushes_per_second(on.port, token, 200)
        await pushes_per_second(off.port, token, 200)
    for number in range(ROUNDS):
        pairs = [("on", on), ("off", off)]
        for name, service in pairs if number % 2 else reversed(pairs):
            rates[name].append(await pushes_per_second(service.port, token))
    print(f"pushes, {ROUNDS} rounds of {MESSAGES} different messages over {SENDERS} connections")
    for name in ("on", "off"):
        middle, worst, best = statistics.median(rates[name]), min(rates[name]), max(rates[name])
        print(f"  verification {name:<4} {middle:7.0f} pushes/s   ({worst:.0f} to {best:.0f})")
    ratio = statistics.median(rates["on"]) / statistics.median(rates["off"])
    print(f"  ratio {ratio:.2f}   (wanted: at least {WANTED:.2f})")


# --- beats while the issuer fails -----------------------------------------------------------------


@asynccontextmanager
async def unknown_keys(parts: Parts, service: Service) -> AsyncIterator[None]:
    """Pushes whose key id nobody knows, one after the other: each would like to fetch keys."""
    claims = parts.issuer.claims(ACCOUNTS["pubsub"], AUDIENCE)

    async def flood() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        while True:
            [request] = requests(parts.issuer.sign(claims, kid=uuid4().hex), 1)
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.005)

    flooding = asyncio.create_task(flood())
    yield
    flooding.cancel()
    with suppress(asyncio.CancelledError):
        await flooding


async def beat_times(held: Held) -> list[float]:
    """Milliseconds of heartbeats, one after the other."""
    times = []
    for _ in range(BEATS):
        began = perf_counter()
        answer = await held.beat()
        answer.raise_for_status()
        times.append((perf_counter() - began) * 1000)
    return times


async def beats(parts: Parts, service: Service) -> None:
    """Beats with an issuer that answers and with one that hangs, in turns."""
    held = await _held(parts)
    times: dict[str, list[float]] = {"answers": [], "hangs": []}
    for _ in range(3):
        for name, fault in (("answers", None), ("hangs", Fault.SLOW)):
            parts.issuer.fault = fault
            await asyncio.sleep(1.2)  # the keys are stale
            async with unknown_keys(parts, service):
                times[name] += await beat_times(held)
    parts.issuer.fault = None
    print(f"heartbeats, {3 * BEATS} each, beside pushes with unknown key ids and stale keys")
    cuts = {name: statistics.quantiles(found, n=100) for name, found in times.items()}
    for name, cut in cuts.items():
        print(f"  issuer {name:<8} p50 {cut[49]:6.2f} ms   p99 {cut[98]:6.2f} ms")
    p50, p99 = (cuts["hangs"][n] / cuts["answers"][n] for n in (49, 98))
    print(f"  ratio           p50 {p50:6.2f}      p99 {p99:6.2f}")


async def _held(parts: Parts) -> Held:
    mint: Any = parts.issuer.mint
    control = Control(parts.client("control-plane", -1), mint(ACCOUNTS["control-plane"], AUDIENCE))
    runner = RunnerClient(parts.client("runner", -1), mint(ACCOUNTS["runner"], AUDIENCE))
    await runner.register()
    await control.create()
    return await runner.start()


# --- both -----------------------------------------------------------------------------------------


async def main() -> None:
    """Run both, print one report."""
    print(described_machine())
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            sql = await asyncpg.connect(parts.postgres.dsn)
            await sql.execute(LEDGER)
            await sql.close()
            on, off = [await _serve(parts, Path(folder), word) for word in ("on", "off")]
            await compare(on, off, parts.issuer.mint(ACCOUNTS["pubsub"], AUDIENCE))
            for service in (on, off):
                await service.stop()
            parts.issuer.max_age_seconds = parts.issuer.age_seconds + 1
            await beats(parts, await _serve(parts, Path(folder), "on"))


async def _serve(parts: Parts, folder: Path, verification: str) -> Service:
    values = environment(
        parts.postgres.dsn,
        parts.objects,
        (parts.issuer, f"{parts._issuing.url}/oauth2/v1/certs"),  # noqa: SLF001
        PUSH__SUBSCRIPTIONS={SUBSCRIPTION: HANDLERS},
        TELEMETRY__LOG_LEVEL="error",
    )
    service = Service(values, folder / f"service-{verification}.log")
    service.verification = verification
    parts.services.append(service)
    await service.start()
    return service


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        asyncio.run(main())
