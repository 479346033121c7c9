"""A store that refuses some, goes away in the middle, or loses an answer: nothing is left."""

import asyncio
from uuid import UUID, uuid4

import pytest

from app.domain.errors import ObjectStoreUnavailable
from app.loops import remove_expired
from app.loops.remove_expired import RemoveExpired
from tests.retention.s3_proxy import StubbornStore


@pytest.fixture
async def stubborn(make_world, objects):
    """A world behind a stubborn store, and the store; `plain` sees the same bucket directly."""
    prefix = f"stubborn-{uuid4().hex}/"
    plain = await make_world(OBJECTS__PREFIX=prefix)
    await plain.mark_bucket()
    async with StubbornStore(plain.services.objects, objects.endpoint_url) as store:
        world = await make_world(OBJECTS__PREFIX=prefix, OBJECTS__ENDPOINT_URL=store.url)
        yield world, store


async def fill(world, count: int) -> str:
    """So many expired artifacts with their objects."""
    attempt_id = await world.ended()
    store, places = world.services.objects, asyncio.Semaphore(20)

    async def put(number: int) -> None:
        async with places:
            await store.put_once(f"many/{number:05}", b"x")

    await asyncio.gather(*(put(number) for number in range(count)))
    await world.sql.execute(
        "INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size, "
        "retention_class, created_at, attempt_id, operation_id, state, expires_at) "
        "SELECT gen_random_uuid(), 's3', $2, $3 || 'many/' || lpad(n::text, 5, '0'), 't', "
        "'sha256:' || repeat('0', 64), 1, 'normal', now(), $1, $1, 'ready', "
        "now() - interval '1 h' FROM generate_series(0, $4 - 1) n",
        UUID(attempt_id),
        store.settings.bucket,
        store.settings.prefix,
        count,
    )
    return attempt_id


async def agree(world) -> set[str]:
    """Keys of the objects, which are those of the rows."""
    rows = await world.sql.fetch("SELECT key FROM artifact_refs")
    prefix = world.services.settings.objects.prefix
    keys = await world.keys()
    assert keys == {row["key"].removeprefix(prefix) for row in rows}
    return keys


async def test_of_2500_objects_those_that_the_store_refuses_stay_with_their_rows(stubborn):
    world, store = stubborn
    await fill(world, 2500)
    store.refuses = lambda key: key.endswith("7")

    removed = await world.remove_expired()

    assert removed == 2250
    assert len(await agree(world)) == 250
    assert max(store.batches) <= 1000
    assert world.services.metrics.removals_refused._value.get() >= 250
    store.refuses = lambda _: False
    assert await world.remove_expired() == 250
    assert await agree(world) == set()


async def test_refused_ones_stand_in_nobodys_way(stubborn, monkeypatch):
    """More than a batch of them, and before all others."""
    monkeypatch.setattr(remove_expired, "_OBJECTS", 50)
    world, store = stubborn
    await fill(world, 120)
    await world.sql.execute(
        "UPDATE artifact_refs SET id = ('00000000-0000-0000-0000-' || lpad(right(key, 5), 12, '0'))"
        "::uuid, state = 'removing'"
    )
    store.refuses = lambda key: key[-5:] < "00105"

    assert await world.remove_expired() == 15
    assert len(await agree(world)) == 105


async def test_an_answer_that_was_lost_is_made_good_by_the_next_pass(stubborn):
    world, store = stubborn
    await fill(world, 100)
    store.away_after = 1

    with pytest.raises(ObjectStoreUnavailable):
        await world.run(RemoveExpired())
    states = set((await world.artifacts()).values())
    store.away, store.away_after = False, None

    # The objects are gone, the rows say so, and the next pass removes them.
    assert states == {"removing"}
    assert await world.remove_expired() == 100
    assert await agree(world) == set()


async def test_a_store_that_goes_away_in_the_middle_and_comes_back(stubborn, monkeypatch):
    monkeypatch.setattr(remove_expired, "_OBJECTS", 50)
    world, store = stubborn
    attempt_id = await fill(world, 150)
    held = await world.artifact(attempt_id, days_old=500)
    await world.hold(f"artifacts/{held}")
    store.away_after = 2

    with pytest.raises(ObjectStoreUnavailable):
        while True:
            await world.run(RemoveExpired())
    store.away, store.away_after = False, None
    await world.remove_expired()

    assert await agree(world) == {f"artifacts/{held}"}
