"""Heartbeats: each renews; only a newer one says something."""

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.lifecycle.world import AGAIN, refusal
from tests.store.sweeps import until_blocked

LEASE = 30


async def beats(world, held):
    return await world.control.list_of(held.attempt_id, "heartbeats")


async def lease_of(world, held):
    return (await world.control.list_of(held.attempt_id, "leases"))[-1]


@pytest.mark.parametrize("sequence", [5, 4, 1], ids=["equal", "older", "much_older"])
async def test_beat_that_is_not_newer_renews_and_says_nothing(world, clock, sequence):
    held = await world.running()
    held.sequence = 4
    await held.beat(phase="executing", progress_percent=50)
    before = await lease_of(world, held)
    types = await world.control.event_types(held.attempt_id)
    await clock.forward(10)

    held.sequence = sequence - 1
    answer = await held.beat(phase="completing", progress_percent=10, message="old news")

    after = await lease_of(world, held)
    assert (answer.status_code, answer.json()["action"]) == (200, "continue")
    assert after["expires_at"] > before["expires_at"]
    assert after | {"expires_at": None} == before | {"expires_at": None}
    assert await world.control.event_types(held.attempt_id) == types
    assert len(await beats(world, held)) == 1


async def test_older_beat_that_had_to_wait_for_its_lease_says_nothing_either(world, sql):
    held = await world.running()
    held.sequence = 4
    await held.beat(phase="executing")
    held.sequence = 2
    async with sql.transaction():
        await sql.execute("SELECT FROM runner_leases FOR UPDATE")
        waiting = asyncio.create_task(held.beat(phase="completing"))
        await until_blocked(sql)
    answer = await waiting

    assert answer.status_code == 200
    assert (await lease_of(world, held))["phase"] == "executing"


async def test_newer_beat_is_recorded_and_a_new_phase_is_an_event(world):
    held = await world.running()

    await held.beat(phase="pulling_artifacts")
    await held.beat(phase="pulling_artifacts", progress_percent=1)
    await held.beat(phase="executing")
    await held.beat()

    phases = [
        event["payload"]["phase"]
        for event in await world.control.events(held.attempt_id)
        if event["event_type"] == "heartbeat"
    ]
    assert phases == ["pulling_artifacts", "executing"]
    assert len(await beats(world, held)) == 4


async def test_beat_of_another_session_does_not_renew(world, clock):
    held = await world.running()
    before = await lease_of(world, held)
    await clock.forward(10)

    answer = await held.beat(session_id=str(uuid4()))

    assert refusal(answer) == (409, "session-replaced", "stop")
    assert await lease_of(world, held) == before


async def test_beat_with_another_token_does_not_renew(world, clock):
    held = await world.running()
    before = await lease_of(world, held)
    await clock.forward(10)

    body = {"session_id": held.runner.session_id, "sequence": 1, "phase": "executing"}
    answer = await held.post("heartbeat", body, token="lt_somebody_elses")

    assert (answer.status_code, answer.json()["reason"]) == (403, "lease-token-invalid")
    assert await lease_of(world, held) == before


@pytest.mark.parametrize("started", [False, True], ids=["leased", "running"])
@pytest.mark.parametrize("verb", ["start", "heartbeat", "complete", "release"])
async def test_no_command_is_taken_with_another_leases_token(world, started, verb):
    held = await (world.running(AGAIN) if started else world.leased(AGAIN))
    other = await world.leased(AGAIN)
    before = await world.row(held.attempt_id), await lease_of(world, held)
    body = {"session_id": held.runner.session_id, "sequence": 9, "phase": "executing"}
    bodies = {"heartbeat": body, "complete": {"outcome": "succeeded"}}

    answer = await held.post(verb, bodies.get(verb), token=other.token)

    assert (answer.status_code, answer.json()["reason"]) == (403, "lease-token-invalid")
    assert (await world.row(held.attempt_id), await lease_of(world, held)) == before


async def test_beats_never_shorten_a_lease(world, clock, pusher):
    held = await world.running()
    before = await lease_of(world, held)
    data = {
        "lease_id": held.id,
        "lease_token": held.token,
        "session_id": held.runner.session_id,
        "sequence": 1,
    }

    answer = await pusher.push("lease.heartbeat", data, publishTime="2020-01-01T00:00:00Z")

    assert answer.status_code == 204
    assert await lease_of(world, held) == before
    assert len(await beats(world, held)) == 1


async def test_beat_does_not_extend_the_start_timeout(world, clock):
    held = await world.leased()
    limit = await world.limit(held.attempt_id)
    await clock.forward(10)

    await held.beat(phase="pulling_artifacts")

    assert await world.limit(held.attempt_id) == limit


@pytest.mark.parametrize("before_start", [False, True])
async def test_beat_before_the_start_renews(world, clock, before_start):
    held = await (world.leased(AGAIN) if before_start else world.running(AGAIN))
    await clock.forward(10)

    answer = await held.beat()

    assert answer.json()["attempt_status"] == ("leased" if before_start else "running")
    expires = await world.sql.fetchval(
        "SELECT expires_at FROM runner_leases WHERE id = $1", UUID(held.id)
    )
    assert (expires - clock.now).total_seconds() == LEASE


async def test_answers_tell_the_runner_its_cadence(world):
    held = await world.running()

    told = (await held.beat()).json()

    assert (told["lease_seconds"], told["heartbeat_every_seconds"]) == (30, 10)


async def test_many_beats_at_once_are_all_counted(world):
    held = await world.running()

    answers = await asyncio.gather(
        *(held.beat(phase=phase) for phase in ("executing", "completing") for _ in range(10))
    )

    lease = await lease_of(world, held)
    assert {answer.status_code for answer in answers} == {200}
    assert await world.sql.fetchval("SELECT last_sequence FROM runner_leases") == 20
    assert lease["phase"] == "completing"
