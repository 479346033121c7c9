"""No sweep starves another, none goes on without the leadership, and all of it can be read."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from app.domain.errors import DatabaseUnavailable
from app.loops import reports
from app.loops import supervisor as supervision
from app.loops.leader import Leader
from app.loops.loop import Result
from app.loops.reports import Reports
from app.loops.supervisor import Supervisor, loops_of
from app.store import leaders, sweeps


@dataclass
class Sweep:
    """A loop whose passes do what the test says."""

    name: str
    result: Result = Result(1)  # noqa: RUF009 - frozen
    raises: BaseException | None = None
    hangs: bool = False
    limit_seconds: float = 60.0
    interval_seconds: float = 0.01
    leader_only: bool = True
    passes: int = 0
    broken_off: int = 0
    ran: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_once(self, _) -> Result:
        self.passes += 1
        self.ran.set()
        try:
            if self.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        if self.raises is not None:
            raise self.raises
        return self.result


@pytest.fixture(autouse=True)
def swift(monkeypatch):
    monkeypatch.setattr(supervision, "_REPORT_SECONDS", 0.02)
    monkeypatch.setattr(supervision, "_LONGEST_STAGGER_SECONDS", 0)
    monkeypatch.setattr(supervision, "_LOOK_SECONDS", 0.01)


@pytest.fixture
async def run(services):
    """Runs loops until the test ends."""
    running: list[Supervisor] = []

    def start(*loops, by=services) -> Supervisor:
        supervisor = Supervisor(by, loops)
        supervisor.start()
        running.append(supervisor)
        return supervisor

    yield start
    for supervisor in running:
        await supervisor.stop()


async def until(what) -> None:
    async with asyncio.timeout(20):
        while not await what():
            await asyncio.sleep(0.01)


async def test_sweep_that_hangs_fails_or_never_ends_holds_up_no_other(services, run):
    hanging = Sweep("hanging", hangs=True, limit_seconds=0.05)
    failing = Sweep("failing", raises=RuntimeError("with a secret text"))
    busy = Sweep("busy", Result(500, more=True))
    healthy = Sweep("healthy")
    run(hanging, failing, busy, healthy)

    async def all_ran() -> bool:
        return healthy.passes > 20 and hanging.broken_off > 1 and failing.passes > 1

    await until(all_ran)

    async def reported() -> bool:
        found = {one.name: one for one in await services.database.run(sweeps.list_all)}
        return len(found) == 4 and found["hanging"].failing > 1

    await until(reported)
    found = {one.name: one for one in await services.database.run(sweeps.list_all)}
    assert (found["failing"].last_error, found["hanging"].last_error) == (
        "RuntimeError",
        "sweep-too-slow",
    )
    assert found["failing"].last_run_at is None
    assert found["busy"].last_done == 500
    assert found["healthy"].failures == 0
    assert {one.term for one in found.values()} == {services.leadership.term}


async def test_failing_sweep_is_tried_ever_more_slowly_and_a_good_pass_ends_that(monkeypatch):
    monkeypatch.setattr(supervision.random, "uniform", lambda _, high: high)
    sweep = Sweep("sweep", interval_seconds=1.0)
    after = [supervision._pause_after(sweep, None, failures) for failures in (1, 2, 3, 10, 99)]

    assert after == [2, 4, 8, 30, 30]
    assert supervision._pause_after(sweep, Result(0), 0) == 1
    assert supervision._pause_after(sweep, Result(9, more=True), 0) == 0
    rare = Sweep("rare", interval_seconds=600)
    assert supervision._pause_after(rare, None, 5) == 600


async def test_first_passes_of_a_term_do_not_all_begin_at_once(monkeypatch):
    monkeypatch.setattr(supervision, "_LONGEST_STAGGER_SECONDS", 1.0)
    moments = {supervision._stagger(Sweep("sweep", interval_seconds=3600)) for _ in range(50)}

    assert len(moments) > 40
    assert max(moments) <= 1.0


async def test_pass_is_broken_off_when_the_leadership_is_lost_under_it(services, run):
    sweep = Sweep("sweep", hangs=True)
    run(sweep)
    async with asyncio.timeout(20):
        await sweep.ran.wait()

    services.leadership.give_up()

    async def broken_off() -> bool:
        return sweep.broken_off > 0

    await until(broken_off)


async def test_two_supervisors_never_lead_at_once_and_the_second_takes_over_at_a_stop(
    services, another, run
):
    other = another()
    first, second = Sweep("sweep"), Sweep("sweep")
    leading = run(first)
    async with asyncio.timeout(20):
        await first.ran.wait()
    run(second, by=other)

    await leading.hand_over()
    async with asyncio.timeout(20):
        await second.ran.wait()

    assert not services.leadership.is_held()
    history = await services.database.run(lambda conn: leaders.list_terms(conn, "scheduler", 9))
    assert [one.ended_by for one in reversed(history)] == ["resignation", None]
    assert history[0].gap_seconds < 1.0


async def test_loops_that_need_no_leader_go_on_after_the_hand_over(run):
    tick = Sweep("tick", leader_only=False)
    leading = run(Sweep("sweep"), tick)
    async with asyncio.timeout(20):
        await tick.ran.wait()
    await leading.hand_over()
    tick.ran.clear()

    async with asyncio.timeout(20):
        await tick.ran.wait()


async def test_process_that_is_stopped_in_the_middle_of_an_election_leaves_nobody_elected(
    services, another, monkeypatch
):
    """The commit may have been sent: then it resigns although it never knew that it led."""
    leader, run_ = Leader(services), services.election.run

    async def cut_off(command):
        await run_(command)
        raise asyncio.CancelledError

    monkeypatch.setattr(services.election, "run", cut_off)
    with pytest.raises(asyncio.CancelledError):
        await leader.renew()
    assert services.leadership.term is None
    monkeypatch.undo()

    await leader.resign()

    assert await Leader(another()).renew()


@pytest.mark.parametrize(
    ("role", "ticks", "leads"),
    [("api", True, False), ("scheduler", False, True), ("all", True, True)],
)
def test_role_decides_which_loops_run(role, ticks, leads):
    loops = loops_of(role, None)

    assert ("tick" in {loop.name for loop in loops}) is ticks
    assert any(loop.leader_only for loop in loops) is leads
    assert len({loop.name for loop in loops}) == len(loops)


# --- what is shown -------------------------------------------------------------------------------


async def report(services, sweep: Sweep, *results: Result | str) -> None:
    reports = Reports([sweep])
    for result in results:
        if isinstance(result, str):
            reports.failed(sweep.name, result)
        else:
            reports.passed(sweep.name, result, 0.25)
    await reports.tell(services)


async def test_every_instance_shows_the_leader_and_each_sweep(leader, clock, operator, another):
    sweep = Sweep("end_due", interval_seconds=1.0)
    await report(leader, sweep, Result(3), Result(4, behind_seconds=2.5), "database-unavailable")
    await clock.forward(6)

    shown = (await operator.call("GET", "/v1/scheduler")).json()

    [one] = shown["sweeps"]
    assert shown["leader"]["holder"] == str(leader.leadership.holder)
    assert shown["leader"]["term"] == shown["terms"][0]["term"] == leader.leadership.term
    assert (one["runs"], one["done"], one["last_done"]) == (2, 7, 4)
    assert (one["failures"], one["failing"], one["last_error"]) == (1, 1, "database-unavailable")
    assert one["last_run_seconds"] == 0.25
    assert 6 <= one["age_seconds"] < 7
    assert one["lag_seconds"] == pytest.approx(one["age_seconds"] - 1 + 2.5)
    assert shown["outbox"] == {"waiting": 0, "oldest_seconds": None, "last_reason": None}


async def test_sweep_that_leaves_something_at_each_pass_is_behind_since_the_first(
    leader, operator, monkeypatch
):
    sweep = Sweep("forget_old", interval_seconds=60.0)
    told, moment = Reports([sweep]), 100.0
    monkeypatch.setattr(reports, "monotonic", lambda: moment)

    behind = []
    for full in (True, True, True, False, True):
        told.passed(sweep.name, Result(5, more=full), 0.25)
        await told.tell(leader)
        [one] = (await operator.call("GET", "/v1/scheduler")).json()["sweeps"]
        behind.append(round(one["lag_seconds"]))
        moment += 30

    assert behind == [0, 30, 60, 0, 0]


async def test_nobody_is_shown_as_leader_once_the_time_of_the_last_one_is_over(
    leader, clock, operator
):
    await clock.forward(10)

    shown = (await operator.call("GET", "/v1/scheduler")).json()

    assert shown["leader"] is None
    assert shown["terms"][0]["until_at"] is None


async def test_report_under_a_stale_term_is_refused_and_changes_nothing(leader, clock, another):
    other = another()
    await clock.forward(10)
    await Leader(other).renew()
    sweep = Sweep("end_due")

    with pytest.raises(Exception, match="does not lead"):
        await report(leader, sweep, Result(3))

    await report(other, sweep, Result(1))
    [one] = await leader.database.run(sweeps.list_all)
    assert (one.done, one.term) == (1, other.leadership.term)


async def test_age_of_the_last_sweep_is_seen_in_readyz_and_metrics(leader, clock, http):
    await report(leader, Sweep("end_due", interval_seconds=1.0), Result(1, behind_seconds=3))
    await clock.forward(120)

    ready = (await http.get("/readyz")).json()
    metrics = (await http.get("/metrics")).text

    assert 120 <= ready["last_sweep_age_seconds"] < 121
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    assert float(values['execution_plane_sweep_age_seconds{loop="end_due"}']) >= 120
    assert float(values['execution_plane_sweep_lag_seconds{loop="end_due"}']) >= 122
    assert float(values["execution_plane_leader_alive"]) == 0
    assert float(values["execution_plane_leader_term"]) == leader.leadership.term
    assert float(values["execution_plane_outbox_waiting"]) == 0


async def test_database_that_is_away_costs_the_report_and_not_the_sweeps(
    services, run, monkeypatch
):
    sweep = Sweep("sweep")
    run(sweep)

    async def led() -> bool:
        return sweep.passes > 3

    await until(led)

    async def away(self, _) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(Reports, "tell", away)
    before = sweep.passes

    async def goes_on() -> bool:
        return sweep.passes > before + 3

    await until(goes_on)


def test_expiry_can_be_set_and_the_cadences_follow(make_settings):
    settings = make_settings(SCHEDULER__LEADER_TTL_SECONDS=2).scheduler

    assert timedelta(seconds=settings.renew_seconds) == timedelta(seconds=0.5)
    assert settings.poll_seconds == pytest.approx(0.2)
