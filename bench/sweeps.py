"""`make bench-sweeps`: what sweeps cost with nothing to do, and how long many schedules take.

Idle passes stand beside a large number of active leases, each with beats. Then as many schedules as
are asked for come due in one moment, and are followed until the last attempt is there; once with
the handlers of this process, once over the local Pub/Sub to its topic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import asyncpg

from app.api.dispatch import Dispatcher
from app.api.inside import Inside
from app.commands.attempts import CreateRequest
from app.domain.commands import CreateAttempt
from app.embedded.environment import TOPIC
from app.embedded.pubsub import LocalPubSub
from app.embedded.serving import LoopbackServer
from app.handlers import all_handlers
from app.handlers.attempts import create_attempts
from app.loops.leader import Leader
from app.loops.loop import Loop
from app.loops.send_outbox import SendOutbox
from app.loops.supervisor import loops_of
from app.services import Services
from app.settings import SchedulerSettings, load
from app.store import ticks
from app.topics import Publisher
from app.wiring import open_services
from bench.parts import Parts, described_machine
from tests.conftest import environment
from tests.driver import new_attempt

ROUNDS = 50

LEASES = """
INSERT INTO runner_leases (id, attempt_id, runner_instance_id, status, lease_token_hash,
    token_key_id, expires_at, check_at, created_at, lease_number, session_id, claim_request_id,
    last_sequence)
SELECT gen_random_uuid(), id, 'runner-' || (n % 1000), 'active', 'h' || n, 'k1',
    now() + interval '1 d', now() + interval '1 d', now(), 1, gen_random_uuid(), gen_random_uuid(),
    1
FROM (SELECT id, row_number() OVER () AS n FROM execution_attempts) a
"""

SCHEDULES = """
INSERT INTO schedules (name, cron, time_zone, "to", data, misfire, misfire_limit, jitter_seconds,
    next_due_at, next_fire_at, created_at, updated_at, updated_by)
SELECT $3 || n, '* * * * *', 'Europe/Berlin', 'attempt.create', $2, 'once', 100, 0,
    date_trunc('minute', now()), date_trunc('minute', now()), now(), now(), 'bench'
FROM generate_series(1, $1::int) n
"""


def attempt_data() -> dict[str, object]:
    """The data of a creation; it gets its key from its envelope."""
    data = new_attempt()
    del data["idempotency_key"]
    return data


async def fill(services: Services, sql: asyncpg.Connection, leases: int) -> None:
    """Active leases on as many attempts."""
    for start in range(0, leases, 500):
        bodies = [new_attempt() for _ in range(min(500, leases - start))]
        await create_attempts(
            services, [CreateRequest(CreateAttempt.model_validate(one), one) for one in bodies]
        )
    await sql.execute("UPDATE execution_attempts SET claimable = false, limit_at = NULL")
    await sql.execute(LEASES)
    await sql.execute("VACUUM ANALYZE")


async def idle(services: Services, loop: Loop) -> tuple[float, float]:
    """Median and highest milliseconds of a pass that finds nothing."""
    times = []
    for _ in range(ROUNDS):
        await services.database.run(ticks.tick)
        await Leader(services).renew()
        began = perf_counter()
        await loop.run_once(services)
        times.append((perf_counter() - began) * 1000)
    return statistics.median(times), max(times)


async def fire(services: Services, sql: asyncpg.Connection, count: int, name: str) -> None:
    """All schedules at once: seconds until the outbox had all, and until all were sent."""
    await sql.execute("UPDATE schedules SET next_due_at = NULL, next_fire_at = NULL")
    await sql.execute(SCHEDULES, count, json.dumps(attempt_data()), name)
    inside = Inside(services, Dispatcher(services, all_handlers.build()))
    firing = next(
        one for one in loops_of("scheduler", inside.deliver) if one.name == "fire_schedules"
    )
    sending = SendOutbox(inside.deliver)
    fired = sent = 0
    began = perf_counter()
    fired_after = 0.0

    async def renewing() -> None:
        while True:
            await Leader(services).renew()
            await asyncio.sleep(1)

    renewal = asyncio.create_task(renewing())
    await Leader(services).renew()
    while sent < count:
        if fired < count:
            fired += (await firing.run_once(services)).done
            fired_after = perf_counter() - began
        sent += (await sending.run_once(services)).done
    renewal.cancel()
    print(
        f"  {count:,} schedules, {name:<7} in the outbox after {fired_after:5.2f} s, "
        f"all sent after {perf_counter() - began:5.2f} s",
        flush=True,
    )


async def run(parts: Parts, leases: int, schedules: int) -> None:
    """Fill and measure."""
    values = environment(parts.postgres.dsn, parts.objects, (parts.issuer, "http://127.0.0.1:9/"))
    sql = await asyncpg.connect(parts.postgres.dsn)
    async with open_services(load(values)) as services:
        await Leader(services).renew()
        await fill(services, sql, leases)
        inside = Inside(services, Dispatcher(services, all_handlers.build()))
        for loop in loops_of("scheduler", inside.deliver):
            median, highest = await idle(services, loop)
            print(
                f"  idle {loop.name:<17} median {median:6.2f} ms   highest {highest:6.2f} ms",
                flush=True,
            )
        await fire(services, sql, schedules, "inside")
        pubsub = LocalPubSub(lambda *_: "")
        pubsub.create_topic(TOPIC)
        server = LoopbackServer(pubsub.app)
        await server.start()
        settings = SchedulerSettings(topic=TOPIC, pubsub_url=server.url, pubsub_credentials="none")
        over_topic = replace(
            services,
            settings=services.settings.model_copy(update={"scheduler": settings}),
            publisher=Publisher(settings, services.http),
        )
        await fire(over_topic, sql, schedules, "topic")
        await server.stop()
    await sql.close()


async def main() -> None:
    """Measure on parts of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--schedules", type=int, default=10_000)
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            await run(parts, given.leases, given.schedules)


if __name__ == "__main__":
    asyncio.run(main())
