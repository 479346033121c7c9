"""A log as it is read: any part of it, all of it, and what is missing in it."""

import asyncio

import pytest

from tests.logs.world import JOB, PROFILE

LINES = [b"line %d of the log\n" % number for number in range(40)]
TEXT = b"".join(LINES)


async def write(held, stream="stdout", lines=LINES, *, final=False):
    """One chunk a line."""
    at = 0
    for line in lines:
        answer = await held.log(line, at, stream)
        at = answer.json()["next_offset"]
    if final:
        await held.log(b"", at, stream, final=True)
    return at


async def two_leases(control, make_runner, sql):
    """An attempt with a lease that was given back and one that goes on."""
    attempt = await control.create(job_type=JOB)
    first = await (await make_runner(**PROFILE).register()).claim()
    await first.log(b"of the first\n", 0)
    await first.post("release")
    await sql.execute("UPDATE execution_attempts SET backoff_until = NULL")
    second = await (await make_runner(**PROFILE).register()).start()
    assert second.attempt_id == attempt["id"]
    return first, second


@pytest.mark.parametrize("tail", [0, 1, 2, 39, 40, 41, 1000])
async def test_tail_is_the_last_lines(tail, held, logs):
    await write(held)

    answer = await logs.read(held, tail=tail)

    expected = b"".join(LINES[len(LINES) - tail :] if tail < len(LINES) else LINES)
    assert answer.content == (expected if tail else b"")
    assert answer.headers["Log-Offset"] == str(len(TEXT) - len(answer.content))
    assert answer.headers["Content-Length"] == str(len(answer.content))


@pytest.mark.parametrize("tail", [1, 2, 3, 4])
async def test_line_without_an_end_counts_as_one(tail, held, logs):
    await held.log(b"one\ntwo\nthree", 0, final=True)

    text = await logs.text(held, tail=tail)

    assert text == [b"three", b"two\nthree", b"one\ntwo\nthree", b"one\ntwo\nthree"][tail - 1]


async def test_tail_of_many_lines_in_one_chunk(held, logs):
    await held.log(b"\n" * 100_000 + b"the last\nof all\n", 0)

    assert await logs.text(held, tail=2) == b"the last\nof all\n"
    assert await logs.text(held, tail=5) == b"\n\n\nthe last\nof all\n"
    assert len(await logs.text(held, tail=90_002)) == 90_016


async def test_tail_of_an_empty_log_is_empty(held, logs):
    assert await logs.text(held, tail=10) == b""


