"""Logs: every byte once, in its place, and read back exactly as it was sent."""

import asyncio
import gzip
import hashlib

import pytest

from app.domain.lifecycle import LeaseStatus
from app.objects.store import ObjectStore
from tests.api.conftest import end_lease
from tests.driver import Held

EVERY_BYTE = bytes(range(256))


def is_refusal(answer, status: int, reason: str) -> bool:
    return (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.fixture
async def held(control, runner) -> Held:
    await control.create()
    return await (await runner.register()).start()


async def test_chunks_are_read_back_as_one_stream(held, control):
    chunks = [b"hello\n", EVERY_BYTE + b"\n", b"\r\n\x1b[31mred\r", b"no line feed at the end"]
    offset = 0
    for chunk in chunks:
        is_last = chunk is chunks[-1]
        answer = await held.log(chunk, offset, final=is_last)
        offset += len(chunk)
        assert answer.json() == {
            "stream": "stdout",
            "next_offset": offset,
            "need_more": False,
            "final": is_last,
            "mask_refused": [],
        }

    read = await control.read_log(held.attempt_id)

    assert read.content == b"".join(chunks)
    assert read.headers["Content-Length"] == str(offset)
    assert read.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert read.headers["X-Content-Type-Options"] == "nosniff"


async def test_streams_are_counted_and_read_apart(held, control):
    await held.log(b"out\n", 0, "stdout")
    await held.log(b"err\n", 0, "stderr")
    await held.log(b"put\n", 4, "stdout")
    await held.log(b"{}\n", 0, "event_stream")
    await held.log(b"note\n", 0, "system")

    contents = {
        stream: (await control.read_log(held.attempt_id, stream)).content
        for stream in ("stdout", "stderr", "event_stream", "system")
    }

    assert contents == {
        "stdout": b"out\nput\n",
        "stderr": b"err\n",
        "event_stream": b"{}\n",
        "system": b"note\n",
    }


async def test_chunk_is_described_and_lies_in_the_store_before_it_is_answered(
    held, control, services, sql
):
    chunk = b"one\ntwo\n"
    await held.log(chunk, 0)

    [ref] = await control.list_of(held.attempt_id, "logs")
    stored = await sql.fetchrow("SELECT * FROM artifact_refs")
    objects: ObjectStore = services.objects
    content = b"".join([part async for part in objects.read(stored["key"], 0, len(chunk) - 1)])
    assert (ref["stream"], ref["lease_number"], ref["stream_offset"]) == ("stdout", 1, 0)
    assert (ref["raw_size"], ref["byte_size"], ref["line_count"]) == (8, 8, 2)
    assert ref["masked"] is True
    assert str(stored["id"]) == ref["artifact_ref_id"]
    assert stored["digest"] == "sha256:" + hashlib.sha256(chunk).hexdigest()
    assert (stored["byte_size"], stored["state"]) == (8, "ready")
    assert content == chunk


async def test_gap_is_refused_with_the_offset_expected(held, control):
    await held.log(b"012345678\n", 0)

    answer = await held.log(b"x", 11)

    assert is_refusal(answer, 409, "log-gap")
    assert answer.json()["next_offset"] == 10
    assert (await control.read_log(held.attempt_id)).content == b"012345678\n"


async def test_first_chunk_must_begin_at_the_beginning(held):
    answer = await held.log(b"x", 1)

    assert is_refusal(answer, 409, "log-gap")
    assert answer.json()["next_offset"] == 0


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, b"012345678\n"),  # the first chunk again
        (10, b"abcd\n"),  # the last one
        (0, b"012345678\nabcd\n"),  # both in one
        (0, b"012345678\nabcd\nfgh"),  # beyond the end
        (0, b"01234"),  # a part of the first
        (3, b"345678\nabcd\nXYZ"),  # from within, over the last
        (14, b"\n"),
        (5, b""),
    ],
)
async def test_bytes_that_are_stored_already_are_not_stored_again(offset, data, held, control):
    await held.log(b"012345678\n", 0)
    await held.log(b"abcd\n", 10)

    answer = await held.log(data, offset)

    assert (answer.status_code, answer.json()["next_offset"]) == (200, 15)
    assert (await control.read_log(held.attempt_id)).content == b"012345678\nabcd\n"
    assert len(await control.list_of(held.attempt_id, "logs")) == 2


