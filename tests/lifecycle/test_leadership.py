"""One leader sweeps, another takes over, and a sweep that fails does not pass for one that ran."""

import asyncio
from dataclasses import dataclass, field

import pytest

from app.domain.errors import DatabaseUnavailable
from app.loops import leader as leadership
from app.loops import supervisor as supervision
from app.loops.leader import TTL_SECONDS, Leader
from app.loops.loop import Result
from app.loops.supervisor import Supervisor


@pytest.fixture
def candidates(services, database_url) -> tuple[Leader, Leader]:
    return Leader(services.database), Leader(services.database)


async def test_one_of_two_leads_until_it_resigns(world, candidates):
    first, second = candidates
    elected = (await first.renew(), await second.renew(), await first.renew())

    await first.resign()
    taken_over = await second.renew()

    assert elected == (True, False, True)
    assert (taken_over, first.is_leader(), second.is_leader()) == (True, False, True)
    assert await first.renew() is False


async def test_leader_that_is_not_heard_of_is_replaced_after_its_time_with_a_new_term(
    world, clock, candidates
):
    first, second = candidates
    await first.renew()
    await clock.forward(TTL_SECONDS - 1)
    early = await second.renew()
    await clock.forward(1)

    assert (early, await second.renew()) == (False, True)
    assert second.term == first.term + 1
    assert await first.renew() is False
    assert first.is_leader() is False


async def test_leader_stops_by_itself_before_anybody_else_can_be_elected(
    world, candidates, monkeypatch
):
    first, _ = candidates
    now = leadership.time.monotonic()
    monkeypatch.setattr(leadership.time, "monotonic", lambda: now)
    await first.renew()
    seen = [first.is_leader()]

    for seconds in (TTL_SECONDS - 2.1, TTL_SECONDS - 2):
        monkeypatch.setattr(leadership.time, "monotonic", lambda passed=seconds: now + passed)
        seen.append(first.is_leader())

    assert seen == [True, True, False]


async def test_replaced_leader_cannot_say_that_it_swept(world, clock, sql, candidates):
    first, second = candidates
    await first.renew()
    await clock.forward(TTL_SECONDS)
    await second.renew()

    await first.mark_swept()

    assert await sql.fetchval("SELECT swept_at FROM leaders") is None


@dataclass
class Sweep:
    """A loop that fails, or not, and counts its passes."""

    fails: bool
    passes: int = 0
    name: str = "sweep"
    interval_seconds: float = 0.01
    leader_only: bool = True
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self, _) -> Result:
        self.passes += 1
        if self.passes >= 3:
            self.done.set()
        if self.fails:
            raise DatabaseUnavailable
        return Result(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_only_a_sweep_that_passed_is_shown_as_one(world, services, sql, monkeypatch, fails):
    monkeypatch.setattr(supervision, "RENEW_SECONDS", 0.02)
    renewals = asyncio.Queue()
    renew = Leader.renew

    async def counted(self) -> bool:
        renewals.put_nowait(None)
        return await renew(self)

    monkeypatch.setattr(Leader, "renew", counted)
    sweep = Sweep(fails)
    supervisor = Supervisor(services, [sweep])
    supervisor.start()

    async with asyncio.timeout(20):
        await sweep.done.wait()
        for _ in range(renewals.qsize() + 3):
            await renewals.get()
    shown = await sql.fetchval("SELECT swept_at IS NOT NULL FROM leaders")
    await supervisor.stop()

    assert shown is not fails
