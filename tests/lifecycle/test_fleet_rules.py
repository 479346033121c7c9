"""The fleet: sessions, health, drain, capacity, removal."""

from uuid import uuid4

import pytest

from tests.lifecycle.world import AGAIN, ONCE, refusal

LEASE, GRACE = 30, 15


async def shown(world, runner):
    answer = await world.control.call("GET", f"/v1/runners/{runner.id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["runner"]


async def lapse(world, clock, runner, *, leases=1):
    """The runner claims so many and starts none."""
    for _ in range(leases):
        await world.create(priority=1)
    held = await runner.claim_all(max_leases=leases)
    assert len(held) == leases
    await clock.forward(GRACE)
    await world.sweep()


# --- health ---------------------------------------------------------------------------------------


async def test_five_lapsed_claims_in_a_row_make_a_runner_unhealthy_until_a_new_session(
    world, clock
):
    runner = await world.runner()
    for _ in range(4):
        await lapse(world, clock, runner)
    still = (await shown(world, runner))["status"]
    await lapse(world, clock, runner)
    await world.create()

    nothing = await runner.claim_all(max_leases=10)
    await runner.call(
        "PUT",
        f"/v1/runners/{runner.id}/status",
        json={
            "session_id": runner.session_id,
            "sequence": 1,
            "status": "ready",
            "capacity_total": 10,
        },
    )
    ill = await shown(world, runner)
    again = await world.restart(runner)

    assert (still, nothing, ill["status"]) == ("ready", [], "unhealthy")
    assert (await shown(world, runner))["status"] == "ready"
    assert len(await again.claim_all(max_leases=10)) > 0


async def test_claims_of_which_one_lease_was_started_do_not_lapse(world, clock):
    runner = await world.runner()
    for _ in range(6):
        for _ in range(2):
            await world.create(priority=1)
        first, _ = await runner.claim_all(max_leases=2)
        await first.start()
        await first.complete()
        await clock.forward(GRACE)
        await world.sweep()

    assert (await shown(world, runner))["status"] == "ready"


async def test_a_claim_counts_once_however_many_leases_it_had(world, clock):
    runner = await world.runner()

    await lapse(world, clock, runner, leases=6)

    assert (await shown(world, runner))["status"] == "ready"


async def test_claims_of_which_one_lease_was_given_back_do_not_lapse(world, clock):
    runner = await world.runner()
    for _ in range(6):
        for _ in range(2):
            await world.create(priority=1)
        first, _ = await runner.claim_all(max_leases=2)
        await first.post("release")
        await clock.forward(GRACE)
        await world.sweep()

    assert (await shown(world, runner))["status"] == "ready"


async def test_claims_that_lapse_one_behind_the_other_count_too(world, clock):
    runner = await world.runner()
    for _ in range(12):
        await world.create()
        await runner.claim_all()
        await clock.forward(5)
        await world.sweep()

    assert (await shown(world, runner))["status"] == "unhealthy"


@pytest.mark.parametrize("times", [1, 4])
async def test_any_start_begins_the_count_anew(world, clock, times):
    runner = await world.runner()
    for _ in range(times):
        await lapse(world, clock, runner)

    await world.create(priority=1)
    held = await runner.start()
    await held.complete()
    for _ in range(4):
        await lapse(world, clock, runner)

    assert (await shown(world, runner))["status"] == "ready"


async def test_start_of_an_older_lease_makes_an_unhealthy_runner_well(world, clock):
    runner = await world.runner()
    await world.create()
    held = await runner.claim()
    for _ in range(5):
        await world.create()
        await runner.claim()
    for _ in range(3):
        await clock.forward(10)
        await held.beat()
    await world.sweep()
    ill = (await shown(world, runner))["status"]

    await held.start()

    assert ill == "unhealthy"
    assert (await shown(world, runner))["status"] == "ready"


async def test_lease_given_back_is_no_lapse(world, clock):
    runner = await world.runner()
    for _ in range(6):
        await world.create()
        await (await runner.claim()).post("release")

    assert (await shown(world, runner))["status"] == "ready"


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_type", "started", "end"),
    [
        (ONCE, False, ("leased", None, None)),
        (AGAIN, True, ("running", None, None)),
        (ONCE, True, ("lost", "heartbeat_lost", False)),
    ],
)
async def test_new_session_ends_the_leases_of_the_one_before_as_if_they_had_expired(
    world, job_type, started, end
):
    held = await (world.running(job_type) if started else world.leased(job_type))

    await world.restart(held.runner)

    assert await world.leases(held.attempt_id) == ["revoked"]
    assert await world.end(held.attempt_id) == end
    assert refusal(await held.beat()) == (409, "session-replaced", "stop")
    if end[0] != "lost":
        other = await (await world.runner(job_type)).claim()
        assert other.attempt_id == held.attempt_id