@pytest.mark.parametrize(
    ("offset", "data"),
    [(0, b"012345678X"), (0, b"X123456789abcde"), (10, b"abcdX"), (5, b"56789abXde")],
)
async def test_other_bytes_at_a_place_that_is_taken_are_refused(offset, data, held, control):
    await held.log(b"012345678\n", 0)
    await held.log(b"abcd\n", 10)

    answer = await held.log(data, offset)

    assert is_refusal(answer, 409, "log-conflict")
    assert answer.json()["next_offset"] == 15
    assert (await control.read_log(held.attempt_id)).content == b"012345678\nabcd\n"


async def test_repeat_is_compared_after_the_server_key_was_changed(held, control, open_instance):
    secrets = {"k1": "the first secret of the tests, long enough", "k2": "x" * 40}
    for current in ("k1", "k2"):
        held.runner.http = await open_instance(KEYS__CURRENT=current, KEYS__SECRETS=secrets)
        same = await held.log(b"012345678\n", 0)

    other = await held.log(b"012345678X", 0)

    assert same.status_code == 200
    assert is_refusal(other, 409, "log-conflict")


async def test_final_chunk_closes_its_stream_only(held, control):
    await held.log(b"all", 0, final=True)

    repeated = await held.log(b"all", 0, final=True)
    closed_again = await held.log(b"", 3, final=True)
    beyond = await held.log(b"more", 3)
    other = await held.log(b"x", 0, "stderr")

    assert repeated.json()["final"] is closed_again.json()["final"] is True
    assert is_refusal(beyond, 409, "log-stream-closed")
    assert other.status_code == 200
    assert (await control.read_log(held.attempt_id)).content == b"all"


async def test_stream_can_be_closed_without_further_bytes(held, control):
    await held.log(b"all\n", 0)

    answer = await held.log(b"", 4, final=True)

    assert (answer.json()["next_offset"], answer.json()["final"]) == (4, True)
    assert is_refusal(await held.log(b"more", 4), 409, "log-stream-closed")
    assert len(await control.list_of(held.attempt_id, "logs")) == 1


async def test_empty_chunk_stores_nothing(held, control):
    answer = await held.log(b"", 0)

    assert (answer.status_code, answer.json()["next_offset"]) == (200, 0)
    assert await control.list_of(held.attempt_id, "logs") == []


async def test_empty_stream_can_be_closed(held, control):
    answer = await held.log(b"", 0, final=True)

    assert answer.json()["final"] is True
    assert (await control.read_log(held.attempt_id)).content == b""


async def test_two_uploads_at_one_offset_store_one(held, control, sql):
    for offset in range(0, 60, 6):
        answers = await asyncio.gather(*(held.log(b".same\n", offset) for _ in range(4)))

        assert {answer.json()["next_offset"] for answer in answers} == {offset + 6}

    assert (await control.read_log(held.attempt_id)).content == b".same\n" * 10
    assert await sql.fetchval("SELECT count(*) FROM raw_log_refs") == 10
    assert await sql.fetchval("SELECT count(*) FROM artifact_refs") == 10


async def test_of_two_different_uploads_at_one_offset_one_is_refused(held, control):
    offset, expected = 0, b""
    for _ in range(8):
        answers = await asyncio.gather(held.log(b"aaa\n", offset), held.log(b"bbb\n", offset))

        [won] = [n for n, answer in enumerate(answers) if answer.status_code == 200]
        assert is_refusal(answers[1 - won], 409, "log-conflict")
        expected += (b"aaa\n", b"bbb\n")[won]
        offset += 4

    assert (await control.read_log(held.attempt_id)).content == expected


async def test_sender_that_goes_on_from_the_answer_loses_nothing(held, control):
    text = bytes(number % 251 for number in range(3000))
    offset = 0
    for size in (700, 900, 1, 1200, 5000):
        end = offset + size
        await held.log(text[offset:end], offset, final=end >= len(text))
        again = max(offset - 10, 0)
        answer = await held.log(text[again : end + 3], again, final=end >= len(text))
        offset = answer.json()["next_offset"]

    assert offset == 3000
    assert (await control.read_log(held.attempt_id)).content == text


