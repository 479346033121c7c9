"""Cancel: at once where nothing runs, otherwise asked for, waited for, and at last taken."""

import asyncio
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.commands import cancels
from app.domain.commands import CancelAttempt
from tests.lifecycle.world import AGAIN, ONCE, refusal
from tests.store.sweeps import until_blocked

GRACE = 60


async def test_queued_attempt_is_cancelled_at_once(world):
    attempt_id = await world.create()

    answer = await world.cancel(attempt_id, "not needed")

    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert await world.end(attempt_id) == ("cancelled", "cancelled", True)
    assert await world.control.event_types(attempt_id) == [
        "created",
        "cancel_requested",
        "cancelled",
    ]
    assert await (await world.runner()).claim_all() == []


async def test_leased_attempt_is_only_asked_to_stop(world):
    held = await world.leased()

    answer = await world.cancel(held.attempt_id, "superseded")

    assert (answer.status_code, answer.json()["status"]) == (200, "leased")
    assert answer.json()["cancel_reason"] == "superseded"
    beaten = (await held.beat()).json()
    assert (beaten["action"], beaten["cancel_reason"]) == ("cancel", "superseded")


async def test_running_attempt_is_only_asked_to_stop_and_ends_by_its_runner(world):
    held = await world.running()

    asked = await world.cancel(held.attempt_id)
    told = (await held.beat()).json()["action"]
    completed = await held.complete("cancelled")

    assert (asked.json()["status"], told, completed.status_code) == ("running", "cancel", 200)
    assert await world.end(held.attempt_id) == ("cancelled", "cancelled", True)


async def test_running_attempt_that_was_quicker_than_its_cancel_keeps_its_outcome(world):
    held = await world.running()
    await world.cancel(held.attempt_id)

    completed = await held.complete("succeeded")

    assert completed.status_code == 200
    assert await world.end(held.attempt_id) == ("succeeded", None, True)


async def test_start_with_a_cancel_pending_runs_and_is_cancelled_and_nothing_begins(world):
    held = await world.leased()
    await world.cancel(held.attempt_id)

    answer = await held.start()

    assert refusal(answer) == (409, "cancelled", "stop")
    assert await world.end(held.attempt_id) == ("cancelled", "cancelled", True)
    assert await world.control.event_types(held.attempt_id) == [
        "created",
        "leased",
        "cancel_requested",
        "started",
        "cancelled",
    ]
    assert await world.leases(held.attempt_id) == ["released"]


async def test_repeated_start_after_a_cancel_is_told_to_stop_and_does_not_end_the_work(world):
    held = await world.running()
    await world.cancel(held.attempt_id)

    answer = await held.start()

    assert refusal(answer) == (409, "cancelled", "stop")
    assert await world.control.status(held.attempt_id) == "running"


async def test_continuation_started_with_a_cancel_pending_is_cancelled_without_a_second_start(
    world, clock
):
    first = await world.running(AGAIN)
    await clock.forward(31)
    await world.sweep()
    second = await (await world.runner(AGAIN)).claim()
    await world.cancel(first.attempt_id)

    answer = await second.start()

    assert refusal(answer) == (409, "cancelled", "stop")
    assert await world.end(first.attempt_id) == ("cancelled", "cancelled", False)
    assert (await world.control.event_types(first.attempt_id)).count("started") == 1


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_cancel_ignored_past_the_grace_takes_the_lease_away(world, clock, started):
    held = await (world.running() if started else world.leased())
    await world.cancel(held.attempt_id)

    for _ in range(5):
        await clock.forward(GRACE / 5 - 1)
        await held.beat()
        assert await world.sweep() == 0
    await clock.forward(6)
    ended = await world.sweep()

    assert ended == 1
    assert await world.end(held.attempt_id) == ("lost", "cancelled", not started)
    assert await world.leases(held.attempt_id) == ["revoked"]
    assert refusal(await held.beat()) == (409, "lease-revoked", "stop")
    assert (await world.control.event_types(held.attempt_id))[-2:] == ["lease_revoked", "lost"]


@pytest.mark.parametrize("job_type", [ONCE, AGAIN])
@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_cancelled_attempt_whose_lease_expires_is_never_handed_out_again(
    world, clock, job_type, started
):
    held = await (world.running(job_type) if started else world.leased(job_type))
    await world.cancel(held.attempt_id)

    await clock.forward(31)
    await world.sweep()

    assert await world.end(held.attempt_id) == ("lost", "cancelled", not started)
    assert await world.leases(held.attempt_id) == ["expired"]
    assert await (await world.runner(job_type)).claim_all() == []


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
async def test_attempt_that_waits_for_a_continuation_is_lost_by_its_cancel_at_once(
    world, clock, started
):
    held = await (world.running(AGAIN) if started else world.leased(AGAIN))
    await clock.forward(31)
    await world.sweep()

    answer = await world.cancel(held.attempt_id)

    assert (answer.status_code, answer.json()["status"]) == (200, "lost")
    assert await world.end(held.attempt_id) == ("lost", "cancelled", not started)
    assert (await world.control.event_types(held.attempt_id))[-2:] == ["cancel_requested", "lost"]