async def test_new_session_with_a_cancel_pending_ends_the_attempt(world):
    held = await world.running(AGAIN)
    await world.cancel(held.attempt_id)

    await world.restart(held.runner)

    assert await world.end(held.attempt_id) == ("lost", "cancelled", False)


async def test_same_session_again_changes_nothing(world):
    held = await world.running()

    answer = await held.runner.try_register()

    assert (answer.status_code, answer.json()["session_began"]) == (200, False)
    assert await world.leases(held.attempt_id) == ["active"]


async def test_same_session_with_another_profile_is_refused(world):
    held = await world.running()

    answer = await held.runner.try_register(zone="elsewhere")

    assert (answer.status_code, answer.json()["reason"]) == (409, "session-reused")
    assert await world.leases(held.attempt_id) == ["active"]


@pytest.mark.parametrize("verb", ["register", "claim", "report"])
async def test_session_that_was_replaced_never_comes_back(world, clock, verb):
    old = await world.runner()
    await world.restart(old)
    await world.create()
    await clock.forward(3600)
    report = {"session_id": old.session_id, "sequence": 9, "status": "ready", "capacity_total": 1}
    commands = {
        "register": old.try_register,
        "claim": old.try_claim,
        "report": lambda: old.call("PUT", f"/v1/runners/{old.id}/status", json=report),
    }

    answer = await commands[verb]()

    assert refusal(answer) == (409, "session-replaced", "stop")


async def test_more_than_three_changes_of_session_a_minute_are_contested(world, clock):
    runner = await world.runner()
    for _ in range(3):
        runner = await world.restart(runner)
    fourth = world._make_runner(id=runner.id, **runner.profile)

    refused = await fourth.try_register()
    await clock.forward(60)
    accepted = await fourth.try_register()

    assert refusal(refused)[:2] == (409, "runner-id-contested")
    assert accepted.status_code == 200


# --- repeated claims ------------------------------------------------------------------------------


async def test_repeated_claim_gives_the_same_leases_with_their_tokens(world):
    for _ in range(3):
        await world.create()
    runner = await world.runner()
    request = {"request_id": str(uuid4()), "max_leases": 2}

    first = await runner.claim_all(**request)
    again = await runner.claim_all(**request)

    assert [(held.id, held.token) for held in again] == [(held.id, held.token) for held in first]
    assert len(first) == 2


async def test_used_request_id_tells_what_became_of_its_leases_and_never_claims_anew(world):
    for _ in range(2):
        await world.create()
    runner = await world.runner()
    request = {"request_id": str(uuid4()), "max_leases": 1}
    held = await runner.claim(**request)
    await held.start()
    await held.complete()

    [again] = await runner.claim_all(**request)

    assert (again.id, again.token, again.lease["status"]) == (held.id, None, "released")
    assert await world.sql.fetchval("SELECT count(*) FROM runner_leases") == 1


# --- drain, capacity, removal ---------------------------------------------------------------------


async def test_drained_runner_keeps_its_leases_and_gets_no_more_until_it_is_resumed(world):
    runner = await world.runner()
    await world.create()
    held = await runner.start()
    await world.create()

    drained = await world.operator.call("POST", f"/v1/runners/{runner.id}:drain")
    none = await runner.claim_all()
    beaten = await held.beat()
    await runner.call(
        "PUT",
        f"/v1/runners/{runner.id}/status",
        json={
            "session_id": runner.session_id,
            "sequence": 1,
            "status": "ready",
            "capacity_total": 9,
        },
    )
    still = await runner.claim_all()
    resumed = await world.operator.call("POST", f"/v1/runners/{runner.id}:resume")

    assert drained.json()["status"] == "draining"
    assert (none, still) == ([], [])
    assert beaten.json()["action"] == "continue"
    assert resumed.json()["status"] == "ready"
    assert len(await runner.claim_all()) == 1


