"""Commands that meet: whoever is second finds out, and an attempt ends once."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import httpx
import pytest

from app.commands import leases
from app.domain.commands import StartLease
from app.domain.errors import Cancelled
from app.store import claims, ends
from tests.driver import Held
from tests.lifecycle.world import AGAIN, ONCE, World, new_key, refusal
from tests.store.sweeps import Gate, until_blocked

LEASE = 30
TERMINAL = {"succeeded", "failed", "cancelled", "timed_out", "lost"}


# --- the sweep and what happened since it looked --------------------------------------------------


@pytest.fixture
def after_the_look(monkeypatch) -> Callable[[Callable[[], Awaitable[object]]], None]:
    """Let something happen between the sweep's look and its write."""

    def happen(something: Callable[[], Awaitable[object]]) -> None:
        look = ends.list_due

        async def look_and_then(conn, limit):
            due = await look(conn, limit)
            monkeypatch.setattr(ends, "list_due", look)
            await something()
            return due

        monkeypatch.setattr(ends, "list_due", look_and_then)

    return happen


async def test_sweep_that_looked_before_a_completion_leaves_its_outcome(
    world, clock, after_the_look
):
    held = await world.running()
    await clock.forward(LEASE)
    after_the_look(held.complete)

    ended = await world.sweep()

    assert ended == 0
    assert await world.end(held.attempt_id) == ("succeeded", None, True)
    assert (await world.control.event_types(held.attempt_id))[-1] == "succeeded"


async def test_sweep_that_looked_before_a_heartbeat_leaves_the_lease(world, clock, after_the_look):
    held = await world.running()
    await clock.forward(LEASE)
    after_the_look(held.beat)

    assert await world.sweep() == 0
    assert await world.leases(held.attempt_id) == ["active"]


async def test_sweep_that_looked_before_somebody_else_took_over_leaves_the_new_lease(
    world, clock, after_the_look
):
    held = await world.leased()
    await clock.forward(15)
    other = await world.runner()

    async def take_over() -> None:
        await held.post("release")
        await other.start()

    after_the_look(take_over)

    assert await world.sweep() == 0
    assert await world.leases(held.attempt_id) == ["released", "active"]
    assert await world.control.status(held.attempt_id) == "running"


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [({"timeout_seconds": 20}, "succeeded"), ({}, "cancelled")],
    ids=["run limit", "cancel limit"],
)
async def test_sweep_that_looked_at_a_limit_before_a_completion_leaves_its_outcome(
    world, clock, after_the_look, fields, outcome
):
    held = await world.running(**fields)
    if outcome == "cancelled":
        await world.cancel(held.attempt_id)
        for _ in range(6):
            await clock.forward(10)
            await held.beat()
    else:
        await clock.forward(20)
    after_the_look(lambda: held.complete(outcome))

    assert await world.sweep() == 0
    assert (await world.end(held.attempt_id))[0] == outcome


async def test_sweep_that_looked_at_a_queue_limit_before_a_claim_leaves_the_lease(
    world, clock, after_the_look
):
    attempt_id = await world.create(queue_timeout_seconds=20)
    runner = await world.runner()
    await clock.forward(20)
    after_the_look(runner.claim)

    assert await world.sweep() == 0
    assert await world.leases(attempt_id) == ["active"]


# --- a start that is sent twice -------------------------------------------------------------------


async def test_start_sent_twice_at_once_around_a_cancel_does_not_end_the_work_that_began(
    world, monkeypatch
):
    """The second one came to another instance, looked before the first was committed and had its
    turn after a cancel."""
    held = await world.leased()
    gate = Gate(world.services, monkeypatch)
    first = asyncio.create_task(held.start())
    await gate.reached.wait()
    cancel = asyncio.create_task(world.cancel(held.attempt_id))
    await until_blocked(world.sql)
    terms = world.services.terms
    repeat = StartLease(lease_id=held.id, lease_token=held.token)
    second = asyncio.create_task(
        world.services.database.run(lambda conn: leases.start(conn, terms, [repeat]))
    )
    await blocked(world, 2)

    gate.opened.set()
    began, asked, [again] = await asyncio.gather(first, cancel, second)

    assert (began.status_code, asked.status_code) == (200, 200)
    assert isinstance(again, Cancelled)
    assert await world.control.status(held.attempt_id) == "running"
    assert (await held.complete("cancelled")).status_code == 200


async def blocked(world: World, count: int) -> None:
    """Return when so many connections wait for locks."""
    async with asyncio.timeout(5):
        while (
            await world.sql.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND wait_event_type = 'Lock'"
            )
            < count
        ):
            await asyncio.sleep(0.002)


# --- a session that is replaced meanwhile ---------------------------------------------------------


async def test_claim_that_looked_before_a_new_session_took_over_gets_nothing(world, monkeypatch):
    attempt_id = await world.create()
    runner = await world.runner()
    look = claims.look

    async def look_and_then(*arguments):
        seen = await look(*arguments)
        monkeypatch.setattr(claims, "look", look)
        await world.restart(runner)
        return seen

    monkeypatch.setattr(claims, "look", look_and_then)
    answer = await runner.try_claim()

    assert refusal(answer) == (409, "session-replaced", "stop")
    assert await world.control.status(attempt_id) == "queued"


