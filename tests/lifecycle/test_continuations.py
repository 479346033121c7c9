"""What follows when a lease expires: another runner where that is safe, otherwise the end."""

import pytest

from tests.lifecycle.world import AGAIN, ONCE, refusal

CLAIM_GRACE, LEASE = 15, 30


async def test_lease_lives_for_the_claim_grace_until_its_first_sign(world, clock):
    held = await world.leased()

    await clock.forward(CLAIM_GRACE - 1)
    early = await world.sweep()
    await clock.forward(1)
    on_time = await world.sweep()

    assert (early, on_time) == (0, 1)
    assert await world.leases(held.attempt_id) == ["expired"]


@pytest.mark.parametrize("sign", ["heartbeat", "start"])
async def test_first_sign_gives_the_lease_its_full_time(world, clock, sign):
    held = await world.leased()
    await clock.forward(CLAIM_GRACE - 1)

    await (held.beat() if sign == "heartbeat" else held.start())
    await clock.forward(LEASE - 1)
    early = await world.sweep()
    await clock.forward(1)

    assert early == 0
    assert await world.sweep() == 1


async def test_log_chunk_is_a_sign_of_life(world, clock):
    held = await world.running()
    await clock.forward(LEASE - 1)

    await held.log(b"still here\n", 0)
    await clock.forward(LEASE - 1)

    assert await world.sweep() == 0
    assert await world.leases(held.attempt_id) == ["active"]


@pytest.mark.parametrize("job_type", [ONCE, AGAIN, "opentofu.apply"])
async def test_expired_lease_that_never_started_goes_to_another_runner(world, clock, job_type):
    held = await world.leased(job_type)
    await clock.forward(CLAIM_GRACE)
    await world.sweep()

    other = await (await world.runner(job_type)).start()

    assert other.attempt_id == held.attempt_id
    assert await world.control.event_types(held.attempt_id) == [
        "created",
        "leased",
        "lease_expired",
        "leased",
        "started",
    ]
    assert (await other.complete()).status_code == 200
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_expired_lease_that_never_started_keeps_the_attempt_from_that_runner(world, clock):
    held = await world.leased()
    await clock.forward(CLAIM_GRACE)
    await world.sweep()

    await clock.forward(9)
    early = await held.runner.claim_all()
    await clock.forward(1)

    assert early == []
    assert len(await held.runner.claim_all()) == 1


async def test_started_job_that_must_not_be_begun_again_is_lost_with_its_runner(world, clock):
    held = await world.running()

    await clock.forward(LEASE)
    await world.sweep()

    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)
    assert (await world.control.event_types(held.attempt_id))[-2:] == ["lease_expired", "lost"]
    assert await (await world.runner()).claim_all() == []


async def test_started_job_that_may_be_begun_again_goes_on_up_to_three_started_leases(world, clock):
    held = await world.running(AGAIN)
    for _ in range(2):
        await clock.forward(LEASE)
        await world.sweep()
        assert await world.control.status(held.attempt_id) == "running"
        await (await world.runner(AGAIN)).start()

    await clock.forward(LEASE)
    await world.sweep()

    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)
    assert await world.leases(held.attempt_id) == ["expired"] * 3


async def test_unstarted_leases_do_not_count_to_the_three(world, clock):
    held = await world.running(AGAIN, timeout_seconds=86_400)
    for number in range(5):
        await clock.forward(LEASE)
        await world.sweep()
        await clock.forward(300)
        other = await (await world.runner(AGAIN)).claim()
        if number % 2:
            await other.post("release")
    await clock.forward(LEASE)
    await world.sweep()
    await clock.forward(300)

    for _ in range(2):
        assert await world.control.status(held.attempt_id) == "running"
        await (await world.runner(AGAIN)).start()
        await clock.forward(LEASE)
        await world.sweep()

    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", False)
    assert len(await world.leases(held.attempt_id)) == 8


