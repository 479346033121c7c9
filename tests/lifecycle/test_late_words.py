"""The late word: kept once, never an outcome, and what it settles."""

import pytest

from tests.lifecycle.world import AGAIN, ONCE, new_key, refusal

LEASE = 30


async def lost(world, clock, job_type=ONCE, **fields):
    """A started lease whose attempt was lost with it."""
    held = await world.running(job_type, **fields)
    await clock.forward(LEASE)
    await world.sweep()
    assert await world.control.status(held.attempt_id) == "lost"
    return held


async def test_late_completion_is_refused_and_kept_as_an_event(world, clock):
    held = await lost(world, clock)

    answer = await held.complete(result={"exit_code": 0})

    assert refusal(answer) == (409, "lease-expired", "stop")
    assert answer.json()["attempt"]["status"] == "lost"
    last = (await world.control.events(held.attempt_id))[-1]
    assert last["event_type"] == "late_result"
    assert last["payload"]["outcome"] == "succeeded"
    assert last["payload"]["result"] == {"exit_code": 0}
    assert last["payload"]["lease_number"] == 1
    assert await world.end(held.attempt_id) == ("lost", "heartbeat_lost", True)


async def test_late_completion_is_kept_once_whatever_is_said_afterwards(world, clock):
    held = await lost(world, clock)
    await held.complete("succeeded")
    before = await world.row(held.attempt_id)

    answers = [await held.complete("succeeded"), await held.complete("failed")]

    assert {refusal(answer) for answer in answers} == {(409, "lease-expired", "stop")}
    assert await world.row(held.attempt_id) == before
    assert (await world.control.event_types(held.attempt_id)).count("late_result") == 1


@pytest.mark.parametrize("verb", ["start", "heartbeat", "release"])
async def test_no_other_word_than_a_completion_is_kept(world, clock, verb):
    held = await lost(world, clock)
    before = await world.row(held.attempt_id)
    commands = {
        "start": held.start,
        "heartbeat": lambda: held.beat(phase="executing"),
        "release": lambda: held.post("release"),
    }

    answer = await commands[verb]()

    assert refusal(answer) == (409, "lease-expired", "stop")
    assert await world.row(held.attempt_id) == before


async def test_late_completion_with_another_token_is_not_kept(world, clock):
    held = await lost(world, clock)

    answer = await held.post("complete", {"outcome": "succeeded"}, token="lt_somebody_elses")

    assert (answer.status_code, answer.json()["reason"]) == (403, "lease-token-invalid")
    assert "late_result" not in await world.control.event_types(held.attempt_id)


async def test_late_word_of_a_timed_out_attempt_confirms_that_it_stopped(world, clock):
    held = await world.running(timeout_seconds=20)
    await clock.forward(20)
    await world.sweep()

    answer = await held.complete("failed")

    assert refusal(answer) == (409, "lease-revoked", "stop")
    assert await world.end(held.attempt_id) == ("timed_out", "timeout", True)


async def test_late_word_under_a_lease_that_never_started_is_kept_and_settles_nothing(world, clock):
    held = await world.leased()
    await clock.forward(15)
    await world.sweep()

    answer = await held.complete()

    assert refusal(answer) == (409, "lease-expired", "stop")
    assert (await world.control.event_types(held.attempt_id))[-1] == "late_result"
    assert await world.control.status(held.attempt_id) == "leased"
    other = await (await world.runner()).start()
    await other.complete()
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_late_word_before_the_attempt_ends_counts_at_its_end(world, clock):
    first = await world.running(AGAIN)
    await clock.forward(LEASE)
    await world.sweep()
    await first.complete("failed")
    second = await (await world.runner(AGAIN)).start()

    await second.complete()

    assert await world.end(first.attempt_id) == ("succeeded", None, True)


async def test_stop_is_confirmed_only_by_the_words_of_all_started_leases(world, clock):
    held = [await world.running(AGAIN)]
    for _ in range(2):
        await clock.forward(LEASE)
        await world.sweep()
        held.append(await (await world.runner(AGAIN)).start())
    await held[2].complete()
    seen = [await world.end(held[0].attempt_id)]

    for lease in held[:2]:
        await lease.complete("failed")
        seen.append(await world.end(held[0].attempt_id))

    assert seen == [
        ("succeeded", None, False),
        ("succeeded", None, False),
        ("succeeded", None, True),
    ]


