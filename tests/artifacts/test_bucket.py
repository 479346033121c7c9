"""The bucket's marker: nothing is deleted for a database that the bucket is not of."""

import asyncio

import pytest

from app.commands.buckets import MARKER, check_marker, mark_bucket_once, read_marker
from app.domain.errors import BucketNotOurs, ObjectStoreUnavailable
from app.loops.mark_bucket import MarkBucket
from app.loops.supervisor import loops_of
from app.settings import DatabaseSettings
from app.store.database import Database
from tests.artifacts.s3_proxy import error


@pytest.fixture
async def stranger(fresh_database):
    """The database of another installation."""
    database = Database(DatabaseSettings(url=fresh_database))
    yield database
    await database.close()


async def test_first_start_marks_the_bucket_and_later_ones_find_the_mark(here):
    services = here.services

    first = await MarkBucket().run_once(services)
    again = await MarkBucket().run_once(services)

    assert (first.done, again.done) == (1, 1)
    await check_marker(services.database, services.objects)
    assert "mark_bucket" in {loop.name for loop in loops_of("scheduler", None)}


async def test_bucket_without_a_mark_is_not_ours(here):
    with pytest.raises(BucketNotOurs, match="no marker"):
        await check_marker(here.services.database, here.services.objects)


async def test_bucket_of_another_installation_stays_its_own(here, stranger):
    services = here.services
    await MarkBucket().run_once(services)

    assert await mark_bucket_once(stranger, services.objects) is False
    with pytest.raises(BucketNotOurs, match="another installation"):
        await check_marker(stranger, services.objects)

    await check_marker(services.database, services.objects)


async def test_prefix_full_of_what_this_database_does_not_know_is_not_taken(here, stranger):
    held = await here.held()
    await held.output("plan", await held.upload(b"of the first installation"))
    objects = here.services.objects

    taken = await mark_bucket_once(stranger, objects)

    assert taken is False
    assert await read_marker(objects) is None
    assert await mark_bucket_once(here.services.database, objects) is True


@pytest.mark.parametrize("body", [b"", b"nonsense", b'{"installation_id": 1}', b"[]", b"\xff" * 9])
async def test_mark_that_cannot_be_read_is_not_ours_and_stays(here, body):
    objects = here.services.objects
    await objects.client.put_object(
        Bucket=objects.settings.bucket, Key=objects.full_key(MARKER), Body=body
    )

    assert await mark_bucket_once(here.services.database, objects) is False
    with pytest.raises(BucketNotOurs):
        await check_marker(here.services.database, objects)


async def test_two_installations_that_begin_at_once_do_not_both_own_the_bucket(here, stranger):
    services = here.services

    marked = await asyncio.gather(
        mark_bucket_once(services.database, services.objects),
        mark_bucket_once(stranger, services.objects),
    )

    assert sorted(marked) == [False, True]


async def test_store_that_is_away_leaves_it_for_later(open_instance, faulty):
    instance = await open_instance(OBJECTS__ENDPOINT_URL=faulty.url)
    loop = MarkBucket()

    async def away(request, body):
        return error("ServiceUnavailable", 503)

    faulty.fault = away
    with pytest.raises(ObjectStoreUnavailable):
        await loop.run_once(instance.services)
    faulty.fault = None

    assert (await loop.run_once(instance.services)).done == 1
