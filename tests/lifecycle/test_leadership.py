"""One leader sweeps, another takes over, and a sweep that fails does not pass for one that ran."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from app.commands import leadership
from app.commands.leadership import Leadership
from app.domain.errors import DatabaseUnavailable, LeadershipLost
from app.loops import supervisor as supervision
from app.loops.leader import Leader
from app.loops.loop import Result
from app.loops.reports import Reports
from app.loops.supervisor import Supervisor
from app.services import Services
from app.store import leaders

TTL = 10


@pytest.fixture
def candidate(services, database_url) -> Callable[[], Services]:
    """Further processes, as far as the election goes."""
    return lambda: replace(services, leadership=Leadership(services.settings.scheduler))


@pytest.fixture
def candidates(candidate) -> tuple[Services, Services]:
    return candidate(), candidate()


async def renew(services: Services) -> bool:
    return await Leader(services).renew()


async def test_one_of_two_leads_until_it_resigns(world, candidates):
    first, second = candidates
    elected = (await renew(first), await renew(second), await renew(first))

    await Leader(first).resign()
    taken_over = await renew(second)

    assert elected == (True, False, True)
    assert taken_over
    assert (first.leadership.is_held(), second.leadership.is_held()) == (False, True)
    assert await renew(first) is False


async def test_leader_that_is_not_heard_of_is_replaced_after_its_time_with_a_new_term(
    world, clock, candidates
):
    first, second = candidates
    await renew(first)
    await clock.forward(TTL - 1)
    early = await renew(second)
    await clock.forward(1)

    assert (early, await renew(second)) == (False, True)
    assert second.leadership.term == first.leadership.term + 1
    assert await renew(first) is False
    assert first.leadership.is_held() is False


async def test_leader_stops_by_itself_before_anybody_else_can_be_elected(
    world, candidates, monkeypatch
):
    first, _ = candidates
    now = leadership.moment()
    monkeypatch.setattr(leadership, "moment", lambda: now)
    monkeypatch.setattr("app.loops.leader.moment", lambda: now)
    await renew(first)
    seen = [first.leadership.is_held()]

    for seconds in (TTL - 2.1, TTL - 2):
        monkeypatch.setattr(leadership, "moment", lambda passed=seconds: now + passed)
        seen.append(first.leadership.is_held())

    assert seen == [True, True, False]


async def test_renewal_that_took_long_extends_the_trust_only_from_when_it_was_sent(
    world, candidates, monkeypatch
):
    first, _ = candidates
    now = leadership.moment()
    monkeypatch.setattr("app.loops.leader.moment", lambda: now)
    monkeypatch.setattr(leadership, "moment", lambda: now + TTL - 2)

    elected = await renew(first)

    assert first.leadership.term is not None
    assert (elected, first.leadership.is_held()) == (False, False)
    with pytest.raises(LeadershipLost):
        _ = first.leadership.fence


async def test_replaced_leader_cannot_say_that_it_swept(world, clock, sql, candidates):
    first, second = candidates
    await renew(first)
    await clock.forward(TTL)
    await renew(second)

    held = first.leadership
    await first.database.run(lambda conn: leaders.mark_swept(conn, held.name, held.holder))

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
    monkeypatch.setattr(supervision, "_REPORT_SECONDS", 0.02)
    monkeypatch.setattr(supervision, "_LONGEST_STAGGER_SECONDS", 0)
    told = asyncio.Queue()
    tell = Reports.tell

    async def counted(self, services) -> None:
        await tell(self, services)
        told.put_nowait(None)

    monkeypatch.setattr(Reports, "tell", counted)
    sweep = Sweep(fails)
    supervisor = Supervisor(services, [sweep])
    supervisor.start()

    async with asyncio.timeout(20):
        await sweep.done.wait()
        for _ in range(told.qsize() + 3):
            await told.get()
    shown = await sql.fetchval("SELECT swept_at IS NOT NULL FROM leaders")
    await supervisor.stop()

    assert shown is not fails
