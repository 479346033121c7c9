"""Claims of several runners in one transaction: each attempt once, dealt out fairly."""

from uuid import UUID, uuid4

from app.commands.claims import Claimer, ClaimRequest, offer_of, try_claims
from app.domain.commands import ClaimLeases
from app.store import runners
from tests.lifecycle.world import new_key

CAPACITY = 10


async def request_of(world, runner, most: int = 4) -> ClaimRequest:
    session = await runners.find_session(world.sql, runner.id, UUID(runner.session_id))
    command = ClaimLeases(
        runner_id=runner.id,
        session_id=runner.session_id,
        request_id=uuid4(),
        max_leases=most,
    )
    return ClaimRequest(command, offer_of(session))


async def claim_together(world, *requests: ClaimRequest) -> list[list[str]]:
    """The attempts that each of them got, all in one transaction."""
    services = world.services
    claimer = Claimer(services.keys, services.classes, services.settings.leases, services.rules)
    outcomes = await services.database.run(lambda conn: try_claims(conn, claimer, requests))
    return [[str(claim.leased.attempt.id) for claim in outcome] for outcome in outcomes]


def all_of(got: list[list[str]]) -> list[str]:
    return [attempt for one in got for attempt in one]


async def test_every_claim_gets_a_first_one_before_any_gets_a_second(world):
    attempts = [await world.create() for _ in range(4)]
    fleet = [await world.runner(capacity_total=CAPACITY) for _ in range(3)]

    got = await claim_together(world, *[await request_of(world, one) for one in fleet])

    assert [len(one) for one in got] == [2, 1, 1]
    assert [one[0] for one in got] == attempts[:3]
    assert sorted(all_of(got)) == sorted(attempts)


async def test_each_runner_gets_no_more_than_its_own_room(world):
    attempts = [await world.create() for _ in range(5)]
    small, large = await world.runner(capacity_total=1), await world.runner(capacity_total=3)

    got = await claim_together(
        world, await request_of(world, small), await request_of(world, large)
    )

    assert [len(one) for one in got] == [1, 3]
    assert len(set(all_of(got))) == 4
    assert set(all_of(got)) <= set(attempts)


async def test_repeat_among_new_claims_gets_its_own_leases_again(world):
    await world.create()
    await world.create()
    one, other = await world.runner(capacity_total=1), await world.runner(capacity_total=1)
    request = await request_of(world, one)
    [first] = await claim_together(world, request)

    again, new = await claim_together(world, request, await request_of(world, other))

    assert again == first
    assert len(new) == 1
    assert new != first


async def test_attempt_that_backs_off_from_one_of_them_is_not_dealt_to_it(world):
    held = await world.leased()
    unlucky = held.runner
    await held.post("release")
    urgent = await world.create(priority=1)
    other = await world.runner(capacity_total=CAPACITY)

    of_other, of_unlucky = await claim_together(
        world, await request_of(world, other), await request_of(world, unlucky)
    )

    assert of_other == [urgent]
    assert of_unlucky == []


async def test_attempt_that_backs_off_from_one_is_had_by_another_that_got_nothing(world):
    held = await world.leased()
    await held.post("release")
    other = await world.runner(capacity_total=CAPACITY)

    of_unlucky, of_other = await claim_together(
        world, await request_of(world, held.runner), await request_of(world, other)
    )

    assert of_unlucky == []
    assert of_other == [held.attempt_id]


async def test_one_key_goes_to_one_of_them(world):
    key = new_key()
    attempts = [await world.create(concurrency_key=key) for _ in range(3)]
    fleet = [await world.runner(capacity_total=CAPACITY) for _ in range(3)]

    got = await claim_together(world, *[await request_of(world, one) for one in fleet])

    assert all_of(got) == attempts[:1]