# --- who may write, and until when ----------------------------------------------------------------


async def test_token_of_another_lease_is_refused(held, control, make_runner):
    await control.create()
    other = await (await make_runner().register()).start()
    held.token = other.token

    assert is_refusal(await held.log(b"x\n", 0), 403, "lease-token-invalid")
    assert await control.list_of(held.attempt_id, "logs") == []


async def test_chunk_is_a_sign_of_life(held, sql):
    await sql.execute("UPDATE runner_leases SET expires_at = now() + interval '2 s'")

    await held.log(b"x\n", 0)

    left = await sql.fetchval("SELECT expires_at - clock_now() FROM runner_leases")
    assert left.total_seconds() > 20


@pytest.mark.parametrize("how", ["completed", *(s for s in LeaseStatus if s != "active")])
async def test_logs_are_accepted_for_a_while_after_any_end(how, held, control, sql):
    await held.log(b"before\n", 0)
    if how == "completed":
        await held.complete()
    else:
        await end_lease(sql, held.id, how)
    expires_at = await sql.fetchval("SELECT expires_at FROM runner_leases")

    within = await held.log(b"after", 7, final=True)
    await sql.execute("UPDATE runner_leases SET released_at = now() - interval '121 s'")
    await sql.execute("UPDATE service_ticks SET last_tick_at = clock_fact()")
    too_late = await held.log(b"too late", 0, "stderr")

    assert within.status_code == 200
    assert too_late.status_code == 409
    assert too_late.json()["action"] == "stop"
    assert (await control.read_log(held.attempt_id)).content == b"before\nafter"
    assert await sql.fetchval("SELECT expires_at FROM runner_leases") == expires_at


async def test_chunk_over_the_limit_is_refused_and_one_at_it_is_not(held, control, open_instance):
    held.runner.http = await open_instance(LIMITS__MAX_LOG_CHUNK_BYTES=65_536)

    too_large = await held.log(b"x" * 65_537, 0)
    largest = await held.log(b"x" * 65_535 + b"\n", 0)

    assert too_large.status_code == 413
    assert too_large.headers["Content-Type"] == "application/problem+json"
    assert largest.json()["next_offset"] == 65_536


async def test_compressed_chunk_is_refused_or_unpacked_but_never_stored_as_it_is(held, control):
    answer = await held.runner.call(
        "POST",
        f"/v1/leases/{held.id}/logs/stdout?offset=0",
        headers={"Lease-Token": held.token, "Content-Encoding": "br"},
        content=b"\x0b\x02\x80hello\x03",
    )

    assert answer.status_code == 415
    assert await control.list_of(held.attempt_id, "logs") == []