async def test_cancel_that_lost_an_attempt_waiting_for_a_continuation_may_be_repeated(world, clock):
    held = await world.leased()
    await clock.forward(16)
    await world.sweep()

    answers = [await world.cancel(held.attempt_id) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()


@pytest.mark.parametrize("state", ["queued", "leased", "running", "cancelled_by_its_runner"])
async def test_repeated_cancel_changes_nothing_and_is_answered_alike(world, clock, state):
    if state == "queued":
        attempt_id = await world.create()
    else:
        held = await (world.leased() if state == "leased" else world.running())
        attempt_id = held.attempt_id
    first = await world.cancel(attempt_id, "first")
    if state == "cancelled_by_its_runner":
        await held.complete("cancelled")
        first = await world.cancel(attempt_id, "first")
    before = await world.row(attempt_id)
    await clock.forward(3)

    second = await world.cancel(attempt_id, "second")

    assert (second.status_code, second.json()) == (200, first.json())
    assert await world.row(attempt_id) == before


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "timed_out"])
async def test_cancel_after_another_end_is_refused_and_says_how_it_ended(world, outcome):
    held = await world.running()
    await held.complete(outcome)
    before = await world.row(held.attempt_id)

    answer = await world.cancel(held.attempt_id)

    assert answer.status_code == 409
    assert answer.json()["reason"] == "already-terminal"
    assert answer.json()["attempt"]["status"] == outcome
    assert await world.row(held.attempt_id) == before


async def test_cancel_after_an_attempt_was_lost_is_refused(world, clock):
    held = await world.running()
    await clock.forward(31)
    await world.sweep()

    answer = await world.cancel(held.attempt_id)

    assert (answer.status_code, answer.json()["reason"]) == (409, "already-terminal")


async def test_cancel_of_nothing_is_not_found(world):
    answer = await world.cancel(str(uuid4()))

    assert (answer.status_code, answer.json()["reason"]) == (404, "attempt-not-found")


async def test_rest_of_an_operation_is_cancelled_though_a_whole_batch_ended_meanwhile(
    world, database_url, monkeypatch
):
    """The first batch is looked at, and then ends before it is locked."""
    monkeypatch.setattr("app.commands.cancels._OPERATION_BATCH", 2)
    operation = str(uuid4())
    ids = sorted([await world.create(operation_id=operation) for _ in range(4)])
    quicker = await asyncpg.connect(database_url)

    async with quicker.transaction():
        words = [CancelAttempt(attempt_id=UUID(one), reason="quicker") for one in ids[:2]]
        await cancels.cancel(quicker, world.services.rules, words)
        path = f"/v1/operations/{operation}:cancel"
        asked = asyncio.create_task(world.control.call("POST", path, json={}))
        await until_blocked(world.sql)
    await quicker.close()

    assert (await asked).json()["cancelled"] == 2
    assert [await world.control.status(one) for one in ids] == ["cancelled"] * 4


async def test_operation_is_cancelled_with_all_its_open_attempts(world, clock):
    operation = str(uuid4())
    done = await world.running(operation_id=operation)
    await done.complete()
    waiting = await world.leased(AGAIN, operation_id=operation)
    await clock.forward(16)
    await world.sweep()
    running = await world.running(operation_id=operation)
    leased = await world.leased(operation_id=operation)
    queued = await world.create(operation_id=operation)
    other = await world.create()

    answers = [
        await world.control.call("POST", f"/v1/operations/{operation}:cancel", json={})
        for _ in range(2)
    ]

    assert [answer.json()["cancelled"] for answer in answers] == [4, 0]
    found = {
        name: (await world.row(attempt_id))["status"]
        for name, attempt_id in {
            "done": done.attempt_id,
            "waiting": waiting.attempt_id,
            "running": running.attempt_id,
            "leased": leased.attempt_id,
            "queued": queued,
            "other": other,
        }.items()
    }
    assert found == {
        "done": "succeeded",
        "waiting": "lost",
        "running": "running",
        "leased": "leased",
        "queued": "cancelled",
        "other": "queued",
    }


async def test_cancel_reaches_a_runner_that_waits_for_signals(world):
    held = await world.running()
    await world.cancel(held.attempt_id, "stop it")

    answer = await held.runner.call(
        "GET",
        f"/v1/leases/{held.id}/signals",
        params={"wait_seconds": 20},
        headers={"Lease-Token": held.token},
    )

    assert answer.json()["action"] == "cancel"
