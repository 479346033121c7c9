"""Our own outage ends nothing, and a sudden silence of many is waited out once."""

import pytest

from tests.lifecycle.world import AGAIN, new_key

LEASE, GRACE = 30, 15


async def fleet(world, count, job_type="ssh.command.run"):
    """So many started leases that have had a beat, each of a runner of its own."""
    held = [await world.running(job_type) for _ in range(count)]
    for one in held:
        await one.beat()
    return held


async def statuses(world, held):
    return [await world.control.status(one.attempt_id) for one in held]


async def outage(world, clock, seconds):
    """Nobody could reach us for so long; then an instance is back and ticks."""
    await clock.forward(seconds, serving=False)
    await world.tick()


# --- our own outage -------------------------------------------------------------------------------


async def test_nothing_ends_while_nobody_has_ticked_for_over_three_seconds(world, clock):
    held = await world.running()
    await clock.forward(LEASE)
    await world.tick()
    await clock.forward(LEASE + 5, serving=False)

    assert await world.sweep() == 0
    assert await world.control.status(held.attempt_id) == "running"


async def test_short_gap_between_two_ticks_is_no_outage(world, clock):
    held = await world.running()
    await clock.forward(LEASE - 2)
    await outage(world, clock, 3)

    assert await world.sweep() == 1
    assert await world.control.status(held.attempt_id) == "lost"


