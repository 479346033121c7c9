"""Terms do not overlap, nothing is written under a stale one, and their history can be read."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from app.domain.errors import DatabaseUnavailable, LeadershipLost
from app.loops.leader import Leader
from app.store import leaders, sweeps
from app.store.leaders import SCHEDULER
from app.store.sweeps import Passes

TTL = 10


async def renew(services) -> bool:
    return await Leader(services).renew()


async def terms(services) -> list[leaders.Term]:
    found = await services.database.run(lambda conn: leaders.list_terms(conn, SCHEDULER, 100))
    return list(reversed(found))


async def test_every_term_has_a_line_in_the_history_from_which_gaps_can_be_read(
    clock, services, another
):
    first, second, third = services, another(), another()
    await renew(first)
    await clock.forward(3)
    await renew(first)
    await clock.forward(TTL + 2)
    await renew(second)
    await clock.forward(5)
    await Leader(second).resign()
    await clock.forward(1)
    await renew(third)

    history = await terms(services)

    assert [one.holder for one in history] == [s.leadership.holder for s in (first, second, third)]
    assert [one.term for one in history] == [history[0].term + more for more in range(3)]
    assert [one.ended_by for one in history] == ["expiry", "resignation", None]
    assert [one.gap_seconds for one in history] == [None, TTL + 2, 1]
    assert [(one.until_at - one.from_at).total_seconds() for one in history[:2]] == [3 + TTL, 5]
    assert history[2].until_at is None


async def test_two_processes_of_one_host_are_two_candidates(clock, services, another):
    assert services.leadership.holder != another().leadership.holder
    assert await renew(services)
    assert not await renew(another())


async def test_of_many_candidates_at_once_one_is_elected(clock, services, another):
    candidates = [another() for _ in range(8)]

    elected = await asyncio.gather(*(renew(one) for one in candidates))

    assert sum(elected) == 1
    assert len(await terms(services)) == 1


async def prove_in(services, work) -> None:
    """A transaction of the leader that does `work` after it has proved its term."""

    async def write(conn: asyncpg.Connection) -> None:
        await services.leadership.prove(conn)
        await work(conn)

    await services.database.run(write)


async def test_takeover_waits_for_a_write_that_has_proved_its_term(clock, sql, services, another):
    second = another()
    await renew(services)
    proved, go_on = asyncio.Event(), asyncio.Event()

    async def slow(conn) -> None:
        proved.set()
        await go_on.wait()
        await sweeps.report(conn, [a_pass()], services.leadership.term)

    writing = asyncio.create_task(prove_in(services, slow))
    await proved.wait()
    await clock.forward(TTL)
    taking = asyncio.create_task(renew(second))
    await until_somebody_waits(sql)
    early = taking.done()
    go_on.set()
    await writing

    assert not early
    assert await taking
    assert await sql.fetchval("SELECT term FROM sweeps") == services.leadership.term


async def until_somebody_waits(sql) -> None:
    while not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        await asyncio.sleep(0.01)


def a_pass(name: str = "sweep") -> Passes:
    return Passes(name, 1.0, 1, 1, 0, 0, 0.0, 0.0, 0.01, 1, None, None)


async def test_replaced_leader_that_still_trusts_itself_writes_nothing(
    clock, sql, services, another
):
    await renew(services)
    await clock.forward(TTL)
    await renew(another())

    async def write(conn) -> None:
        await sweeps.report(conn, [a_pass()], 1)

    assert services.leadership.is_held()  # its own clock has not moved
    with pytest.raises(LeadershipLost):
        await prove_in(services, write)
    assert await sql.fetchval("SELECT count(*) FROM sweeps") == 0


async def test_leader_whose_time_is_over_writes_nothing_even_if_nobody_has_taken_over(
    clock, sql, services
):
    await renew(services)
    await clock.forward(TTL)

    with pytest.raises(LeadershipLost):
        await prove_in(services, lambda conn: sweeps.report(conn, [a_pass()], 1))

    assert await sql.fetchval("SELECT count(*) FROM sweeps") == 0
    assert await renew(services)
    await prove_in(services, lambda conn: sweeps.report(conn, [a_pass()], 1))


async def test_renewal_does_not_wait_for_a_sweep_in_its_transaction(clock, services):
    await renew(services)

    async def write(conn) -> None:
        assert await renew(services)

    await prove_in(services, write)


async def test_leader_that_took_the_row_again_is_of_a_new_term_and_its_old_writes_are_refused(
    clock, sql, services, another
):
    await renew(services)
    old = services.leadership.fence
    await clock.forward(TTL)
    other = another()
    await renew(other)
    await Leader(other).resign()
    assert await renew(services)

    assert services.leadership.fence.term == old.term + 2
    with pytest.raises(LeadershipLost):
        await services.database.run(lambda conn: leaders.prove(conn, old))


@pytest.mark.parametrize(
    "by_hand",
    [
        "DELETE FROM leaders",
        "UPDATE leaders SET holder = gen_random_uuid(), expires_at = clock_fact()",
        "UPDATE leaders SET term = 0, holder = NULL",
        "UPDATE leader_terms SET until_at = clock_fact(), ended_by = 'expiry'",
        "DELETE FROM leader_terms",
    ],
)
async def test_what_is_done_to_the_rows_by_hand_leads_to_a_new_election_and_terms_only_grow(
    clock, sql, services, another, by_hand
):
    await renew(services)
    before = services.leadership.term
    await sql.execute(by_hand)
    await clock.forward(TTL)

    other = another()
    elected = [await renew(services), await renew(other)]

    assert sum(elected) == 1
    leading = services if elected[0] else other
    assert leading.leadership.term > before or by_hand == "DELETE FROM leader_terms"
    await prove_in(leading, lambda conn: sweeps.report(conn, [a_pass()], 1))


async def test_clock_of_the_database_that_jumps_ahead_costs_a_term_and_nothing_else(
    clock, services, another
):
    await renew(services)
    await clock.forward(3600)
    second = another()

    assert await renew(second)
    assert not await renew(services)
    assert len(await terms(services)) == 2


async def test_clock_of_the_database_that_is_set_back_does_not_leave_it_without_a_leader(
    clock, services, another
):
    await renew(services)
    await clock.forward(-3600)
    second = another()

    assert await renew(second)
    history = await terms(services)
    assert history[1].from_at >= history[0].until_at >= history[0].from_at


async def test_living_leader_survives_a_clock_that_is_set_back(clock, services, another):
    await renew(services)
    await clock.forward(-3600)

    assert await renew(services)
    assert not await renew(another())


async def test_sessions_that_are_terminated_cost_no_leadership(clock, sql, services):
    await renew(services)
    term = services.leadership.term
    await sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    for _ in range(3):
        await renew(services)

    assert services.leadership.is_held()
    assert services.leadership.term == term


async def test_renewal_that_fails_extends_nothing(clock, services, monkeypatch):
    await renew(services)
    trusted = services.leadership._trusted_until

    async def away(_) -> None:
        raise DatabaseUnavailable

    monkeypatch.setattr(services.election, "run", away)

    assert await renew(services)
    assert services.leadership._trusted_until == trusted


async def test_old_terms_are_forgotten_and_the_count_goes_on(clock, sql, services, another):
    await renew(services)
    await Leader(services).resign()
    await clock.forward(401 * 86400)
    second = another()
    await renew(second)

    removed = await services.database.run(
        lambda conn: leaders.remove_old_terms(conn, timedelta(days=400), 10)
    )

    assert removed == 1
    assert [one.term for one in await terms(services)] == [second.leadership.term]