@pytest.mark.parametrize("offset", [0, 1, 17, 100, len(TEXT) - 1, len(TEXT)])
async def test_offset_begins_at_that_byte(offset, held, logs):
    await write(held)

    answer = await logs.read(held, offset=offset)

    assert answer.content == TEXT[offset:]
    assert answer.headers["Log-Offset"] == str(offset)


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ({"offset": len(TEXT) + 1}, 416, "range-not-satisfiable"),
        ({"offset": len(TEXT) + 1, "follow": True}, 416, "range-not-satisfiable"),
        ({"offset": 1, "tail": 1}, 422, "request-invalid"),
        ({"tail": -1}, 422, "request-invalid"),
        ({"offset": -1}, 422, "request-invalid"),
        ({"lease_number": 0}, 422, "request-invalid"),
        ({"from": 1}, 422, "request-invalid"),
    ],
)
async def test_what_cannot_be_read_is_refused(query, status, reason, held, control):
    await write(held)

    answer = await control.read_log(held.attempt_id, params=query)

    assert (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.mark.parametrize("query", [{}, {"tail": 3}, {"follow": True}])
async def test_unknown_attempt_and_stream(query, held, control):
    unknown = await control.read_log(held.id, params=query)
    stream = await control.read_log(held.attempt_id, "stdlog", params=query)

    assert (unknown.status_code, stream.status_code) == (404, 422)


async def test_all_streams_in_the_order_in_which_chunks_came(held, logs):
    expected, at = b"", {"stdout": 0, "stderr": 0}
    for number, stream in enumerate(["stdout", "stderr", "stderr", "stdout", "stderr"] * 3):
        chunk = b"%d of %s\n" % (number, stream.encode())
        await held.log(chunk, at[stream], stream)
        at[stream] += len(chunk)
        expected += chunk

    assert await logs.text(held, "all") == expected
    for offset in (0, 5, 30, len(expected)):
        assert await logs.text(held, "all", offset=offset) == expected[offset:]
    assert await logs.text(held, "all", tail=4) == b"".join(expected.splitlines(keepends=True)[-4:])


async def test_order_of_arrival_is_kept_where_streams_are_written_at_once(held, logs, sql):
    await asyncio.gather(write(held, "stdout"), write(held, "stderr"), write(held, "system"))

    lines = (await logs.text(held, "all")).splitlines(keepends=True)

    numbers = await sql.fetch("SELECT arrival_number FROM raw_log_refs ORDER BY arrival_number")
    assert len(lines) == 120
    assert sorted(lines) == sorted(LINES * 3)
    assert len({row["arrival_number"] for row in numbers}) == 120


async def test_leases_follow_each_other_in_every_view(control, make_runner, sql, logs):
    first, second = await two_leases(control, make_runner, sql)
    await second.log(b"of the second\n", 0)
    await second.log(b"its errors\n", 0, "stderr")
    mark = b"--- lease 2 ---\n"

    assert await logs.text(first) == b"of the first\n" + mark + b"of the second\n"
    assert await logs.text(first, "stderr") == b"its errors\n"
    assert await logs.text(first, "all") == (
        b"of the first\n" + mark + b"of the second\nits errors\n"
    )
    assert await logs.text(first, lease_number=1) == b"of the first\n"
    assert await logs.text(first, lease_number=2) == b"of the second\n"
    assert await logs.text(first, lease_number=3) == b""
    assert await logs.text(first, tail=2) == mark + b"of the second\n"


async def test_late_lines_of_a_lease_stand_with_the_others_of_it(control, make_runner, sql, logs):
    first, second = await two_leases(control, make_runner, sql)
    await second.log(b"of the second\n", 0)

    await first.log(b"why it was given back\n", 13)

    assert await logs.text(first) == (
        b"of the first\nwhy it was given back\n--- lease 2 ---\nof the second\n"
    )


async def test_missing_ranges_are_shown_in_their_place(held, control, logs, sql):
    await write(held, lines=LINES[:6], final=True)
    await held.complete()
    await sql.execute("DELETE FROM raw_log_refs WHERE arrival_number IN (1, 3, 4, 6)")

    text = await logs.text(held)

    size = len(LINES[0])
    mark = b"--- stdout: bytes %d to %d are not kept any more ---\n"
    assert text == (
        mark % (0, size - 1)
        + LINES[1]
        + mark % (2 * size, 4 * size - 1)
        + LINES[4]
        + mark % (5 * size, 6 * size - 1)
    )
    for offset in range(0, len(text), 7):
        assert await logs.text(held, offset=offset) == text[offset:]
        followed = await control.read_log(
            held.attempt_id, params={"offset": offset, "follow": True}
        )
        assert followed.content == text[offset:]
    for tail in range(6):
        assert await logs.text(held, tail=tail) == b"".join(
            text.splitlines(keepends=True)[5 - tail :]
        )


async def test_state_of_every_stream_is_told(held, control):
    await held.log(b"one\ntwo", 0)
    await held.log(b"bad\n", 0, "stderr", final=True)

    answer = await control.call("GET", f"/v1/attempts/{held.attempt_id}/logs?page_size=1")

    common = {"lease_number": 1, "truncated": False, "next_offset": 4, "stored_size": 4}
    assert answer.json()["streams"] == [
        {**common, "stream": "stderr", "line_count": 1, "final": True},
        {**common, "stream": "stdout", "line_count": 1, "final": False},
    ]


async def test_store_that_is_away_is_told_before_the_answer_begins(
    held, control, open_instance, issuer
):
    from tests.conftest import serve_in_process  # noqa: PLC0415

    await held.log(b"one\n", 0)
    away = await open_instance(OBJECTS__ENDPOINT_URL="http://127.0.0.1:1")

    async with serve_in_process(away) as http:
        control.http = http
        for query in ({}, {"tail": 1}, {"offset": 1}):
            answer = await control.read_log(held.attempt_id, params=query)
            assert (answer.status_code, answer.json()["reason"]) == (
                503,
                "object-store-unavailable",
            )
