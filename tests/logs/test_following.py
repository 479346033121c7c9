"""Following a log: no byte lost or doubled, however often its reader comes back."""

import asyncio
import contextlib
import json
import random

import pytest

from app.handlers.log_following import Follower, lay_out_settled
from app.store.log_reads import View
from tests.conftest import serve_in_process
from tests.lifecycle.world import World
from tests.logs.test_reading import two_leases


def events(text: str) -> list[tuple[str, int, dict]]:
    """Name, id and data of every event."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("event"):
            name, number, data = (line.split(": ", 1)[1] for line in block.split("\n"))
            found.append((name, int(number), json.loads(data)))
    return found


async def follow(control, held, stream="stdout", **more):
    """The whole answer of a follower."""
    query = {"follow": True, **more.pop("query", {})}
    return await control.read_log(held.attempt_id, stream, params=query, **more)


SSE = {"Accept": "text/event-stream"}


async def write_slowly(held, chunks, stream="stdout"):
    at = 0
    for chunk in chunks:
        await held.log(chunk, at, stream)
        at += len(chunk)
        await asyncio.sleep(0)
    await held.log(b"", at, stream, final=True)


async def test_follower_has_all_and_ends_with_the_stream(held, control):
    chunks = [b"line %d\n" % number for number in range(30)]
    await held.log(b"begun\n", 0, "stderr")

    answer, _ = await asyncio.gather(follow(control, held), write_slowly(held, chunks))

    assert answer.content == b"".join(chunks)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert "Content-Length" not in answer.headers


async def test_follower_of_all_streams_has_all(held, control, logs):
    out = [b"out %d\n" % number for number in range(20)]
    err = [b"err %d\n" % number for number in range(20)]

    async def job():
        await asyncio.gather(write_slowly(held, out), write_slowly(held, err, "stderr"))
        await held.complete()

    answer, _ = await asyncio.gather(follow(control, held, "all"), job())

    assert answer.content == await logs.text(held, "all")
    assert sorted(answer.content.splitlines(keepends=True)) == sorted(out + err)


@pytest.mark.parametrize("stream", ["stdout", "all"])
async def test_fifty_reconnects_lose_and_double_nothing(stream, held, logs, services):
    """A reader that hangs up after any number of bytes goes on from where it was."""
    dice = random.Random(5)
    chunks = [bytes(dice.choices(b"abc \n", k=dice.randrange(1, 400))) + b"\n" for _ in range(60)]
    view = View(held.attempt["id"], None if stream == "all" else stream)
    read, connections = b"", 0

    async def reader():
        nonlocal read, connections
        while True:
            layout = await lay_out_settled(services, view)
            follower = Follower(services, view, len(read))
            connections += 1
            wanted = dice.randrange(1, 300) if connections <= 50 else 1 << 30
            async with contextlib.aclosing(follower.pieces(layout)) as pieces:
                async for piece in pieces:
                    kept = piece[:wanted]  # the rest was lost on the way
                    read += kept
                    wanted -= len(kept)
                    if wanted <= 0:
                        break
            if follower.complete and len(read) == follower.offset:
                return

    async def job():
        await write_slowly(held, chunks)
        await held.complete()

    async with asyncio.timeout(100):
        await asyncio.gather(reader(), job())

    assert connections > 50
    assert read == b"".join(chunks) == await logs.text(held, stream)


async def test_reconnects_over_http_by_the_last_event(held, control):
    text = "größer als ein Byte: ß…🙂\n" * 40
    data = text.encode()
    await held.log(data, 0, final=True)

    got, last, turns = "", None, 0
    while True:
        headers = SSE if last is None else {**SSE, "Last-Event-ID": str(last)}
        answer = await follow(control, held, headers=headers)
        [first, *_] = events(answer.text)
        turns += 1
        if first[0] == "end":
            break
        # Only a part of the first event is believed: the next one begins within its text.
        kept = first[2]["text"][:20]
        assert first[2]["offset"] == len(got.encode())
        got += kept
        last = len(got.encode())

    assert got == text
    assert turns > 40
    assert first[2] == {"offset": len(data), "complete": True}


async def test_events_never_break_a_character(held, control, services):
    data = "🙂ß…a\n".encode() * 10_000
    for start in range(0, len(data), 22_000):
        await held.log(data[start : start + 22_000], start, final=start + 22_000 >= len(data))

    found = events((await follow(control, held, headers=SSE)).text)

    assert "".join(event[2].get("text", "") for event in found) == data.decode()
    places = [event[2]["offset"] for event in found]
    assert places == [0, *(event[1] for event in found[:-1])]
    assert found[-1][0] == "end"


async def test_bytes_that_are_no_text_are_shown_as_such_and_counted(held, control):
    await held.log(b"a\xff\xfe b\n\xf0\x9f\x99", 0, final=True)

    found = events((await follow(control, held, headers=SSE)).text)

    text = "".join(event[2].get("text", "") for event in found)
    assert text.startswith("a\ufffd\ufffd b\n")
    assert found[-1][1] == 9
    assert (await follow(control, held)).content == b"a\xff\xfe b\n\xf0\x9f\x99"


@pytest.mark.parametrize("value", ["-1", "x", "9" * 30, "1.5"])
async def test_bad_last_event_is_refused(value, held, control):
    answer = await follow(control, held, headers={**SSE, "Last-Event-ID": value})

    assert answer.status_code == 422


async def test_follow_from_the_tail(held, control):
    await held.log(b"one\ntwo\nthree\n", 0)

    answer, _ = await asyncio.gather(
        follow(control, held, query={"tail": 1}), held.log(b"four\n", 14, final=True)
    )

    assert answer.content == b"three\nfour\n"
    assert answer.headers["Log-Offset"] == "8"


async def test_follower_of_a_log_that_waits_ends_in_time_and_says_that_it_is_not_complete(
    held, open_instance, issuer, control
):
    instance = await open_instance(LIMITS__MAX_FOLLOW_SECONDS=0.3)
    await held.log(b"one\n", 0)

    async with serve_in_process(instance) as http:
        control.http = http
        plain = await follow(control, held)
        found = events((await follow(control, held, headers=SSE)).text)

    assert plain.content == b"one\n"
    assert [(event[0], event[1]) for event in found] == [("log", 4), ("end", 4)]
    assert found[-1][2]["complete"] is False


async def test_follower_that_is_far_behind_ends_in_time_too(held, open_instance, control):
    """It goes on from where it was cut, and has everything in the end."""
    instance = await open_instance(LIMITS__MAX_FOLLOW_SECONDS=0.001)
    lines = [b"line %d\n" % number for number in range(5)]
    for number, line in enumerate(lines):
        await held.log(line, 7 * number, final=number == len(lines) - 1)

    read, turns = b"", 0
    async with serve_in_process(instance) as http:
        control.http = http
        while len(read) < 35:
            read += (await follow(control, held, query={"offset": len(read)})).content
            turns += 1

    assert read == b"".join(lines)
    assert turns > 1


async def test_follower_leaves_when_the_instance_is_about_to_stop(held, open_instance, control):
    instance = await open_instance()
    await held.log(b"one\n", 0)

    async with serve_in_process(instance) as http:
        control.http = http
        following = asyncio.create_task(follow(control, held))
        await asyncio.sleep(0.2)
        instance.signals.drain()
        answer = await asyncio.wait_for(following, 5)

    assert answer.content == b"one\n"


# --- when it ends ---------------------------------------------------------------------------------


@pytest.fixture
async def world(clock, services, control, make_runner, sql) -> World:
    return World(services, control, control, make_runner, sql)


async def state(services, attempt_id, stream="stdout") -> tuple[str, bool]:
    """What a follower has by now, and whether it knows that nothing more can come."""
    view = View(attempt_id, stream)
    follower = Follower(services, view, 0)
    layout = await lay_out_settled(services, view)
    got = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3), contextlib.aclosing(follower.pieces(layout)) as pieces:
            async for piece in pieces:
                got += piece
    return got.decode(), follower.complete


async def test_stream_that_was_not_closed_is_waited_for_until_its_grace_is_over(
    world, clock, services
):
    held = await world.running()
    await held.log(b"one\n", 0)
    await held.complete()

    early = await state(services, held.attempt_id)
    await held.log(b"two\n", 4)
    await clock.forward(119)
    later = await state(services, held.attempt_id)
    await clock.forward(1)

    assert early == ("one\n", False)
    assert later == ("one\ntwo\n", False)
    assert await state(services, held.attempt_id) == ("one\ntwo\n", True)


async def test_silent_stream_ends_with_the_others_of_an_ended_lease(world, services):
    held = await world.running()
    await held.log(b"one\n", 0, final=True)
    before = await state(services, held.attempt_id, "stderr")
    await held.complete()

    assert before == ("", False)
    assert await state(services, held.attempt_id, "stderr") == ("", True)


async def test_attempt_without_a_lease_that_ended_has_no_log(world, services):
    attempt_id = await world.create()
    before = await state(services, attempt_id)
    await world.cancel(attempt_id)

    assert before == ("", False)
    assert await state(services, attempt_id) == ("", True)


async def test_next_lease_waits_until_nothing_of_the_one_before_can_come(
    control, make_runner, sql, clock, services
):
    first, second = await two_leases(control, make_runner, sql)
    await second.log(b"of the second\n", 0)

    early = await state(services, first.attempt_id)
    await first.log(b"late\n", 13)
    between = await state(services, first.attempt_id)
    await clock.forward(120)

    text = "of the first\nlate\n--- lease 2 ---\nof the second\n"
    assert early == ("of the first\n", False)
    assert between == ("of the first\nlate\n", False)
    assert await state(services, first.attempt_id) == (text, False)
    await second.log(b"", 14, final=True)
    assert await state(services, first.attempt_id) == (text, True)


async def test_one_lease_can_be_followed_without_waiting_for_others(
    control, make_runner, sql, clock
):
    first, second = await two_leases(control, make_runner, sql)
    await second.log(b"of the second\n", 0, final=True)

    answer = await follow(control, first, query={"lease_number": 2})

    assert answer.content == b"of the second\n"


async def test_follower_goes_over_from_one_lease_to_the_next(control, make_runner, sql):
    first, second = await two_leases(control, make_runner, sql)
    following = asyncio.create_task(follow(control, first))
    await first.log(b"", 13, final=True)
    await second.log(b"of the second\n", 0)
    await second.log(b"its end\n", 14, final=True)

    answer = await asyncio.wait_for(following, 20)

    assert answer.content == b"of the first\n--- lease 2 ---\nof the second\nits end\n"


async def test_waiting_holds_no_connection(held, services, control, issuer):
    """More followers than the pool has connections, and everybody else still gets an answer."""
    await held.log(b"one\n", 0)
    followers = [asyncio.create_task(follow(control, held)) for _ in range(30)]
    await asyncio.sleep(1)

    for _ in range(3):
        assert (await control.get(held.attempt_id))["status"] == "running"
    await held.log(b"two\n", 4, final=True)

    answers = await asyncio.wait_for(asyncio.gather(*followers), 30)
    assert {answer.content for answer in answers} == {b"one\ntwo\n"}
