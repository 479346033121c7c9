"""Concurrency keys: one attempt at a time, in a strict line, and held while work may go on."""

import asyncio
from uuid import UUID

import pytest

from tests.lifecycle.world import AGAIN, ONCE, new_key

LEASE, HOLD = 30, 300


async def line(world, clock, key, *priorities, job_type=ONCE):
    """Attempts of one key, created one after the other."""
    made = []
    for priority in priorities:
        made.append(await world.create(job_type, concurrency_key=key, priority=priority))
        await clock.forward(1)
    return made


async def test_one_attempt_a_key_at_a_time(world, clock):
    key = new_key()
    first, second = await line(world, clock, key, 100, 100)
    runner = await world.runner()

    [held] = await runner.claim_all(max_leases=10)
    nothing = await runner.claim_all(max_leases=10)
    await held.complete()

    assert (held.attempt_id, nothing) == (first, [])
    assert (await runner.claim()).attempt_id == second


async def test_line_goes_by_priority_and_then_by_age(world, clock):
    key = new_key()
    made = await line(world, clock, key, 50, 100, 10, 50)
    runner = await world.runner()
    order = []
    for _ in range(4):
        held = await runner.claim()
        order.append(made.index(held.attempt_id))
        await held.complete()

    assert order == [2, 0, 3, 1]


async def test_line_is_strict_though_the_first_cannot_be_taken(world, clock):
    key = new_key()
    first = await world.create(concurrency_key=key, placement={"zone": "nowhere"})
    await clock.forward(1)
    second = await world.create(concurrency_key=key)
    runner = await world.runner()

    blocked = await runner.claim_all()
    await world.cancel(first)

    assert blocked == []
    assert (await runner.claim()).attempt_id == second


async def test_more_urgent_attempt_overtakes_one_that_was_already_first(world, clock):
    key = new_key()
    await line(world, clock, key, 100)
    [urgent] = await line(world, clock, key, 1)

    assert (await (await world.runner()).claim()).attempt_id == urgent


