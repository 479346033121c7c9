"""`make bench-callbacks`: from a commit to the receiver, and how fast a backlog drains.

One service process, PostgreSQL, the receiver and who creates the attempts share this machine. First
attempts are created at a steady rate, and each of their events is timed from the moment that the
database gave it, before its commit, to its arrival at the receiver: one event a request, signed.
Then a backlog is put into the feed while the receiver is away, and drains in batches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from pathlib import Path
from time import perf_counter, time
from typing import Any

import asyncpg
import httpx
import orjson

from app.embedded.serving import LoopbackServer
from bench.parts import Parts, described_machine
from tests.driver import new_attempt

RATE = 200
SECONDS = 20
EVENTS = 100_000
ATTEMPTS = 1000
BATCH = 200
SETTINGS = {"CALLBACKS__ALLOWED_NETWORKS": ["127.0.0.0/8"]}

Message = MutableMapping[str, Any]


class Receiver:
    """Accepts everything, and notes when."""

    def __init__(self) -> None:
        self.arrived: dict[str, float] = {}
        self.milliseconds: list[float] = []
        self.requests = 0

    async def __call__(
        self,
        _: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """One request."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        now = time()
        self.requests += 1
        document = orjson.loads(body)
        for event in document.get("events", [document]):
            if self.arrived.setdefault(event["id"], now) == now:
                moment = datetime.fromisoformat(event["timestamp"]).timestamp()
                self.milliseconds.append((now - moment) * 1000)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def create_steadily(control: httpx.AsyncClient, rate: int, seconds: int) -> int:
    """Create attempts in batches of a twentieth of a second's."""
    size, begun, made = max(1, rate // 20), perf_counter(), 0
    for number in range(seconds * 20):
        await asyncio.sleep(max(0.0, begun + number / 20 - perf_counter()))
        batch = [new_attempt() for _ in range(size)]
        answer = await control.post("/v1/attempts:batch", json={"attempts": batch})
        answer.raise_for_status()
        made += size
    return made


async def until(receiver: Receiver, wanted: int, seconds: float) -> None:
    """Wait until so many different events have arrived."""
    deadline = perf_counter() + seconds
    while len(receiver.arrived) < wanted:
        assert perf_counter() < deadline, f"{len(receiver.arrived)} of {wanted} arrived"
        await asyncio.sleep(0.01)


_FILL = """
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch, feed_xid,
    created_at)
SELECT gen_random_uuid(), a.id, $1 + 1, 'heartbeat',
    '{"phase": "executing", "runner_instance_id": "runner-1"}', current_feed_epoch(),
    pg_current_xact_id(), clock_fact()
FROM execution_attempts a ORDER BY a.id LIMIT $2
"""


async def fill(dsn: str, events: int, attempts: int) -> int:
    """Put events of that many attempts into the feed, as many steps as it takes."""
    connection = await asyncpg.connect(dsn)
    made = 0
    for number in range(1, events // attempts + 1):
        tag = await connection.execute(_FILL, number, attempts)
        made += int(tag.rsplit(" ", 1)[1])
    await connection.close()
    return made


async def subscribe(control: httpx.AsyncClient, name: str, **fields: Any) -> None:
    """Create a subscription."""
    answer = await control.put(f"/v1/callback-subscriptions/{name}", json=fields)
    answer.raise_for_status()


async def measure_latency(control: httpx.AsyncClient, rate: int, seconds: int) -> str:
    """A steady rate, one event a request."""
    receiver = Receiver()
    server = LoopbackServer(receiver)
    await server.start()
    await subscribe(control, "single", url=server.url)
    await asyncio.sleep(2)
    made = await create_steadily(control, rate, seconds)
    await until(receiver, made, 60)
    await control.delete("/v1/callback-subscriptions/single")
    await asyncio.sleep(1)
    await server.stop()
    cuts = statistics.quantiles(receiver.milliseconds, n=100)
    return (
        f"  {rate} events/s for {seconds} s     p50 {cuts[49]:6.1f} ms   p95 {cuts[94]:6.1f} ms   "
        f"p99 {cuts[98]:6.1f} ms"
    )


async def measure_drain(control: httpx.AsyncClient, dsn: str, events: int, batch: int) -> str:
    """A backlog, in batches."""
    attempts = min(ATTEMPTS, events)
    for _ in range(0, attempts, 500):
        body = {"attempts": [new_attempt() for _ in range(min(500, attempts))]}
        (await control.post("/v1/attempts:batch", json=body)).raise_for_status()
    cursor = (await control.get("/v1/callback-subscriptions/place")).json()["cursor"]
    made = await fill(dsn, events, attempts)
    receiver = Receiver()
    server = LoopbackServer(receiver)
    await server.start()
    await subscribe(control, "batches", url=server.url, max_batch=batch, start=cursor)
    await until(receiver, 1, 60)
    begun, first = perf_counter(), len(receiver.arrived)
    await until(receiver, made, 600)
    took = perf_counter() - begun
    await server.stop()
    return (
        f"  {made:,} events, batches of {batch}   {(len(receiver.arrived) - first) / took:,.0f} "
        f"events/s   {receiver.requests} requests   {took:.1f} s"
    )


async def main() -> None:
    """Run both, print one report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await parts.serve(**SETTINGS)
            async with parts.client("control-plane") as control:
                print(await measure_latency(control, given.rate, given.seconds), flush=True)
                # Where the backlog begins; its receiver is never there.
                await subscribe(control, "place", url="http://127.0.0.1:9/")
                drained = await measure_drain(
                    control, parts.postgres.dsn, given.events, given.batch
                )
                print(drained, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