async def test_session_that_registers_again_behind_its_successor_does_not_come_back(
    world, monkeypatch
):
    old = await world.runner()
    gate = Gate(world.services, monkeypatch)
    successor = asyncio.create_task(world.restart(old))
    await gate.reached.wait()
    again = asyncio.create_task(old.try_register())
    await until_blocked(world.sql)

    gate.opened.set()
    new = await successor

    assert refusal(await again) == (409, "session-replaced", "stop")
    assert (await new.try_claim()).status_code == 200


# --- cancel against everything, many times --------------------------------------------------------


async def ending(world: World, attempt_id: str) -> str | None:
    """The attempt's one terminal event, None while it is open."""
    status, types = await world.sql.fetchrow(
        "SELECT a.status, array_agg(e.event_type) FROM execution_attempts a "
        "JOIN attempt_events e ON e.attempt_id = a.id WHERE a.id = $1 GROUP BY a.status",
        UUID(attempt_id),
    )
    endings = [name for name in types if name in TERMINAL]
    assert endings == ([status] if status in TERMINAL else []), types
    return endings[0] if endings else None


async def cancel_against_claim(world: World, runner) -> None:
    attempt_id = await world.create()

    asked, claimed = await asyncio.gather(world.cancel(attempt_id), runner.claim_all())

    assert asked.status_code == 200
    if claimed:
        [held] = claimed
        assert refusal(await held.start()) == (409, "cancelled", "stop")
    assert await ending(world, attempt_id) == "cancelled"


async def cancel_against_start(world: World, runner) -> None:
    attempt_id = await world.create()
    held = await runner.claim()

    asked, started = await asyncio.gather(world.cancel(attempt_id), held.start())

    assert asked.status_code == 200
    if started.status_code == 200:
        assert (await held.beat()).json()["action"] == "cancel"
        assert (await held.complete("cancelled")).status_code == 200
    assert await ending(world, attempt_id) == "cancelled"


async def cancel_against_complete(world: World, runner) -> None:
    attempt_id = await world.create()
    held = await runner.start()

    asked, completed = await asyncio.gather(world.cancel(attempt_id), held.complete())

    assert completed.status_code == 200
    assert asked.status_code in {200, 409}
    assert await ending(world, attempt_id) == "succeeded"


async def rounds(world: World, count: int) -> None:
    races = (cancel_against_claim, cancel_against_start, cancel_against_complete)
    runner = await world.runner()
    for number in range(count):
        await races[number % 3](world, runner)


async def test_cancel_against_claim_start_and_complete_ends_each_attempt_once(world):
    await rounds(world, 200)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_cancel_against_claim_start_and_complete_ends_each_attempt_once_1000_rounds(world):
    await rounds(world, 1000)


# --- every two commands at once -------------------------------------------------------------------


def commands_about(world: World, held: Held) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that can befall a lease or its attempt."""

    async def claim() -> httpx.Response:
        runner = await world.runner(held.attempt["job_type"])
        return await runner.try_claim(max_leases=5)

    return {
        "start": held.start,
        "beat": lambda: held.beat(phase="executing"),
        "complete": held.complete,
        "fail": lambda: held.complete("failed"),
        "release": lambda: held.post("release"),
        "log": lambda: held.log(b"x", 0),
        "restart": lambda: world.restart(held.runner),
        "claim": claim,
        "cancel": lambda: world.cancel(held.attempt_id),
        "free": lambda: world.free(held.attempt["concurrency_key"]),
        "sweep": world.sweep,
    }


@pytest.mark.parametrize("lapsed", [False, True], ids=["live", "lapsed"])
@pytest.mark.parametrize(
    ("job_type", "started"), [(ONCE, True), (AGAIN, True), (AGAIN, False)], ids=str
)
async def test_any_two_commands_at_once_leave_what_an_auditor_accepts(
    world, clock, job_type, started, lapsed
):
    for _ in range(12):
        held = await (world.running if started else world.leased)(
            job_type, concurrency_key=new_key()
        )
        commands = commands_about(world, held)
        pair = random.choices(list(commands), k=2)
        if lapsed:
            await clock.forward(LEASE)

        answers = await asyncio.gather(*(commands[name]() for name in pair))

        codes = [one.status_code for one in answers if isinstance(one, httpx.Response)]
        assert set(codes) <= {200, 404, 409}, (pair, codes)
        await ending(world, held.attempt_id)
        assert await world.audit() == {}, pair
        await end(world, clock, held)


async def end(world: World, clock, held) -> None:
    """Nothing is left for the next pair."""
    await world.cancel(held.attempt_id)
    await clock.forward(100)
    await world.sweep()
    await world.keep_keys()
    assert await world.sql.fetchval(
        "SELECT finished_at IS NOT NULL FROM execution_attempts WHERE id = $1",
        UUID(held.attempt_id),
    )
