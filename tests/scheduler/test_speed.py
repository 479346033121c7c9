"""Ten thousand schedules that come due at once are sent within ten seconds, each once."""

import json
from time import perf_counter

import pytest

from app.loops.fire_schedules import FireSchedules
from app.loops.leader import Leader
from app.loops.send_outbox import SendOutbox
from tests.scheduler.world import attempt_data

MANY = """
INSERT INTO schedules (name, cron, time_zone, "to", data, misfire, misfire_limit, jitter_seconds,
    next_due_at, next_fire_at, created_at, updated_at, updated_by)
SELECT 's' || n, '* * * * *', 'Europe/Berlin', 'attempt.create', $2, 'once', 100, 0,
    date_trunc('minute', now()), date_trunc('minute', now()), now(), now(), 'test'
FROM generate_series(1, $1::int) n
"""


async def fire_many(services, inside, sql, count: int) -> tuple[float, float]:
    """Seconds until all were in the outbox, and until all had their effect."""
    await sql.execute(MANY, count, json.dumps(attempt_data()))
    await Leader(services).renew()
    firing, sending, fired = FireSchedules(), SendOutbox(inside.deliver), 0
    began = perf_counter()
    while fired < count:
        fired += (await firing.run_once(services)).done
        await Leader(services).renew()
    in_outbox = perf_counter() - began
    while await sql.fetchval("SELECT count(*) FROM outbox"):
        await sending.run_once(services)
        await Leader(services).renew()
    return in_outbox, perf_counter() - began


async def test_many_schedules_at_once_each_have_one_effect(services, inside, sql):
    await fire_many(services, inside, sql, 1200)

    assert await sql.fetchval("SELECT count(DISTINCT idempotency_key) FROM execution_attempts") == (
        1200
    )
    assert await sql.fetchval("SELECT count(*) FROM schedule_fires") == 1200


@pytest.mark.slow
async def test_ten_thousand_schedules_fire_within_ten_seconds(services, inside, sql):
    in_outbox, _ = await fire_many(services, inside, sql, 10_000)

    assert in_outbox < 10
    assert await sql.fetchval("SELECT count(*) FROM execution_attempts") == 10_000