async def test_drain_outlives_a_new_session(world):
    runner = await world.runner()
    await world.operator.call("POST", f"/v1/runners/{runner.id}:drain")
    again = await world.restart(runner)
    await world.create()

    assert await again.claim_all() == []


@pytest.mark.parametrize("status", ["draining", "unhealthy"])
async def test_runner_that_says_so_itself_gets_nothing(world, status):
    runner = await world.runner()
    await world.create()
    report = {"session_id": runner.session_id, "sequence": 1, "capacity_total": 9}

    await runner.call("PUT", f"/v1/runners/{runner.id}/status", json={**report, "status": status})
    none = await runner.claim_all()
    older = await runner.call(
        "PUT", f"/v1/runners/{runner.id}/status", json={**report, "status": "ready"}
    )

    assert none == []
    assert older.json()["status"] == status
    assert await runner.claim_all() == []


async def test_runner_never_holds_more_than_its_capacity(world):
    runner = await world.runner(capacity_total=2)
    for _ in range(4):
        await world.create()

    first = await runner.claim_all(max_leases=10)
    full = await runner.claim_all(max_leases=10)
    used = await shown(world, runner)
    await first[0].complete()

    assert (len(first), full) == (2, [])
    assert (used["capacity_used"], used["status"]) == (2, "busy")
    assert len(await runner.claim_all(max_leases=10)) == 1


async def test_capacity_that_shrinks_takes_no_lease_away(world):
    runner = await world.runner(capacity_total=3)
    for _ in range(4):
        await world.create()
    held = await runner.claim_all(max_leases=3)
    report = {
        "session_id": runner.session_id,
        "sequence": 1,
        "status": "ready",
        "capacity_total": 1,
    }
    await runner.call("PUT", f"/v1/runners/{runner.id}/status", json=report)

    assert {(await one.beat()).status_code for one in held} == {200}
    await held[0].complete()
    await held[1].complete()
    assert await runner.claim_all() == []


async def test_runner_with_a_lease_cannot_be_removed(world):
    held = await world.leased()
    address = f"/v1/runners/{held.runner.id}"

    busy = await world.operator.call("DELETE", address)
    await held.post("release")
    done = await world.operator.call("DELETE", address)
    gone = await world.operator.call("DELETE", address)

    assert (busy.status_code, busy.json()["reason"]) == (409, "runner-busy")
    assert done.status_code == 204
    assert (gone.status_code, gone.json()["reason"]) == (404, "runner-not-found")
    assert (await world.row(held.attempt_id))["runner_instance_id"] == held.runner.id


async def test_process_of_a_removed_runner_may_register_again(world):
    runner = await world.runner()
    await world.operator.call("DELETE", f"/v1/runners/{runner.id}")
    await world.create()

    assert refusal(await runner.try_claim())[:2] == (404, "runner-not-found")
    assert (await runner.try_register()).status_code == 200
    assert len(await runner.claim_all()) == 1


async def test_replaced_session_of_a_removed_runner_does_not_come_back(world):
    old = await world.runner()
    await world.restart(old)
    await world.operator.call("DELETE", f"/v1/runners/{old.id}")

    assert refusal(await old.try_register()) == (409, "session-replaced", "stop")


async def test_silent_runner_is_shown_as_offline_until_it_is_heard_of(world, clock):
    runner = await world.runner()

    await clock.forward(3 * LEASE - 1)
    early = await shown(world, runner)
    await clock.forward(2)
    late = await shown(world, runner)
    await runner.try_register()

    assert (early["status"], late["status"]) == ("ready", "offline")
    assert (await shown(world, runner))["status"] == "ready"


async def test_beats_of_its_leases_are_signs_of_life_of_a_runner(world, clock):
    held = await world.running()
    for _ in range(12):
        await clock.forward(10)
        await held.beat()

    assert (await shown(world, held.runner))["status"] == "ready"


async def test_claim_of_an_unknown_session_is_refused(world):
    runner = await world.runner()
    runner.session_id = str(uuid4())

    assert refusal(await runner.try_claim())[:2] == (409, "session-unknown")