async def test_late_word_frees_the_key_that_its_own_lease_held(world, clock):
    key = new_key()
    held = await lost(world, clock, concurrency_key=key)
    waiting = await world.create(concurrency_key=key)
    runner = await world.runner()
    assert await world.holder(key) == held.attempt_id
    assert await runner.claim_all() == []

    await held.complete("failed")

    assert await world.holder(key) is None
    assert (await runner.claim()).attempt_id == waiting


async def test_late_word_of_an_earlier_lease_does_not_free_the_key_of_the_current_one(world, clock):
    key = new_key()
    first = await world.running(AGAIN, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    await (await world.runner(AGAIN)).start()

    await first.complete()

    assert await world.holder(key) == first.attempt_id


async def test_late_word_of_an_attempt_that_goes_on_leaves_it_its_key(world, clock):
    key = new_key()
    first = await world.running(AGAIN, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()

    await first.complete()

    assert await world.control.status(first.attempt_id) == "running"
    assert await world.holder(key) == first.attempt_id


async def test_key_stays_held_while_an_earlier_runner_of_the_attempt_may_still_be_at_work(
    world, clock
):
    key = new_key()
    first = await world.running(AGAIN, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    second = await (await world.runner(AGAIN)).start()
    await clock.forward(LEASE)
    await world.sweep()
    third = await (await world.runner(AGAIN)).start()
    await clock.forward(LEASE)
    await world.sweep()
    seen = []

    for lease in (third, second, first):
        await lease.complete("failed")
        await world.keep_keys()
        seen.append(await world.holder(key))

    assert seen == [first.attempt_id, first.attempt_id, None]


async def test_completion_does_not_free_a_key_while_an_earlier_runner_is_silent(world, clock):
    key = new_key()
    first = await world.running(AGAIN, concurrency_key=key)
    await clock.forward(LEASE)
    await world.sweep()
    second = await (await world.runner(AGAIN)).start()

    await second.complete()
    seen = [await world.holder(key)]
    await first.complete()
    seen.append(await world.holder(key))
    await world.keep_keys()

    assert seen == [first.attempt_id, first.attempt_id]  # it was not its own lease that had the key
    assert await world.holder(key) is None


async def test_late_word_over_push_is_kept_too(world, clock, pusher):
    held = await lost(world, clock)
    data = {"lease_id": held.id, "lease_token": held.token, "outcome": "succeeded"}

    answers = [await pusher.push("lease.complete", data) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]
    assert (await world.control.event_types(held.attempt_id)).count("late_result") == 1


# --- the last lines of the log --------------------------------------------------------------------


async def expire(world, clock, held):
    await clock.forward(LEASE)
    await world.sweep()


async def complete(world, clock, held):
    await held.complete()


async def time_out(world, clock, held):
    await clock.forward(600)
    await world.sweep()


async def ignore_a_cancel(world, clock, held):
    await world.cancel(held.attempt_id)
    for _ in range(3):
        await clock.forward(20)
        await held.beat()
    await world.sweep()


async def restart(world, clock, held):
    await world.restart(held.runner)


ENDS = {one.__name__: one for one in (expire, complete, time_out, ignore_a_cancel, restart)}


@pytest.mark.parametrize("end", ENDS)
async def test_last_log_lines_are_taken_for_a_while_after_any_end_and_then_no_more(
    world, clock, end
):
    held = await world.running()
    await held.log(b"work\n", 0)
    await ENDS[end](world, clock, held)
    before = await world.row(held.attempt_id)

    await clock.forward(119)
    in_grace = await held.log(b"why it hung\n", 5)
    await clock.forward(1)
    after = await held.log(b"too late\n", 17)

    assert in_grace.status_code == 200, in_grace.text
    assert after.status_code == 409
    assert after.json()["action"] == "stop"
    log = (await world.control.read_log(held.attempt_id)).content
    assert log == b"work\nwhy it hung\n"
    assert await world.row(held.attempt_id) == before


async def test_log_lines_in_the_grace_do_not_bring_the_lease_back(world, clock):
    held = await lost(world, clock)
    [lease] = await world.control.list_of(held.attempt_id, "leases")

    await held.log(b"late\n", 0)

    assert await world.control.list_of(held.attempt_id, "leases") == [lease]


async def test_log_grace_is_of_the_leases_own_end(world, clock):
    first = await world.running(AGAIN)
    await clock.forward(LEASE)
    await world.sweep()
    second = await (await world.runner(AGAIN)).start()
    for _ in range(5):
        await clock.forward(25)
        await second.beat()

    assert (await first.log(b"old\n", 0)).json()["reason"] == "lease-expired"
    assert (await second.log(b"new\n", 0)).status_code == 200
