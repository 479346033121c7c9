"""Why does it wait? The truest reason first, and how every runner of its kind stands to it."""

import pytest

from tests.lifecycle.world import AGAIN, new_key

LEASE = 30


async def nearest(world, attempt_id):
    return {
        one["runner_id"]: one["obstacle"]
        for one in (await world.placement(attempt_id))["nearest_runners"]
    }


async def test_nothing_of_its_kind_is_registered(world):
    attempt_id = await world.create()
    await world.runner(AGAIN)

    found = await world.placement(attempt_id)

    assert [one["reason"] for one in found["reasons"]] == ["no_runner_of_this_kind"]
    assert (found["runner_counts"], found["nearest_runners"]) == ({}, [])


OBSTACLES = {
    "capability": {"capabilities": ["ssh.file.copy"]},
    "zone": {"zone": "west"},
    "labels": {"zone": "east", "labels": {"disk": "slow"}},
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_no_runner_has_what_it_demands(world, obstacle):
    placement = {"zone": "east", "labels": {"disk": "fast"}}
    attempt_id = await world.create(placement=placement)
    runner = await world.runner(**OBSTACLES[obstacle])

    found = await world.placement(attempt_id)

    assert found["reasons"][0]["reason"] == "no_runner_matches"
    assert found["runner_counts"] == {obstacle: 1}
    assert found["nearest_runners"][0]["runner_id"] == runner.id
    assert found["nearest_runners"][0]["sentence"]
    assert await runner.claim_all() == []


async def take_all(world, clock, runner):
    await world.create(priority=0)
    await runner.claim()


async def drain(world, clock, runner):
    await world.operator.call("POST", f"/v1/runners/{runner.id}:drain")


async def fall_silent(world, clock, runner):
    await clock.forward(4 * LEASE)


async def be_unhealthy(world, clock, runner):
    await runner.call(
        "PUT",
        f"/v1/runners/{runner.id}/status",
        json={
            "session_id": runner.session_id,
            "sequence": 1,
            "status": "unhealthy",
            "capacity_total": 1,
        },
    )


async def give_it_back(world, clock, runner):
    await (await runner.claim()).post("release")


UNAVAILABLE = {
    "full": take_all,
    "draining": drain,
    "offline": fall_silent,
    "unhealthy": be_unhealthy,
    "backing_off": give_it_back,
}


@pytest.mark.parametrize("obstacle", UNAVAILABLE)
async def test_every_runner_that_could_take_it_is_not_available(world, clock, obstacle):
    attempt_id = await world.create()
    runner = await world.runner(capacity_total=1)
    await UNAVAILABLE[obstacle](world, clock, runner)

    found = await world.placement(attempt_id)

    assert [one["reason"] for one in found["reasons"]] == ["no_matching_runner_is_available"]
    assert found["runner_counts"] == {obstacle: 1}


async def test_runner_may_take_it_and_only_has_to_ask(world):
    attempt_id = await world.create()
    runner = await world.runner()

    found = await world.placement(attempt_id)

    assert [one["reason"] for one in found["reasons"]] == ["waiting_for_a_runner_to_ask"]
    assert found["position"] == "1"
    assert (await runner.claim()).attempt_id == attempt_id


async def test_twenty_nearest_runners_are_named_and_all_are_counted(world):
    attempt_id = await world.create(placement={"zone": "east"})
    for _ in range(22):
        await world.runner(zone="west")
    could = await world.runner(zone="east")

    found = await world.placement(attempt_id)

    assert found["runner_counts"] == {"none": 1, "zone": 22}
    assert len(found["nearest_runners"]) == 20
    assert found["nearest_runners"][0]["runner_id"] == could.id


async def test_position_counts_those_that_go_first(world, clock):
    ids = []
    for priority in (100, 50, 100):
        ids.append(await world.create(priority=priority))
        await clock.forward(1)

    positions = [(await world.placement(one))["position"] for one in ids]

    assert positions == ["2", "1", "3"]


async def test_position_is_counted_up_to_a_limit_and_said_to_be_beyond_it(world, monkeypatch):
    for module in ("app.store.placements", "app.api.operator"):
        monkeypatch.setattr(f"{module}.MAX_POSITION", 3)
    for _ in range(5):
        await world.create(priority=1)
    last = await world.create()

    assert (await world.placement(last))["position"] == "3+"


async def test_its_key_is_held_by_an_attempt_at_work(world):
    key = new_key()
    held = await world.running(concurrency_key=key)
    waiting = await world.create(concurrency_key=key)

    found = await world.placement(waiting)

    assert found["reasons"][0]["reason"] == "concurrency_key_held"
    assert f"{held.attempt_id} is running" in found["reasons"][0]["sentence"]
    assert found["hold"]["attempt_id"] == held.attempt_id
    assert found["hold"]["attempt_ended_at"] is None
    assert found["position"] is None


async def test_its_key_is_held_beyond_an_end_without_word(world, clock):
    key = new_key()
    held = await world.running(concurrency_key=key)
    waiting = await world.create(concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()

    found = await world.placement(waiting)

    assert found["reasons"][0]["reason"] == "concurrency_key_held"
    assert "without its runner's word" in found["reasons"][0]["sentence"]
    assert found["hold"]["attempt_id"] == held.attempt_id
    assert found["hold"]["attempt_ended_at"] is not None


async def test_those_behind_in_a_line_are_told_who_is_first_and_why_that_one_waits(world, clock):
    key = new_key()
    first = await world.create(concurrency_key=key, placement={"zone": "nowhere"})
    await clock.forward(1)
    second = await world.create(concurrency_key=key)
    await world.runner()

    found = await world.placement(second)

    [behind, *_] = found["reasons"]
    assert behind["reason"] == "behind_in_line_for_key"
    assert first in behind["sentence"]
    assert "No runner of its kind has what it demands." in behind["sentence"]
    assert await world.reasons(first) == ["no_runner_matches"]


async def test_those_behind_in_the_line_of_a_held_key_are_told_both(world, clock):
    key = new_key()
    await world.running(concurrency_key=key)
    first = await world.create(concurrency_key=key)
    await clock.forward(1)
    second = await world.create(concurrency_key=key)

    assert (await world.reasons(first))[0] == "concurrency_key_held"
    assert (await world.reasons(second))[:2] == ["concurrency_key_held", "behind_in_line_for_key"]


async def test_key_of_another_kind_of_runner_is_explained_by_that_kind(world, clock):
    key = new_key()
    first = await world.create(AGAIN, concurrency_key=key)
    await clock.forward(1)
    second = await world.create(concurrency_key=key)
    await world.runner()

    [behind, *_] = (await world.placement(second))["reasons"]

    assert first in behind["sentence"]
    assert "No runner of its kind is registered." in behind["sentence"]


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_wait_for_a_continuation_is_explained_like_a_queue(world, clock, started):
    held = await (world.running if started else world.leased)(AGAIN, concurrency_key=new_key())
    await clock.forward(4 * LEASE)
    await world.sweep()

    found = await world.placement(held.attempt_id)

    assert found["status"] == ("running" if started else "leased")
    assert [one["reason"] for one in found["reasons"]] == ["no_matching_runner_is_available"]
    assert found["position"] == "1"


async def test_what_does_not_wait_is_not_explained(world):
    held = await world.leased()
    working = await world.reasons(held.attempt_id)
    await world.cancel(held.attempt_id)
    await held.start()

    assert working == ["held_by_a_runner"]
    assert await world.reasons(held.attempt_id) == ["ended"]
