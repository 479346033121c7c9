"""Release: a lease given back, before its start at any time, after it only where that is safe."""

import pytest

from tests.lifecycle.world import AGAIN, ONCE, refusal


async def release(held, reason="the host is going down"):
    return await held.post("release", {"reason": reason})


async def test_lease_released_before_its_start_frees_the_attempt_at_once(world):
    held = await world.leased()

    answer = await release(held)
    other = await (await world.runner()).claim()

    assert (answer.status_code, answer.json()["status"]) == (200, "leased")
    assert other.attempt_id == held.attempt_id
    assert other.continuation
    assert other.lease["lease_number"] == 2
    assert await world.leases(held.attempt_id) == ["released", "active"]


async def test_event_of_a_release_says_why(world):
    held = await world.leased()

    await release(held, "no disk left")

    last = (await world.control.events(held.attempt_id))[-1]
    assert last["event_type"] == "lease_released"
    assert last["payload"]["reason"] == "no disk left"
    assert (last["payload"]["continues"], last["payload"]["started"]) == (True, False)


@pytest.mark.parametrize(("times", "seconds"), [(1, 10), (2, 20), (3, 40)])
async def test_attempt_stays_away_from_the_runner_that_gave_it_back_ever_longer(
    world, clock, times, seconds
):
    attempt_id = await world.create()
    runner = await world.runner()
    for number in range(times):
        await clock.forward(10 * 2**number)
        await release(await runner.claim())

    await clock.forward(seconds - 1)
    early = await runner.claim_all()
    await clock.forward(1)
    on_time = await runner.claim()

    assert early == []
    assert on_time.attempt_id == attempt_id


async def test_back_off_is_of_the_last_runner_only(world):
    await world.create()
    first, second = await world.runner(), await world.runner()
    await release(await first.claim())

    await release(await second.claim())

    assert await second.claim_all() == []
    assert len(await first.claim_all()) == 1


async def test_from_the_fourth_unstarted_lease_in_a_row_it_rests_from_everyone(world, clock):
    attempt_id = await world.create()
    for _ in range(4):
        await release(await (await world.runner()).claim())
    anybody = await world.runner()

    await clock.forward(79)
    early = await anybody.claim_all()
    reasons = await world.reasons(attempt_id)
    await clock.forward(1)

    assert early == []
    assert reasons[0] == "backing_off"
    assert len(await anybody.claim_all()) == 1


async def test_back_off_never_exceeds_five_minutes(world, clock):
    await world.create()
    runner = await world.runner()
    for _ in range(12):
        await release(await runner.claim())
        await clock.forward(300)

    assert len(await runner.claim_all()) == 1


async def test_start_ends_the_back_off(world, clock):
    held = await world.leased(AGAIN)
    for _ in range(3):
        await release(held)
        held = await (await world.runner(AGAIN)).claim()

    await held.start()

    row = await world.row(held.attempt_id)
    assert (row["unstarted_leases"], row["backoff_runner_id"], row["backoff_until"]) == (
        0,
        None,
        None,
    )


async def test_attempt_that_backs_off_from_a_runner_leaves_it_the_ones_behind(world, clock):
    runner = await world.runner()
    first = await world.create()
    await release(await runner.claim())
    await clock.forward(1)
    second = await world.create()

    claimed = await runner.claim_all(max_leases=5)

    assert [held.attempt_id for held in claimed] == [second]
    assert await world.control.status(first) == "leased"


async def test_repeated_release_is_answered_alike_and_changes_nothing(world, clock):
    held = await world.leased()
    await release(held)
    before = await world.row(held.attempt_id)
    await clock.forward(5)

    again = await release(held)

    assert (again.status_code, again.json()["status"]) == (200, "leased")
    assert await world.row(held.attempt_id) == before


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_repeated_release_leaves_the_next_holder_alone(world, started):
    held = await world.leased()
    await release(held)
    other = await (await world.runner()).claim()
    if started:
        await other.start()

    again = await release(held)

    assert again.status_code == 200
    assert await world.leases(held.attempt_id) == ["released", "active"]
    assert (await other.complete()).status_code == 200


@pytest.mark.parametrize("verb", ["start", "heartbeat", "complete"])
async def test_nothing_goes_on_under_a_released_lease(world, verb):
    held = await world.leased()
    await release(held)
    commands = {"start": held.start, "heartbeat": held.beat, "complete": held.complete}

    answer = await commands[verb]()

    assert refusal(answer) == (409, "lease-released", "stop")
    assert await world.control.status(held.attempt_id) == "leased"


async def test_started_job_that_may_be_begun_again_is_released_at_once_and_counts(world, clock):
    held = await world.running(AGAIN)

    answer = await release(held)
    second = await held.runner.start()
    await release(second)
    third = await held.runner.start()
    refused = await release(third)

    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    assert refusal(refused)[:2] == (409, "already-started")
    assert await world.leases(held.attempt_id) == ["released", "released", "active"]
    await clock.forward(31)
    await world.sweep()
    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)


async def test_release_after_the_start_is_a_word_so_the_stop_is_confirmed_at_the_end(world):
    held = await world.running(AGAIN)
    await release(held)
    await (await held.runner.start()).complete()

    assert await world.end(held.attempt_id) == ("succeeded", None, True)


@pytest.mark.parametrize(
    "job_type", [ONCE, "ansible.playbook.run", "kubernetes.manifest.apply", "opentofu.apply"]
)
async def test_started_job_that_must_not_be_begun_again_cannot_be_released(world, job_type):
    held = await world.running(job_type)
    before = await world.row(held.attempt_id)

    answer = await release(held)

    assert answer.status_code == 409
    assert answer.json()["reason"] == "already-started"
    assert answer.json()["attempt"]["status"] == "running"
    assert await world.row(held.attempt_id) == before
    assert (await held.complete("failed")).status_code == 200


async def test_started_job_that_is_to_be_cancelled_is_completed_and_not_released(world):
    held = await world.running()
    await world.cancel(held.attempt_id)

    answer = await release(held)

    assert answer.json()["reason"] == "already-started"
    assert (await held.complete("cancelled")).status_code == 200
    assert await world.end(held.attempt_id) == ("cancelled", "cancelled", True)


async def test_lease_released_unstarted_with_a_cancel_pending_ends_the_attempt(world):
    held = await world.leased()
    await world.cancel(held.attempt_id)

    answer = await release(held)

    assert (answer.status_code, answer.json()["status"]) == (200, "lost")
    assert await world.end(held.attempt_id) == ("lost", "cancelled", True)
    assert await world.leases(held.attempt_id) == ["released"]


async def test_release_after_the_completion_is_refused(world):
    held = await world.running()
    await held.complete()

    assert refusal(await release(held)) == (409, "attempt-ended", "stop")


async def test_release_with_another_token_is_refused(world):
    held = await world.leased()

    answer = await held.post("release", {}, token="lt_somebody_elses")

    assert (answer.status_code, answer.json()["reason"]) == (403, "lease-token-invalid")
    assert await world.leases(held.attempt_id) == ["active"]


async def test_release_over_push_does_the_same(world, pusher):
    held = await world.leased()
    data = {"lease_id": held.id, "lease_token": held.token, "reason": "over push"}

    answers = [await pusher.push("lease.release", data) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]
    assert await world.leases(held.attempt_id) == ["released"]