@pytest.mark.parametrize("end", ["complete", "cancel_queued", "queue_limit", "lost_unstarted"])
async def test_every_end_moves_the_line_up(world, clock, end):
    key = new_key()
    first = await world.create(
        concurrency_key=key, queue_timeout_seconds=50 if end == "queue_limit" else None
    )
    await clock.forward(1)
    second = await world.create(concurrency_key=key)
    runner = await world.runner()
    match end:
        case "complete":
            await (await runner.claim()).complete("failed")
        case "cancel_queued":
            await world.cancel(first)
        case "queue_limit":
            await clock.forward(50)
            await world.sweep()
        case "lost_unstarted":
            await (await runner.claim()).post("release")
            await world.cancel(first)

    assert (await runner.claim()).attempt_id == second


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_continuation_keeps_the_key_of_its_attempt(world, clock, started):
    key = new_key()
    held = await (world.running if started else world.leased)(AGAIN, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    await line(world, clock, key, 1, job_type=AGAIN)
    await world.keep_keys()

    claimed = await (await world.runner(AGAIN)).claim_all(max_leases=5)

    assert [one.attempt_id for one in claimed] == [held.attempt_id]
    assert await world.holder(key) == held.attempt_id


async def test_nobody_in_a_line_is_offered_while_its_key_is_held(world, clock):
    key = new_key()
    await world.running(concurrency_key=key)
    waiting = await line(world, clock, key, 100, 1)

    await world.keep_keys()

    assert [(await world.row(one))["claimable"] for one in waiting] == [False, False]


async def test_keys_do_not_hinder_each_other_nor_those_without(world, clock):
    keys = [new_key() for _ in range(3)]
    for key in keys:
        await line(world, clock, key, 100, 100)
    await world.create()

    held = await (await world.runner()).claim_all(max_leases=10)

    assert sorted(str(one.attempt["concurrency_key"]) for one in held) == sorted([*keys, "None"])


# --- held beyond the end --------------------------------------------------------------------------


async def lost_with_key(world, clock, key, job_type=ONCE):
    held = await world.running(job_type, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    assert await world.control.status(held.attempt_id) == "lost"
    return held


async def test_key_stays_held_after_an_end_without_word_until_its_time_is_over(world, clock):
    key = new_key()
    held = await lost_with_key(world, clock, key)
    waiting = await world.create(concurrency_key=key)
    runner = await world.runner()

    await clock.forward(HOLD - 1)
    early = (await world.keep_keys(), await runner.claim_all())
    await clock.forward(1)
    freed = await world.keep_keys()

    assert early == (0, [])
    assert freed == 1
    assert (await runner.claim()).attempt_id == waiting
    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)


@pytest.mark.parametrize("end", ["timed_out", "cancel ignored", "session replaced"])
async def test_key_stays_held_after_every_other_end_without_word(world, clock, end):
    key = new_key()
    held = await world.running(concurrency_key=key, timeout_seconds=60)
    match end:
        case "timed_out":
            await clock.forward(60)
            await world.sweep()
        case "cancel ignored":
            await world.cancel(held.attempt_id)
            await clock.forward(LEASE)
            await world.sweep()
        case "session replaced":
            await world.restart(held.runner)

    await world.keep_keys()

    assert (await world.end(held.attempt_id))[2] is False
    assert await world.holder(key) == held.attempt_id


async def test_key_of_an_attempt_that_never_started_is_free_at_its_end(world, clock):
    key = new_key()
    held = await world.leased(concurrency_key=key)
    await world.cancel(held.attempt_id)
    await clock.forward(15)

    await world.sweep()

    assert await world.end(held.attempt_id) == ("lost", "cancelled", True)
    assert await world.holder(key) is None


async def test_key_of_an_infrastructure_state_is_never_let_go_by_time(world, clock):
    key = new_key()
    held = await lost_with_key(world, clock, key, "opentofu.apply")
    await clock.forward(30 * 24 * 3600)

    freed = await world.keep_keys()

    assert freed == 0
    assert await world.holder(key) == held.attempt_id
    await held.complete("failed")
    assert await world.holder(key) is None


async def test_operator_frees_the_key_of_an_ended_attempt(world, clock):
    key = new_key()
    held = await lost_with_key(world, clock, key, "opentofu.apply")
    waiting = await world.create("opentofu.apply", concurrency_key=key)

    answer = await world.free(key)

    assert (answer.status_code, answer.json()["attempt_id"]) == (200, held.attempt_id)
    assert (await (await world.runner("opentofu.apply")).claim()).attempt_id == waiting
    told = (await world.events(held.attempt_id))[-1]
    assert told["event_type"] == "key_freed"
    assert told["payload"]["reason"] == "looked at the host"
    assert told["payload"]["concurrency_key"] == key


@pytest.mark.parametrize("state", ["leased", "running", "waiting"])
async def test_key_of_a_living_attempt_cannot_be_freed(world, clock, state):
    key = new_key()
    held = await (world.leased if state == "leased" else world.running)(AGAIN, concurrency_key=key)
    if state == "waiting":
        await clock.forward(LEASE)
        await world.sweep()

    answer = await world.free(key)

    assert (answer.status_code, answer.json()["reason"]) == (409, "key-in-use")
    assert await world.holder(key) == held.attempt_id


async def test_key_that_nobody_holds_is_not_found(world):
    answer = await world.free(new_key())

    assert (answer.status_code, answer.json()["reason"]) == (404, "concurrency-key-not-found")


async def test_late_word_after_the_operator_freed_the_key_leaves_the_next_holder_alone(
    world, clock
):
    key = new_key()
    held = await lost_with_key(world, clock, key)
    await world.free(key)
    await world.create(concurrency_key=key)
    next_one = await (await world.runner()).start()

    await held.complete("failed")

    assert await world.holder(key) == next_one.attempt_id
    assert (await world.row(held.attempt_id))["stop_confirmed"] is True


# --- what the sweep mends -------------------------------------------------------------------------


async def test_sweep_mends_a_line_whose_move_up_was_lost(world, clock, sql):
    key = new_key()
    _, second = await line(world, clock, key, 100, 100)
    runner = await world.runner()
    await (await runner.claim()).complete()
    await sql.execute("UPDATE execution_attempts SET claimable = false WHERE id = $1", UUID(second))
    lost = await runner.claim_all()

    await world.keep_keys()

    assert lost == []
    assert (await runner.claim()).attempt_id == second


async def test_sweep_takes_back_a_place_in_the_line_that_is_not_ones_own(world, clock, sql):
    key = new_key()
    first, second = await line(world, clock, key, 100, 100)
    await sql.execute("UPDATE execution_attempts SET claimable = true WHERE id = $1", UUID(second))

    await world.keep_keys()

    claimable = await sql.fetch("SELECT id FROM execution_attempts WHERE claimable")
    assert [str(row["id"]) for row in claimable] == [first]


async def test_claim_that_meets_a_held_key_takes_nothing_and_leaves_the_line(world, clock, sql):
    key = new_key()
    first, second = await line(world, clock, key, 100, 100)
    await (await (await world.runner()).claim()).post("release")
    runner = await world.runner()
    await runner.claim()
    await sql.execute("UPDATE execution_attempts SET claimable = true WHERE id = $1", UUID(second))

    nothing = await runner.claim_all()

    assert nothing == []
    assert (await world.row(second))["claimable"] is False
    assert await world.control.status(second) == "queued"
    held = await sql.fetchrow("SELECT attempt_id, lease_number FROM concurrency_holds")
    assert (str(held["attempt_id"]), held["lease_number"]) == (first, 2)


async def test_sweep_walks_all_keys_that_somebody_waits_for(world, clock, sql, monkeypatch):
    keys = sorted(new_key() for _ in range(7))
    for key in keys:
        await line(world, clock, key, 100)
    await sql.execute("UPDATE execution_attempts SET claimable = false")
    monkeypatch.setattr("app.loops.keep_keys._BATCH", 3)
    from app.loops.keep_keys import KeepKeys  # noqa: PLC0415

    loop = KeepKeys()
    for _ in range(3):
        await loop.run_once(world.services)

    assert len(await (await world.runner()).claim_all(max_leases=10)) == 7


# --- many at once ---------------------------------------------------------------------------------


async def test_twenty_claimers_on_many_keys_never_hold_one_twice(world):
    keys = [new_key() for _ in range(8)]
    for number in range(64):
        await world.create(concurrency_key=keys[number % 8])
    runners = [await world.runner() for _ in range(20)]
    done: list[str] = []
    at_work: set[str] = set()

    async def work(runner) -> None:
        while len(done) < 64:
            for held in await runner.claim_all(max_leases=3):
                key = held.attempt["concurrency_key"]
                assert key not in at_work
                at_work.add(key)
                assert (await held.start()).status_code == 200
                at_work.remove(key)
                assert (await held.complete()).status_code == 200
                done.append(held.attempt_id)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(runner) for runner in runners))

    assert len(set(done)) == 64
    assert await world.sql.fetchval("SELECT count(*) FROM concurrency_holds") == 0