async def test_continuation_writes_no_second_start_and_keeps_the_first_time(world, clock):
    first = await world.running(AGAIN)
    began = (await world.row(first.attempt_id))["started_at"]
    await clock.forward(LEASE)
    await world.sweep()
    second = await (await world.runner(AGAIN)).claim()
    await clock.forward(5)

    answer = await second.start()

    row = await world.row(first.attempt_id)
    [_, lease] = await world.control.list_of(first.attempt_id, "leases")
    assert answer.json()["action"] == "continue"
    assert (second.continuation, second.attempt["status"]) == (True, "running")
    assert row["started_at"] == began
    assert lease["started_at"] == clock.now.isoformat().replace("+00:00", "Z")
    assert await world.control.event_types(first.attempt_id) == [
        "created",
        "leased",
        "started",
        "lease_expired",
        "leased",
    ]
    leased = (await world.control.events(first.attempt_id))[-1]["payload"]
    assert (leased["lease_number"], leased["continuation"]) == (2, True)


async def test_repeated_start_is_answered_alike_and_writes_nothing_more(world, clock):
    held = await world.running()
    before = await world.row(held.attempt_id)
    await clock.forward(3)

    again = await held.start()

    assert (again.status_code, again.json()["action"]) == (200, "continue")
    after = dict(await world.row(held.attempt_id))
    ignored = {"last_feed_xid": before["last_feed_xid"]}
    assert after | ignored == dict(before)


async def test_completion_before_the_start_makes_both_moves(world):
    held = await world.leased()

    answer = await held.complete(result={"exit_code": 0})

    assert answer.status_code == 200
    assert await world.control.event_types(held.attempt_id) == [
        "created",
        "leased",
        "started",
        "succeeded",
    ]
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_completion_of_a_continuation_before_its_start_marks_that_it_started(world, clock):
    await world.running(AGAIN)
    await clock.forward(LEASE)
    await world.sweep()
    second = await (await world.runner(AGAIN)).claim()

    answer = await second.complete()

    [_, lease] = await world.control.list_of(second.attempt_id, "leases")
    assert answer.status_code == 200
    assert (lease["status"], lease["started_at"] is None) == ("released", False)
    assert (await world.control.event_types(second.attempt_id)).count("started") == 1


async def test_completion_after_a_silence_counts_while_nobody_has_noticed(world, clock):
    held = await world.running()
    await clock.forward(10 * LEASE)

    answer = await held.complete()

    assert answer.status_code == 200
    assert await world.sweep() == 0
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_heartbeat_after_the_completion_changes_nothing(world, clock):
    held = await world.running()
    await held.beat(phase="executing", progress_percent=10)
    await held.complete()
    before = await world.row(held.attempt_id)
    leases = await world.control.list_of(held.attempt_id, "leases")

    answers = [await held.beat(phase="completing", progress_percent=99) for _ in range(3)]
    await clock.forward(10 * LEASE)
    await world.sweep()

    assert {refusal(answer) for answer in answers} == {(409, "attempt-ended", "stop")}
    assert await world.row(held.attempt_id) == before
    assert await world.control.list_of(held.attempt_id, "leases") == leases
    assert len(await world.control.list_of(held.attempt_id, "heartbeats")) == 1


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled", "timed_out"])
async def test_same_completion_again_is_answered_alike_and_another_is_refused(world, outcome):
    held = await world.running()
    others = {"succeeded", "failed", "cancelled", "timed_out"} - {outcome}
    first = await held.complete(outcome)
    before = await world.row(held.attempt_id)

    again = await held.complete(outcome)
    different = [await held.complete(other) for other in sorted(others)]
    with_a_result = await held.complete(outcome, result={"exit_code": 7})

    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert again.json() == first.json()
    assert {answer.status_code for answer in [*different, with_a_result]} == {409}
    assert with_a_result.json()["attempt"]["status"] == outcome
    assert await world.row(held.attempt_id) == before
