"""Beside an old snapshot claims do not step over all that was claimed since, and miss nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.commands import floors as policy
from app.commands.claims import Claimer, ClaimRequest, PlacementClasses, try_claims
from app.commands.ends import rules_of
from app.commands.floors import Floors
from app.domain.commands import ClaimLeases
from app.domain.keys import KeyRing
from app.domain.placement import Offer
from app.settings import LeaseSettings
from app.store import claims, floors, runners
from app.store.floors import Place
from tests.plans.test_claim_plans import class_of, lease_values, pages_read

CLAIMED = 3000
OFFER = Offer("ssh", frozenset({"ssh.command.run"}), None, frozenset())
CLAIM_THEM = """
UPDATE execution_attempts SET status = 'leased', leased_at = now(), claimable = false
WHERE id IN (SELECT id FROM execution_attempts ORDER BY priority, created_at, id LIMIT $1)
"""


@pytest.fixture
async def snapshot(fresh_database) -> AsyncIterator[asyncpg.Connection]:
    """What a report that runs for hours holds."""
    reader = await asyncpg.connect(fresh_database)
    transaction = reader.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await reader.fetchval("SELECT count(*) FROM runner_leases")
    yield reader
    await transaction.rollback()
    await reader.close()


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def eager(clock, monkeypatch) -> Floors:
    """As they are where every claim is slow and the oldest snapshot is old."""
    monkeypatch.setattr(policy, "_SLOW_SECONDS", 0)
    monkeypatch.setattr(policy, "_OLD_TRANSACTIONS", 0)
    return Floors(clock=lambda: clock[0])


Claim = Callable[[], Awaitable[int | None]]


async def claim_with(queue, kept: Floors) -> Claim:
    """One claim of one runner; the priority of what it is given, None: of nothing."""
    session = uuid4()
    profile = runners.Profile("ssh", "1", ["ssh.command.run"], None, "{}")
    await runners.add_once(queue.connection, "runner-1", session, profile)
    await runners.begin_session(queue.connection, "runner-1", session, profile, 1000)
    keys = KeyRing("k1", {"k1": b"a secret of the tests, long enough to be one"})
    terms = LeaseSettings()
    claimer = Claimer(keys, PlacementClasses(), terms, rules_of(terms), kept)

    async def claim_() -> int | None:
        command = ClaimLeases(runner_id="runner-1", session_id=session, request_id=uuid4())
        [outcome] = await try_claims(queue.connection, claimer, [ClaimRequest(command, OFFER)])
        return outcome[0].leased.attempt.priority if outcome else None

    return claim_


@pytest.fixture
async def claim(queue, eager) -> Claim:
    return await claim_with(queue, eager)


async def make_urgent(queue, priority: int) -> None:
    """The newest of those that wait, more urgent than the others."""
    await queue.connection.execute("ALTER TABLE execution_attempts DISABLE TRIGGER USER")
    await queue.connection.execute(
        "UPDATE execution_attempts SET priority = $1 WHERE id = (SELECT id FROM "
        "execution_attempts WHERE claimable ORDER BY created_at DESC LIMIT 1)",
        priority,
    )


async def test_claim_above_a_floor_reads_nothing_of_what_died_before_it(queue, snapshot):
    await queue.fill(CLAIMED + 100)
    await queue.settle()
    await queue.connection.execute(CLAIM_THEM, CLAIMED)
    head = await queue.connection.fetchrow(
        "SELECT priority, created_at, id FROM execution_attempts WHERE claimable "
        "ORDER BY priority, created_at, id LIMIT 1"
    )
    classes = [class_of(None)]
    values = lease_values(*classes)[:12]

    without = await pages_read(
        queue.connection, claims._LEASE, *values, *floors.begins(classes, {})
    )
    above = floors.begins(classes, {classes[0]: Place(*head)})
    with_floor = await pages_read(queue.connection, claims._LEASE, *values, *above)

    assert with_floor + 100 < without


async def test_the_age_of_a_snapshot_counts_what_began_after_it(queue, snapshot):
    for _ in range(20):
        await queue.connection.execute("UPDATE service_ticks SET last_tick_at = now()")

    assert await floors.oldest_snapshot_age(queue.connection) >= 20


async def test_slow_claims_without_an_old_snapshot_set_no_floor(queue, monkeypatch):
    monkeypatch.setattr(policy, "_SLOW_SECONDS", 0)
    kept = Floors()
    claim = await claim_with(queue, kept)
    await queue.fill(2)
    await queue.settle()

    assert await claim() == 100

    assert kept.of([class_of(None)]) == {}


async def test_quick_claims_set_no_floor(queue, monkeypatch):
    monkeypatch.setattr(policy, "_SLOW_SECONDS", 1000)
    monkeypatch.setattr(policy, "_OLD_TRANSACTIONS", 0)
    kept = Floors()
    claim = await claim_with(queue, kept)
    await queue.fill(2)
    await queue.settle()

    assert await claim() == 100

    assert kept.of([class_of(None)]) == {}


async def test_more_urgent_work_goes_first_again_after_a_second(queue, claim, clock):
    await queue.fill(10)
    await queue.settle()
    assert await claim() == 100

    await make_urgent(queue, 1)
    assert await claim() == 100
    clock[0] += 1.0

    assert await claim() == 1


async def test_work_below_the_floor_is_found_where_nothing_else_is(queue, claim):
    await queue.fill(2)
    await queue.settle()
    assert await claim() == 100

    await make_urgent(queue, 1)

    assert await claim() == 1
    assert await claim() is None


def test_floors_of_other_classes_are_not_given():
    place = Place(1, datetime.now(UTC), UUID(int=1))
    asked = Floors(clock=lambda: 0.0)
    asked._floors, asked._until = {UUID(int=2): place}, 1.0

    assert asked.of([UUID(int=3)]) == {}
    assert asked.of([UUID(int=2), UUID(int=3)]) == {UUID(int=2): place}
