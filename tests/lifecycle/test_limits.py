"""Limits: how long an attempt may wait, how long its start may take, how long it may run."""

from datetime import timedelta

import pytest

from tests.lifecycle.world import AGAIN, refusal

LEASE, START, GRACE = 30, 600, 60


async def keep_alive(world, clock, held, seconds: int) -> int:
    """Let time pass while the runner beats; how many ends the sweeps made."""
    ended = 0
    while seconds > 0:
        step = min(10, seconds)
        await clock.forward(step)
        await held.beat()
        ended += await world.sweep()
        seconds -= step
    return ended


async def test_attempt_that_nobody_takes_in_time_is_cancelled(world, clock):
    attempt_id = await world.create(queue_timeout_seconds=100)

    await clock.forward(99)
    early = await world.sweep()
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(attempt_id) == ("cancelled", "runner_unavailable", True)
    assert await world.control.event_types(attempt_id) == ["created", "cancelled"]


async def test_attempt_without_a_queue_limit_waits_for_ever(world, clock):
    attempt_id = await world.create()

    await clock.forward(365 * 24 * 3600)
    await world.sweep()

    assert await world.control.status(attempt_id) == "queued"


async def test_queue_limit_ends_with_the_first_lease(world, clock):
    held = await world.leased(queue_timeout_seconds=20)
    await held.post("release")

    await clock.forward(100)
    await world.sweep()

    assert await world.control.status(held.attempt_id) == "leased"


async def test_attempt_that_is_not_started_in_time_is_lost_although_its_runner_beats(world, clock):
    held = await world.leased()

    early = await keep_alive(world, clock, held, START - 1)
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("lost", "runner_unavailable", True)
    assert await world.leases(held.attempt_id) == ["revoked"]


async def test_start_limit_runs_from_the_first_lease_over_all_that_expire(world, clock):
    held = await world.leased()
    await clock.forward(100)
    await world.sweep()
    await (await world.runner()).claim()
    await clock.forward(100)
    await world.sweep()

    await clock.forward(START - 201)
    early = await world.sweep()
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("lost", "runner_unavailable", True)


async def test_start_limit_runs_from_the_first_lease_that_was_not_given_back(world, clock):
    held = await world.leased()
    await clock.forward(10)
    await held.post("release")
    await clock.forward(10)
    second = await (await world.runner()).claim()

    early = await keep_alive(world, clock, second, START - 1)
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("lost", "runner_unavailable", True)


async def test_attempt_that_runs_too_long_is_timed_out_and_its_lease_revoked(world, clock):
    held = await world.running(timeout_seconds=120)

    early = await keep_alive(world, clock, held, 119)
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("timed_out", "timeout", False)
    assert await world.leases(held.attempt_id) == ["revoked"]
    assert refusal(await held.beat()) == (409, "lease-revoked", "stop")
    assert (await world.control.event_types(held.attempt_id))[-2:] == ["lease_revoked", "timed_out"]


async def test_run_limit_counts_from_the_first_start_over_all_leases(world, clock):
    first = await world.running(AGAIN, timeout_seconds=120)
    await clock.forward(100)
    await world.sweep()
    second = await (await world.runner(AGAIN)).start()
    assert second.attempt_id == first.attempt_id

    await clock.forward(20)
    await world.sweep()

    assert await world.end(first.attempt_id) == ("timed_out", "timeout", False)


async def test_runner_that_timed_out_by_itself_is_believed(world):
    held = await world.running()

    await held.complete("timed_out")

    assert await world.end(held.attempt_id) == ("timed_out", "timeout", True)


async def test_running_attempt_that_nobody_goes_on_with_is_lost(world, clock):
    held = await world.running(AGAIN, timeout_seconds=7200)
    await clock.forward(LEASE)
    await world.sweep()

    await clock.forward(START - 1)
    early = await world.sweep()
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)


async def test_wait_for_a_continuation_counts_from_the_last_lease(world, clock):
    held = await world.running(AGAIN, timeout_seconds=7200)
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward(START - 100)
    second = await (await world.runner(AGAIN)).claim()
    await second.post("release")

    await clock.forward(START - 1)
    early = await world.sweep()
    await clock.forward(1)
    await world.sweep()

    assert early == 0
    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)


@pytest.mark.parametrize("run_limit", [300, 7200])
async def test_limit_is_what_each_command_leaves_it_as(world, clock, run_limit):
    """Queue, start, run, wait for a continuation, cancel: the earliest that applies."""

    async def left(attempt_id: str) -> float | None:
        limit = await world.limit(attempt_id)
        return None if limit is None else (limit - clock.now).total_seconds()

    attempt_id = await world.create(AGAIN, queue_timeout_seconds=50, timeout_seconds=run_limit)
    seen = {"created": await left(attempt_id)}
    await clock.forward(10)
    first = await (await world.runner(AGAIN)).claim()
    seen["leased"] = await left(attempt_id)
    await clock.forward(5)
    await first.beat()
    seen["beat"] = await left(attempt_id)
    await first.post("release")
    seen["released"] = await left(attempt_id)
    await clock.forward(5)
    second = await (await world.runner(AGAIN)).claim()
    seen["leased again"] = await left(attempt_id)
    await clock.forward(15)
    await world.sweep()
    seen["expired"] = await left(attempt_id)
    third = await (await world.runner(AGAIN)).claim()
    seen["leased a third time"] = await left(attempt_id)
    await third.start()
    seen["started"] = await left(attempt_id)
    await clock.forward(LEASE)
    await world.sweep()
    seen["waiting"] = await left(attempt_id)
    await clock.forward(20)
    fourth = await (await world.runner(AGAIN)).claim()
    seen["continued"] = await left(attempt_id)
    await fourth.start()
    seen["started again"] = await left(attempt_id)
    await world.cancel(attempt_id)
    seen["cancel asked"] = await left(attempt_id)
    await fourth.complete("cancelled")
    seen["ended"] = await left(attempt_id)

    assert second.attempt_id == attempt_id
    assert seen == {
        "created": 50,
        "leased": START,
        "beat": START - 5,
        "released": None,
        "leased again": START,
        "expired": START - 15,
        "leased a third time": START - 15,
        "started": run_limit,
        "waiting": min(run_limit - LEASE, START),
        "continued": run_limit - LEASE - 20,
        "started again": run_limit - LEASE - 20,
        "cancel asked": GRACE,
        "ended": None,
    }


async def test_cancel_never_extends_a_limit(world, clock):
    held = await world.running(timeout_seconds=100)
    await keep_alive(world, clock, held, 80)
    limit = await world.limit(held.attempt_id)

    await world.cancel(held.attempt_id)

    assert await world.limit(held.attempt_id) == limit == clock.now + timedelta(seconds=20)
    await clock.forward(20)
    await world.sweep()
    assert await world.end(held.attempt_id) == ("timed_out", "timeout", False)


async def test_cancel_of_a_started_attempt_whose_start_comes_after_it_keeps_the_earlier_limit(
    world, clock
):
    held = await world.leased(timeout_seconds=10)
    await world.cancel(held.attempt_id)

    await held.start()

    assert await world.end(held.attempt_id) == ("cancelled", "cancelled", True)