async def test_store_that_is_away_is_told_and_nothing_is_recorded(held, control, open_instance):
    held.runner.http = await open_instance(OBJECTS__ENDPOINT_URL="http://127.0.0.1:1")

    answer = await held.log(b"x\n", 0)

    assert is_refusal(answer, 503, "object-store-unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
    assert await control.list_of(held.attempt_id, "logs") == []


# --- masking; in depth in tests/logs --------------------------------------------------------------


async def test_secret_is_masked_before_it_is_stored_and_told(held, control, services):
    line = b"token=ghp_" + b"q7Rt2Xw9" * 5 + b"\n"
    begun = await held.log(line[:40], 0)
    whole = await held.log_json(line + b"pass correct-horse-9\n", 0, mask=["correct-horse-9"])

    assert (begun.json()["need_more"], begun.json()["next_offset"]) == (True, 0)
    assert whole.json()["next_offset"] == len(line) + 21
    assert (await control.read_log(held.attempt_id)).content == b"token=***\npass ***\n"
    assert (await control.event_types(held.attempt_id))[-1] == "secret_masked"


async def test_packed_chunk_is_unpacked_within_bounds(held, control):
    headers = {"Lease-Token": held.token, "Content-Encoding": "gzip"}
    path = f"/v1/leases/{held.id}/logs/stdout?offset=0"
    bomb = gzip.compress(bytes(5 * 1024 * 1024))

    refused = await held.runner.call("POST", path, headers=headers, content=bomb)
    cut = await held.runner.call("POST", path, headers=headers, content=gzip.compress(b"x\n")[:-1])
    taken = await held.runner.call("POST", path, headers=headers, content=gzip.compress(b"x\n"))

    assert [answer.status_code for answer in (refused, cut, taken)] == [413, 422, 200]
    assert (await control.read_log(held.attempt_id)).content == b"x\n"


# --- reading --------------------------------------------------------------------------------------

TEXT = b"0123\n5678\n"


async def test_log_is_followed_to_its_end_and_searched(held, control):
    await held.log(b"one\ntwo\n", 0)
    query = {"follow": True, "tail": 1}
    following = asyncio.create_task(control.read_log(held.attempt_id, params=query))
    await held.log(b"three\n", 8, final=True)

    followed = await asyncio.wait_for(following, 20)
    path = f"/v1/attempts/{held.attempt_id}/logs:search?q=t"
    found = (await control.call("GET", path)).json()["items"]

    assert followed.content in {b"two\nthree\n", b"three\n"}
    assert [(one["line_number"], one["offset"]) for one in found] == [(2, 4), (3, 8)]


@pytest.mark.parametrize(
    ("header", "status", "content", "range_"),
    [
        (None, 200, TEXT, None),
        ("bytes=0-", 206, TEXT, "bytes 0-9/10"),
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=2-5", 206, b"23\n5", "bytes 2-5/10"),
        ("bytes=4-6", 206, b"\n56", "bytes 4-6/10"),
        ("bytes=9-9", 206, b"\n", "bytes 9-9/10"),
        ("bytes=7-99", 206, b"78\n", "bytes 7-9/10"),
        ("bytes=-3", 206, b"78\n", "bytes 7-9/10"),
        ("bytes=-99", 206, TEXT, "bytes 0-9/10"),
        ("bytes=0-1,4-5", 200, TEXT, None),
        ("bytes=5-2", 200, TEXT, None),
        ("bytes=x-2", 200, TEXT, None),
        ("bytes=--2", 200, TEXT, None),
        ("bytes=-", 200, TEXT, None),
        ("lines=0-1", 200, TEXT, None),
        ("bytes=0-" + "9" * 200, 200, TEXT, None),
    ],
)
async def test_one_range_of_bytes_is_understood_and_others_are_ignored(
    header, status, content, range_, held, control
):
    for offset in (0, 5):
        await held.log(TEXT[offset : offset + 5], offset)

    answer = await control.read_log(
        held.attempt_id, headers={} if header is None else {"Range": header}
    )

    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("Content-Range") == range_
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["Content-Length"] == str(len(content))


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
async def test_range_beyond_the_end_says_how_long_it_is(header, held, control):
    await held.log(TEXT, 0)

    answer = await control.read_log(held.attempt_id, headers={"Range": header})

    assert is_refusal(answer, 416, "range-not-satisfiable")
    assert answer.json()["total_bytes"] == 10


async def test_nothing_stored_yet_is_an_empty_answer(held, control):
    answer = await control.read_log(held.attempt_id)

    assert (answer.status_code, answer.content) == (200, b"")


async def test_log_of_an_unknown_attempt_is_not_found(control, held):
    answer = await control.read_log(held.id)

    assert is_refusal(answer, 404, "attempt-not-found")


async def test_leases_of_an_attempt_follow_each_other_with_a_mark_between(
    control, make_runner, sql
):
    attempt = await control.create(job_type="verify.http")
    profile = {"runner_kind": "verification", "capabilities": ["verify.*"]}
    first = await (await make_runner(**profile).register()).claim()
    await first.log(b"of the first\n", 0)
    await first.post("release")
    await sql.execute("UPDATE execution_attempts SET backoff_until = NULL")
    second = await (await make_runner(**profile).register()).claim()
    await second.log(b"of the second\n", 0)

    read = (await control.read_log(attempt["id"])).content

    start, end = len(b"of the first\n"), len(read) - len(b"of the second\n")
    mark = read[start:end]
    inside = await control.read_log(
        attempt["id"], headers={"Range": f"bytes={start - 3}-{end + 2}"}
    )
    assert read == b"of the first\n" + mark + b"of the second\n"
    assert b"2" in mark
    assert inside.content == b"st\n" + mark + b"of "