LIMITS = {
    "lease": lambda world: world.running(),
    "claim grace": lambda world: world.leased(),
    "start": lambda world: world.leased(),
    "run": lambda world: world.running(timeout_seconds=20),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_nothing_ends_within_one_lease_after_our_outage(world, clock, limit):
    held = await LIMITS[limit](world)

    await outage(world, clock, 1000 if limit == "start" else 90)
    at_once = await world.sweep()
    await clock.forward(LEASE - 1)
    early = await world.sweep()
    await clock.forward(1)

    assert (at_once, early) == (0, 0)
    assert await world.sweep() == 1
    assert await world.leases(held.attempt_id) in (["expired"], ["revoked"])


async def test_queue_limit_waits_for_our_outage_too(world, clock):
    attempt_id = await world.create(queue_timeout_seconds=20)

    await outage(world, clock, 90)
    early = await world.sweep()
    await clock.forward(LEASE)
    await world.sweep()

    assert early == 0
    assert await world.end(attempt_id) == ("cancelled", "runner_unavailable", True)


async def test_grace_of_a_cancel_waits_for_our_outage_too(world, clock):
    held = await world.running()
    await world.cancel(held.attempt_id)

    await outage(world, clock, 90)
    early = await world.sweep()
    await held.complete("cancelled")

    assert early == 0
    assert await world.end(held.attempt_id) == ("cancelled", "cancelled", True)


async def test_key_is_not_let_go_around_our_outage(world, clock):
    key = new_key()
    await world.running(concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()

    await outage(world, clock, 400)
    early = await world.keep_keys()
    await clock.forward(LEASE)

    assert early == 0
    assert await world.keep_keys() == 1


async def test_runner_that_beats_again_after_our_outage_keeps_its_attempt(world, clock):
    held = await fleet(world, 4)

    await outage(world, clock, 3 * LEASE)
    await world.sweep()
    for one in held[:2]:
        await one.beat()
    await clock.forward(LEASE - 1)
    for one in held[:2]:
        await one.beat()
    await clock.forward(1)
    await world.sweep()

    assert await statuses(world, held) == ["running", "running", "lost", "lost"]


async def test_job_that_ended_inside_its_limit_during_our_outage_is_no_timeout(world, clock):
    held = await world.running(timeout_seconds=60)

    await outage(world, clock, 90)
    await world.sweep()
    answer = await held.complete()

    assert answer.status_code == 200
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_leases_that_lapse_right_after_our_outage_count_for_no_back_off(world, clock):
    runner = await world.runner(capacity_total=5)
    for _ in range(5):
        await world.create()
        await runner.claim()

    await outage(world, clock, 60)
    await clock.forward(LEASE)
    ended = await world.sweep()

    again = await runner.claim_all(max_leases=5)
    assert ended == 5
    assert len(again) == 5


async def test_leases_that_lapse_later_count_again(world, clock):
    held = await world.leased()
    await outage(world, clock, 60)
    await held.beat()
    await clock.forward(2 * LEASE)

    await world.sweep()

    assert await held.runner.claim_all() == []


async def test_lapses_right_after_our_outage_make_nobody_unhealthy(world, clock):
    runner = await world.runner(capacity_total=5)
    for _ in range(5):
        await world.create()
        await runner.claim()
    await outage(world, clock, 60)
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward(LEASE)

    held = await runner.claim()
    await clock.forward(GRACE)
    await world.sweep()

    shown = await world.control.call("GET", f"/v1/runners/{runner.id}")
    assert held.lease["status"] == "active"
    assert shown.json()["runner"]["status"] == "ready"


# --- a sudden silence of many ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "living", "waited"),
    [(5, 0, False), (6, 0, True), (6, 24, False), (7, 23, True)],
    ids=["five", "six", "a_fifth", "over_a_fifth"],
)
async def test_silence_of_more_than_five_and_more_than_a_fifth_is_waited_out(
    world, clock, silent, living, waited
):
    dead, alive = await fleet(world, silent), await fleet(world, living)
    await clock.forward(LEASE)
    for one in alive:
        await one.beat()

    ended = await world.sweep()

    assert ended == (0 if waited else silent)
    assert set(await statuses(world, dead)) == {"running" if waited else "lost"}
    assert set(await statuses(world, alive)) <= {"running"}


async def test_mass_silence_is_seen_at_its_first_expiry(world, clock):
    early, late = await fleet(world, 1), []
    await clock.forward(5)
    late = await fleet(world, 9)
    await clock.forward(LEASE - 5)

    await world.sweep()

    assert set(await statuses(world, early + late)) == {"running"}


async def test_mass_silence_is_waited_out_for_one_lease_and_then_those_still_silent_end(
    world, clock
):
    held = await fleet(world, 10)
    await clock.forward(LEASE)
    begun = await world.sweep()
    for one in held[:3]:
        await one.beat()

    await clock.forward(LEASE - 1)
    for one in held[:3]:
        await one.beat()
    early = await world.sweep()
    await clock.forward(1)
    ended = await world.sweep()

    assert (begun, early, ended) == (0, 0, 7)
    assert await statuses(world, held) == ["running"] * 3 + ["lost"] * 7


async def test_mass_silence_pauses_all_limits_and_keys(world, clock):
    key = new_key()
    await world.running(concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward(300 - LEASE)
    await fleet(world, 6)
    queued = await world.create(queue_timeout_seconds=LEASE)
    await clock.forward(LEASE)

    ended, freed = await world.sweep(), await world.keep_keys()

    assert (ended, freed) == (0, 0)
    assert await world.control.status(queued) == "queued"


@pytest.mark.parametrize(("leases_later", "waited"), [(9, False), (10, True)])
async def test_second_mass_silence_is_waited_out_only_after_ten_lease_times(
    world, clock, leases_later, waited
):
    await fleet(world, 6)
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward((leases_later - 2) * LEASE)
    second = await fleet(world, 6)
    await clock.forward(LEASE)

    await world.sweep()

    assert set(await statuses(world, second)) == {"running" if waited else "lost"}


async def test_leases_that_never_had_a_beat_are_no_silence(world, clock):
    held = [await world.leased(AGAIN) for _ in range(8)]
    await clock.forward(GRACE)

    assert await world.sweep() == 8
    assert set(await statuses(world, held)) == {"leased"}


async def test_two_sweeps_begin_one_pause(world, clock):
    await fleet(world, 6)
    await clock.forward(LEASE)
    await world.sweep()
    began = await world.sql.fetchval("SELECT breaker_began_at FROM service_ticks")
    await clock.forward(10)

    await world.sweep()

    assert await world.sql.fetchval("SELECT breaker_began_at FROM service_ticks") == began
