"""What changes with every heartbeat, start or report stays in its page: no index learns of it.

PostgreSQL counts such updates (HOT: heap-only tuples). One that is not HOT writes into every index
of its table, and leaves an entry behind in each that only a vacuum removes.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from app.auth.lease_tokens import hash_of
from app.domain.ids import new_id
from app.store import leases, runners
from tests.driver import Held, new_attempt

LEASES = 50
ROUNDS = 40
LEASE_TIME, GRACE = timedelta(seconds=60), timedelta(seconds=120)


@pytest.fixture
async def held(control, runner) -> list[Held]:
    """Leases of one runner, as one batch of creations and one claim leave them."""
    await runner.register(capacity_total=LEASES)
    attempts = [new_attempt() for _ in range(LEASES)]
    created = await control.call("POST", "/v1/attempts:batch", json={"attempts": attempts})
    assert created.status_code == 200, created.text
    claimed: list[Held] = []
    while len(claimed) < LEASES:
        claimed += await runner.claim_all(max_leases=16)
    return claimed


@pytest.fixture
def hot_share(sql) -> Callable[..., Awaitable[float]]:
    """The share of a table's updates that were HOT, among those of this test's connection."""
    counted: dict[str, asyncpg.Record] = {}

    async def count(table: str) -> float:
        await sql.execute("SELECT pg_stat_force_next_flush()")
        row = await sql.fetchrow(
            "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables "
            "WHERE relname = $1",
            table,
        )
        before = counted.get(table, {"all": 0, "hot": 0})
        counted[table] = row
        updates = row["all"] - before["all"]
        return (row["hot"] - before["hot"]) / updates if updates else 0.0

    return count


def keys_of(held: list[Held]) -> list[leases.Key]:
    return [leases.Key(one.id, hash_of(one.token)) for one in held]


def beats_of(held: list[Held], number: int, phase: str | None) -> list[leases.Beat]:
    return [
        leases.Beat(key, new_id(), one.runner.session_id, number, phase, number, "at work")
        for key, one in zip(keys_of(held), held, strict=True)
    ]


async def test_heartbeats_in_batches_stay_in_their_page(held, hot_share, sql):
    await leases.start(sql, keys_of(held), LEASE_TIME, GRACE)
    await leases.heartbeat(sql, beats_of(held, 1, "executing"), LEASE_TIME, with_phase=True)
    await hot_share("runner_leases")

    for number in range(2, ROUNDS + 2):
        beats = beats_of(held, number, None)
        done = await leases.heartbeat(sql, beats, LEASE_TIME, with_phase=False)
        assert len(done) == LEASES

    assert await hot_share("runner_leases") >= 0.9


async def test_heartbeats_with_a_new_phase_stay_in_their_pages(held, hot_share, sql):
    await leases.start(sql, keys_of(held), LEASE_TIME, GRACE)
    for table in ("runner_leases", "execution_attempts"):
        await hot_share(table)

    for number in range(1, ROUNDS + 1):
        beats = beats_of(held, number, ("executing", "completing")[number % 2])
        done = await leases.heartbeat(sql, beats, LEASE_TIME, with_phase=True)
        assert len(done) == LEASES

    assert await hot_share("runner_leases") >= 0.9
    assert await hot_share("execution_attempts") >= 0.9


async def test_starts_stay_in_their_page(held, hot_share, sql):
    await hot_share("runner_leases")

    for one in held:
        await leases.start(sql, keys_of([one]), LEASE_TIME, GRACE)

    assert await hot_share("runner_leases") >= 0.9


async def test_what_a_runner_reports_stays_in_its_page(held, hot_share, sql):
    runner = held[0].runner
    for table in ("runner_instances", "runner_statuses"):
        await hot_share(table)

    for number in range(1, 101):
        told = runners.Report(
            runner.id, runner.session_id, number, "busy", LEASES, "an error, for a while"
        )
        assert await runners.report(sql, [told]) == {runner.id}

    assert await hot_share("runner_instances") >= 0.9
    assert await hot_share("runner_statuses") >= 0.9
