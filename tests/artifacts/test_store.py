"""What the service asks of a store, tried on a real one and on one that misbehaves."""

import asyncio
import base64
import hashlib
import os

import httpx
import pytest
import structlog

from app.domain.errors import ObjectStoreUnavailable
from app.objects import probe as probing
from app.objects.report import report_on
from app.objects.store import ObjectStore
from tests.artifacts.s3_proxy import delete_answer, error, is_batch_delete, keys_of


@pytest.fixture
async def open_store(make_settings):
    """Clients of the store, each with settings and a prefix of its own."""
    opened = []

    async def open_(**more):
        store = ObjectStore(make_settings(**more).objects)
        await store.start()
        opened.append(store)
        return store

    yield open_
    for store in opened:
        await store.stop()


async def put(store: ObjectStore, key: str, body: bytes) -> str:
    checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
    await store.put(key, body, checksum)
    return store.full_key(key)


async def put_many(store: ObjectStore, count: int) -> list[str]:
    places = asyncio.Semaphore(16)

    async def one(number: int) -> str:
        async with places:
            return await put(store, f"many/{number:05d}", b"x")

    return list(await asyncio.gather(*map(one, range(count))))


async def everything(store: ObjectStore) -> list[str]:
    """All keys under the store's prefix, page by page."""
    keys: list[str] = []
    while page := await store.list_objects("", after=keys[-1] if keys else None):
        keys += [one.key for one in page]
    return keys


@pytest.mark.parametrize("checksum", ["sha256", "none"])
async def test_stored_bytes_are_the_bytes_that_were_sent(open_store, checksum):
    """Read without our client: a store that does not know a trailer keeps it inside the body."""
    store = await open_store(OBJECTS__CHECKSUM=checksum)
    body = b"toto\n"
    key = await put(store, "plain", body)
    signed = await store.signer.sign_get(key, "text/plain", "attachment")

    async with httpx.AsyncClient() as network:
        answer = await network.get(signed.url)

    assert answer.content == body
    assert answer.headers["content-length"] == "5"


@pytest.mark.parametrize("count", [30, 2500])
async def test_refused_keys_within_a_200_are_told_and_the_others_are_gone(
    open_store, faulty, count
):
    real, store = await open_store(), await open_store(OBJECTS__ENDPOINT_URL=faulty.url)
    real.settings = store.settings
    keys = await put_many(real, count)
    stubborn = set(keys[7::500])
    batches: list[int] = []

    async def refuse_some(request, body):
        if not is_batch_delete(request):
            return None
        named = keys_of(body)
        batches.append(len(named))
        await real.delete([key for key in named if key not in stubborn])
        return delete_answer([key for key in named if key in stubborn])

    faulty.fault = refuse_some
    refused = await store.delete(keys)

    assert refused == dict.fromkeys(stubborn, "AccessDenied")
    assert set(await everything(real)) == stubborn
    assert max(batches) <= 1000
    assert sum(batches) == count
    assert await real.delete(sorted(stubborn)) == {}
    assert await everything(real) == []


@pytest.mark.parametrize("code", ["NotImplemented", "MissingContentMD5"])
async def test_store_without_batches_is_asked_one_by_one(open_store, faulty, code):
    store = await open_store(OBJECTS__ENDPOINT_URL=faulty.url)
    keys = await put_many(store, 12)

    async def knows_no_batches(request, body):
        status = 501 if code == "NotImplemented" else 400
        return error(code, status) if is_batch_delete(request) else None

    faulty.fault = knows_no_batches
    refused = await store.delete([*keys, store.full_key("was never there")])

    assert refused == {}
    assert await everything(store) == []


async def test_setting_for_single_deletes_sends_no_batch(open_store, faulty):
    store = await open_store(OBJECTS__ENDPOINT_URL=faulty.url, OBJECTS__DELETES="single")
    keys = await put_many(store, 3)
    faulty.seen.clear()

    assert await store.delete(keys) == {}

    assert [method for method, _ in faulty.seen] == ["DELETE"] * 3


async def test_listing_goes_on_where_it_stopped(open_store):
    store = await open_store()
    keys = await put_many(store, 7)
    other = await put(store, "other", b"x")

    first = await store.list_objects("many/", limit=4)
    rest = await store.list_objects("many/", after=first[-1].key, limit=4)

    assert [one.key for one in (*first, *rest)] == keys
    assert other in await everything(store)
    assert (await store.list_objects("none/")) == []


