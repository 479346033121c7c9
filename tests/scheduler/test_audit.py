"""The auditor of leaders and schedules: silent about honest ones, and not about any fault."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from app.commands.audit import Terms, run_checks
from app.loops.leader import Leader
from app.store import audit_scheduler
from tests.scheduler.world import attempt_data

START = datetime(2027, 6, 1, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
OF_HOURLY = "WHERE schedule = 'hourly' AND outcome = 'fired'"
ONE_MORE_TERM = (
    "INSERT INTO leader_terms (name, term, holder, label, from_at) "
    "SELECT name, term + 1, holder, label, {} FROM leader_terms WHERE until_at IS NULL"
)
COPY_FIRE = (
    "INSERT INTO schedule_fires SELECT (r).* FROM (SELECT jsonb_populate_record(f, "
    f"jsonb_build_object('id', gen_random_uuid())) AS r FROM schedule_fires f {OF_HOURLY}) s"
)

FAULTS: dict[str, list[str]] = {
    "terms": [
        ONE_MORE_TERM.format("from_at"),
        "UPDATE leader_terms SET until_at = from_at + interval '1 d' WHERE until_at IS NOT NULL",
        "UPDATE leader_terms SET until_at = from_at - interval '1 s', ended_by = 'expiry'",
    ],
    "leader": [
        "UPDATE leaders SET term = term + 1",
        "UPDATE leaders SET holder = gen_random_uuid()",
        "DELETE FROM leader_terms WHERE until_at IS NULL",
    ],
    "stale-terms": [
        f"UPDATE schedule_fires SET term = term - 1 {OF_HOURLY}",
        f"UPDATE schedule_fires SET term = term + 1 {OF_HOURLY}",
        f"UPDATE schedule_fires SET fired_at = fired_at - interval '1 d' {OF_HOURLY}",
    ],
    "one-fire": [COPY_FIRE],
    "has-message": [
        f"UPDATE schedule_fires SET sent_at = NULL {OF_HOURLY}",
        f"DELETE FROM schedule_fires {OF_HOURLY.replace('hourly', 'waiting')}",
        "DELETE FROM outbox",
        "UPDATE schedule_fires SET sent_at = clock_fact() WHERE schedule = 'waiting'",
        "UPDATE schedule_fires SET sent_at = clock_fact() WHERE outcome = 'skipped'",
    ],
    "has-effect": [
        "DELETE FROM execution_attempts",
        "UPDATE execution_attempts SET idempotency_key = 'another'",
    ],
    "fires-on-time": [
        "UPDATE schedules SET next_fire_at = clock_fact() - interval '31 s' WHERE name = 'hourly'"
    ],
    "goes-forward": ["UPDATE schedules SET next_due_at = last_due_at WHERE name = 'hourly'"],
}


@pytest.fixture
async def lives(world, clock, another):
    """Schedules in all states, under the second of two leaders."""
    await world.at(START)
    await Leader(world.services).resign()
    await Leader(another()).renew()
    await clock.forward(20)
    assert await Leader(world.services).renew()
    await world.put("hourly", misfire="all", misfire_limit=1)
    await world.put("paused")
    await world.post("paused", "pause")
    await world.at(START + 3 * HOUR)
    await world.fire()
    await world.send()
    await world.put("bad", to="attempt.cancel", data={"attempt_id": attempt_data()["plan_id"]})
    await world.put("waiting", cron="45 * * * *")
    await world.trigger("waiting")
    await world.at(START + 3 * HOUR + HOUR / 2)
    await world.fire()
    await world.at(START + 3 * HOUR + HOUR / 2)


@pytest.fixture
async def intruder(postgres, worker_database) -> AsyncIterator[asyncpg.Connection]:
    """Somebody whom no trigger, key or rule can stop; what they do is undone."""
    name = worker_database.rsplit("/", 1)[1]
    connection = await asyncpg.connect(postgres.admin_dsn.rsplit("/", 1)[0] + f"/{name}")
    undone = connection.transaction()
    await undone.start()
    await connection.execute("SET LOCAL session_replication_role = replica")
    for row in await connection.fetch(
        "SELECT conrelid::regclass AS table, conname AS name FROM pg_constraint "
        "WHERE contype = 'c' AND conrelid IN ('leader_terms'::regclass, "
        "'schedule_fires'::regclass, 'schedules'::regclass)"
    ):
        await connection.execute(f'ALTER TABLE {row["table"]} DROP CONSTRAINT "{row["name"]}"')
    for index in ("leader_terms_one_open_idx", "schedule_fires_one_a_time_idx"):
        await connection.execute(f"DROP INDEX {index}")
    yield connection
    await undone.rollback()
    await connection.close()


async def found(connection: asyncpg.Connection, world) -> set[str]:
    findings = await run_checks(connection, Terms.of(world.services.settings.leases))
    return {finding.check.name for finding in findings if finding.violations}


def test_every_check_is_proven_by_a_fault():
    assert set(FAULTS) == {name for name, _, _ in audit_scheduler.STATEMENTS}


async def test_auditor_says_nothing_about_honest_schedules(world, lives, intruder):
    assert await found(intruder, world) == set()


async def test_auditor_finds_every_fault_that_somebody_plants(world, lives, intruder):
    await world.clock.forward(60)
    await world.sql.execute("UPDATE leaders SET expires_at = clock_fact() + interval '9 s'")
    missed = []
    for name, statements in FAULTS.items():
        for statement in statements:
            fault = intruder.transaction()
            await fault.start()
            planted = await intruder.execute(statement)
            assert not planted.endswith(" 0"), (name, statement)
            if name not in await found(intruder, world):
                missed.append((name, statement))
            await fault.rollback()

    assert missed == []
