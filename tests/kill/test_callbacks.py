"""The receiver is away, the service is killed, and every event arrives, in order per attempt."""

import asyncio
import random
from contextlib import suppress

import asyncpg
import pytest

from tests.callbacks.receiver import Receiver
from tests.driver import new_attempt
from tests.kill.test_kills import World
from tests.kill.world import create_many

CALLBACKS = {
    "CALLBACKS__ALLOWED_NETWORKS": ["127.0.0.0/8"],
    "CALLBACKS__LEASE_SECONDS": 3,
    "CALLBACKS__MAX_BACKOFF_SECONDS": 2,
    "CALLBACKS__TRY_AGAIN_SECONDS": 0.05,
}


@pytest.fixture
async def world(fresh_database, objects, issuer, tmp_path):
    made = World(fresh_database, objects, issuer, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def receiver():
    """Its port is known; nobody listens on it yet."""
    made = await Receiver().start()
    url = made.url
    await made.stop()
    yield made, url
    await made.stop()


async def subscribe(world: World, url: str, **fields) -> str:
    control = world.caller("control-plane", first=0)
    answer = await control.call(
        "PUT", "/v1/callback-subscriptions/all", json={"url": url, **fields}
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["signing_secret"]


async def all_events(world: World) -> list[tuple[str, str, int]]:
    connection = await asyncpg.connect(world.database)
    try:
        rows = await connection.fetch(
            "SELECT id, attempt_id, event_number FROM attempt_events ORDER BY 2, 3"
        )
        return [(str(row["id"]), str(row["attempt_id"]), row["event_number"]) for row in rows]
    finally:
        await connection.close()


async def until_arrived(world: World, receiver: Receiver, seconds: float) -> None:
    for _ in range(int(seconds * 5)):
        wanted = {one for one, _, _ in await all_events(world)}
        if wanted == {event["id"] for event in receiver.taken}:
            return
        await asyncio.sleep(0.2)
    missing = wanted - {event["id"] for event in receiver.taken}
    raise AssertionError(f"{len(missing)} of {len(wanted)} events never came")


async def test_all_events_arrive_in_order_though_the_service_is_killed_while_the_receiver_is_away(
    world, receiver
):
    made, url = receiver
    service = await world.serve(**CALLBACKS)
    secret = await subscribe(world, url)
    control = world.caller("control-plane", first=0)
    done = asyncio.Event()
    working = [asyncio.create_task(world.bot().run_until(done)) for _ in range(3)]
    dice = random.Random(3)

    await create_many(control, 60)
    for _ in range(3):
        await asyncio.sleep(dice.uniform(0.5, 1.5))
        service.kill()
        await service.start()
    await made.start()
    for _ in range(3):
        await asyncio.sleep(dice.uniform(0.3, 1.2))
        service.kill()
        await service.start()
    await world.until_all_ended(60, seconds=60)
    done.set()
    await asyncio.gather(*working)
    await until_arrived(world, made, seconds=40)

    made.assert_in_order()
    assert all(got.is_genuine(secret) for got in made.requests)


@pytest.mark.parametrize(
    "moment",
    [
        "callback.after_claim",
        "callback.after_post",
        "callback.before_cursor",
        "callback.after_cursor",
    ],
)
@pytest.mark.parametrize("max_batch", [1, 20])
async def test_whoever_dies_at_the_worst_moment_repeats_and_never_skips(
    world, receiver, moment, max_batch
):
    """Two instances; one dies at this moment each time it gets there, the other takes over."""
    made, url = receiver
    await made.start()
    fault = {"action": "kill", "probability": 1 if moment == "callback.after_claim" else 0.2}
    mortal = await world.serve(
        **CALLBACKS,
        TESTING__ALLOW_FAILPOINTS="true",
        TESTING__FAILPOINTS={moment: fault},
    )
    await subscribe(world, url, max_batch=max_batch)
    control = world.caller("control-plane", first=0)
    for _ in range(200):
        if mortal.has_ended:
            break
        with suppress(AssertionError):  # nobody answered
            await control.call("POST", "/v1/attempts", patience=0.5, json=new_attempt())
        await asyncio.sleep(0.05)
    assert mortal.has_ended

    await world.serve(**CALLBACKS)
    await create_many(world.caller("control-plane", first=1), 20)
    await until_arrived(world, made, seconds=30)

    made.assert_in_order()