async def test_short_answer_of_the_store_is_an_error_and_no_short_body(open_store, faulty):
    store = await open_store(OBJECTS__ENDPOINT_URL=faulty.url)
    key = await put(store, "long", os.urandom(200_000))

    def cut(request, answer):
        if request.method == "GET":
            answer.body = answer.body[:50_000]  # its Content-Length says more
        return answer

    faulty.spoil = cut
    with pytest.raises(ObjectStoreUnavailable):
        [piece async for piece in store.read(key)]


async def test_object_is_hashed_once_for_all_who_wait(open_store, faulty):
    store = await open_store(OBJECTS__ENDPOINT_URL=faulty.url)
    body = os.urandom(300_000)
    key = await put(store, "hashed", body)
    faulty.seen.clear()

    found = await asyncio.gather(*(store.hashing.hash(key, 10) for _ in range(5)))

    assert {one.sha256 for one in found} == {hashlib.sha256(body).hexdigest()}
    assert [method for method, _ in faulty.seen] == ["GET"]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("RequestTimeTooSkewed", "clock"),
        ("InvalidAccessKeyId", "access key"),
        ("SignatureDoesNotMatch", "secret"),
        ("QuotaExceeded", "full"),
    ],
)
async def test_what_only_a_person_can_mend_is_logged_with_its_cause(
    open_store, faulty, code, cause
):
    store = await open_store(OBJECTS__ENDPOINT_URL=faulty.url)

    async def refuse(request, body):
        return error(code, 403)

    faulty.fault = refuse
    with structlog.testing.capture_logs() as lines, pytest.raises(ObjectStoreUnavailable):
        await put(store, "x", b"x")

    [line] = [one for one in lines if one["event"] == "objects.refused"]
    assert line["code"] == code
    assert cause in line["cause"]


# --- check-config --objects -----------------------------------------------------------------------


async def test_embedded_store_can_do_everything(make_settings, open_store):
    settings = make_settings()

    report = await report_on(settings.objects)

    assert report.usable, report.lines
    assert all(line.startswith("works") for line in report.lines[1:-1]), report.lines
    store = await open_store(OBJECTS__PREFIX=settings.objects.prefix)
    assert await everything(store) == []
    assert await store.multipart.list_open(store.full_key("")) == []


async def test_what_a_store_lacks_is_said_with_what_follows(make_settings, faulty):
    async def lacks(request, body):
        if is_batch_delete(request):
            return error("NotImplemented", 501)
        if "uploads" in request.query_params and request.method == "GET":
            return error("NotImplemented", 501)
        if request.headers.get("if-none-match"):
            return error("NotImplemented", 501)
        return None

    faulty.fault = lacks
    report = await report_on(make_settings(OBJECTS__ENDPOINT_URL=faulty.url).objects)

    words = {line.split()[1]: line.split()[0] for line in report.lines[1:-1]}
    assert {name for name, word in words.items() if word == "lacks"} == {
        "open-parts",
        "conditions",
        "batch-delete",
    }
    assert "broken" not in words.values()
    assert report.usable
    assert any("OBJECTS__DELETES=single" in line for line in report.lines)


async def test_store_that_verifies_nothing_does_only_with_the_setting_for_it(make_settings, faulty):
    """It answers every upload of ours with 200, whatever its digest."""

    async def believes(request, body):
        is_put = request.method == "PUT" and "x-amz-checksum-sha256" in request.headers
        if not is_put:
            return None
        answer = await faulty.forward(request, body)
        return answer if answer.status_code == 200 else error("", 200)

    faulty.fault = believes
    strict = await report_on(make_settings(OBJECTS__ENDPOINT_URL=faulty.url).objects)
    weak = await report_on(
        make_settings(OBJECTS__ENDPOINT_URL=faulty.url, OBJECTS__CHECKSUM="none").objects
    )

    assert not strict.usable
    assert any(
        line.startswith("broken  signed-put") and "CHECKSUM=none" in line for line in strict.lines
    )
    assert weak.usable, weak.lines


async def test_store_that_does_not_answer_is_said(make_settings):
    with pytest.raises(ObjectStoreUnavailable):
        await report_on(make_settings(OBJECTS__SECRET_ACCESS_KEY="wrong").objects)


def test_every_trial_says_what_follows():
    for trial in probing.TRIALS:
        assert trial.good.endswith(".")
        assert trial.otherwise.endswith(".")
    assert len({trial.name for trial in probing.TRIALS}) == len(probing.TRIALS)
