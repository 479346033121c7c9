"""The feed and the timeline as callers see them."""

import asyncio
import time
from contextlib import aclosing
from datetime import datetime
from itertools import pairwise
from uuid import uuid4

import asyncpg
import pytest

from app.domain.feed import Cursor
from tests.feed import crowd
from tests.feed.crowd import follow
from tests.feed.test_cursors import GARBAGE

WITHIN = 10


@pytest.fixture
async def instance(open_instance):
    return await open_instance()


@pytest.fixture
async def http(instance):
    async with instance.client() as client:
        yield client


async def read(http, **query):
    answer = await http.get("/v1/events", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_life_is_told_in_the_one_body(http, control, runner):
    await runner.register()
    made = await control.create()
    await (await runner.start()).complete(result={"lines": 3})

    page = await read(http)

    items = page["items"]
    assert [item["type"] for item in items] == [
        *("attempt.created", "attempt.leased", "attempt.started", "attempt.succeeded")
    ]
    assert set(items[0]) == {"id", "type", "timestamp", "attempt_id", "event_number", "data"}
    assert {item["attempt_id"] for item in items} == {made["id"]}
    assert [item["event_number"] for item in items] == [1, 2, 3, 4]
    assert items[3]["data"]["result"] == {"lines": 3}
    assert page["caught_up"] is True
    timeline = await control.events(made["id"])
    assert [item["id"] for item in items] == [event["id"] for event in timeline]
    assert [item["timestamp"] for item in items] == [event["created_at"] for event in timeline]


async def test_latest_begins_now_and_every_answer_has_a_cursor(http, control):
    await control.create()

    now = await read(http, after="latest")
    made = await control.create()
    later = await read(http, after=now["next_cursor"])
    again = await read(http, after=later["next_cursor"])

    assert now["items"] == []
    assert [item["attempt_id"] for item in later["items"]] == [made["id"]]
    assert again["items"] == []
    assert Cursor.decode(again["next_cursor"]) == Cursor.decode(later["next_cursor"])


async def test_types_are_chosen_and_the_cursor_moves_over_the_others(http, control, runner):
    await runner.register()
    await control.create()
    await (await runner.start()).complete()

    for types in ("attempt.started,attempt.succeeded", ["attempt.started", "attempt.succeeded"]):
        page = await read(http, types=types)
        assert [item["type"] for item in page["items"]] == ["attempt.started", "attempt.succeeded"]
    none = await read(http, types="attempt.lost")
    assert (none["items"], none["caught_up"]) == ([], True)
    assert (await read(http, after=none["next_cursor"]))["items"] == []


async def test_a_wait_ends_with_the_first_event(http, control):
    waiting = asyncio.create_task(read(http, after="latest", wait_seconds=40))
    await asyncio.sleep(0.3)
    assert not waiting.done()

    made = await control.create()

    page = await asyncio.wait_for(waiting, WITHIN)
    assert [item["attempt_id"] for item in page["items"]] == [made["id"]]


async def test_a_wait_holds_no_connection(instance, http):
    waiting = [asyncio.create_task(read(http, after="latest", wait_seconds=40)) for _ in range(30)]
    await asyncio.sleep(1)

    in_use = instance.services.database.in_use

    assert not any(one.done() for one in waiting)
    assert in_use <= 2
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_wait_over_its_limit_ends_with_a_cursor(open_instance, control):
    instance = await open_instance(LIMITS__MAX_WAIT_SECONDS=0.2)
    async with instance.client() as http:
        page = await asyncio.wait_for(read(http, wait_seconds=3000), WITHIN)
        made = await control.create()
        later = await read(http, after=page["next_cursor"])

    assert page["items"] == []
    assert [item["attempt_id"] for item in later["items"]] == [made["id"]]


async def test_waits_and_streams_end_at_a_drain_and_lose_nothing(instance, http, control):

    async def stream() -> list:
        return [frame async for frame in follow(http, "/v1/events")]

    first = await control.create()
    streaming = asyncio.create_task(stream())
    waiting = asyncio.create_task(read(http, after="latest", wait_seconds=40))
    await asyncio.sleep(0.5)

    instance.services.signals.drain()

    page = await asyncio.wait_for(waiting, WITHIN)
    frames = await asyncio.wait_for(streaming, WITHIN)
    assert page["items"] == []
    assert [data["attempt_id"] for _, data in frames] == [first["id"]]
    second = await control.create()
    for cursor in (page["next_cursor"], frames[-1][0]):
        later = await read(http, after=cursor)
        assert [item["attempt_id"] for item in later["items"]] == [second["id"]]


# --- the stream -----------------------------------------------------------------------------------


async def test_a_stream_tells_events_as_they_happen(http, control):
    before = await control.create()
    async with aclosing(follow(http, "/v1/events")) as frames:
        _, first = await asyncio.wait_for(anext(frames), WITHIN)
        made = await control.create()
        cursor, second = await asyncio.wait_for(anext(frames), WITHIN)

    assert [first["attempt_id"], second["attempt_id"]] == [before["id"], made["id"]]
    page = await read(http)
    assert page["items"] == [first, second]
    assert (await read(http, after=cursor))["items"] == []


async def test_a_stream_is_resumed_after_its_last_event(http, control):
    made = [await control.create() for _ in range(3)]
    async with aclosing(follow(http, "/v1/events")) as frames:
        cursor, _ = await anext(frames)

    async with aclosing(follow(http, "/v1/events", cursor)) as frames:
        rest = [(await anext(frames))[1]["attempt_id"] for _ in range(2)]

    assert rest == [made[1]["id"], made[2]["id"]]


async def test_a_stream_ends_by_itself_and_says_where_it_was(open_instance, control):
    limits = {"LIMITS__MAX_STREAM_SECONDS": 0.6, "LIMITS__STREAM_KEEP_ALIVE_SECONDS": 0.2}
    instance = await open_instance(**limits)
    await control.create()
    async with instance.client() as http:
        query = "/v1/events?types=attempt.lost"

        async def all_of() -> list:
            return [frame async for frame in follow(http, query)]

        frames = await asyncio.wait_for(all_of(), WITHIN)

        assert frames
        assert all(data is None for _, data in frames)
        assert (await read(http, after=frames[-1][0]))["items"] == []


async def test_a_stream_that_nobody_reads_any_more_ends(instance, http):
    async with aclosing(follow(http, "/v1/events")):
        pass
    async with http.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}):
        waiters = instance.services.signals._waiters
        until = time.monotonic() + WITHIN
        while "feed" not in waiters and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert "feed" in waiters

    until = time.monotonic() + WITHIN
    while "feed" in waiters and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert "feed" not in waiters


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [one for one in GARBAGE if one and len(one) <= 200])
async def test_garbage_is_no_cursor(http, text):
    answer = await http.get("/v1/events", params={"after": text})

    assert (answer.status_code, answer.json()["reason"]) == (400, "feed-cursor-invalid")
    if text.isascii() and text.isprintable() and text == text.strip():
        for path in ("/v1/events",):
            headers = {"Accept": "text/event-stream", "Last-Event-ID": text}
            answer = await http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (400, "feed-cursor-invalid")


async def test_what_cannot_be_meant_is_refused(http):
    for query in (
        {"after": "9" * 201},
        {"types": "attempt.exploded"},
        {"types": ""},
        {"types": "succeeded"},
        {"page_size": 0},
        {"page_size": 1001},
        {"wait_seconds": -1},
        {"wait_seconds": "nan"},
        {"limit": 5},
    ):
        answer = await http.get("/v1/events", params=query)
        assert answer.status_code == 422, (query, answer.text)
        assert answer.json()["reason"] == "request-invalid"


async def test_a_cursor_of_another_database_is_told_where_to_begin(http, control):
    made = await control.create()
    here = Cursor.decode((await read(http))["next_cursor"])
    foreign = Cursor(here.epoch + 40, 1, here.attempt_id, 1, here.created_from)

    answer = await http.get("/v1/events", params={"after": foreign.encode()})

    assert (answer.status_code, answer.json()["reason"]) == (410, "feed-epoch-changed")
    begun = await read(http, after=answer.json()["start"])
    assert [item["attempt_id"] for item in begun["items"]] == [made["id"]]


async def test_only_the_control_plane_and_operators_may_read(instance):
    for role, status in (("operator", 200), ("runner", 403), ("pubsub", 403)):
        async with instance.client(role) as http:
            assert (await http.get("/v1/events")).status_code == status
    async with instance.client() as http:
        del http.headers["authorization"]
        assert (await http.get("/v1/events")).status_code == 401


# --- the timeline of one attempt ------------------------------------------------------------------


async def test_a_timeline_tells_the_time_between_its_steps(control, runner):
    await runner.register()
    made = await control.create()
    await (await runner.start()).complete()

    whole = await control.events(made["id"])
    pages, token = [], None
    while True:
        query = {"page_size": 1, **({"page_token": token} if token else {})}
        answer = await control.call("GET", f"/v1/attempts/{made['id']}/events", params=query)
        pages += answer.json()["items"]
        token = answer.json()["next_page_token"]
        if token is None:
            break

    assert pages == whole
    times = [datetime.fromisoformat(event["created_at"]) for event in whole]
    between = [b - a for a, b in pairwise(times)]
    assert whole[0]["seconds_after_previous"] is None
    assert [event["seconds_after_previous"] for event in whole[1:]] == [
        one.total_seconds() for one in between
    ]
    assert all(event["seconds_after_previous"] >= 0 for event in whole[1:])


async def test_a_timeline_is_streamed_and_resumed(http, control, runner):
    await runner.register()
    made = await control.create()
    path = f"/v1/attempts/{made['id']}/events"
    async with aclosing(follow(http, path)) as frames:
        number, first = await asyncio.wait_for(anext(frames), WITHIN)
        held = await runner.start()
        second = await asyncio.wait_for(anext(frames), WITHIN)
    await held.complete()

    async with aclosing(follow(http, path, second[0])) as frames:
        rest = [await asyncio.wait_for(anext(frames), WITHIN) for _ in range(2)]

    told = [first, second[1], *(data for _, data in rest)]
    assert number == "1"
    assert told == await control.events(made["id"])


async def test_a_timeline_that_is_not_there_or_cannot_be_resumed(http, control):
    made = await control.create()
    stream = {"Accept": "text/event-stream"}

    missing = await http.get(f"/v1/attempts/{uuid4()}/events", headers=stream)
    resumed = await http.get(
        f"/v1/attempts/{uuid4()}/events", headers={**stream, "Last-Event-ID": "3"}
    )

    assert (missing.status_code, resumed.status_code) == (404, 404)
    for last in ("x", "-1", "1.5", "9" * 10, "1 OR 1=1", "²"):
        answer = await http.get(
            f"/v1/attempts/{made['id']}/events",
            headers={**stream, "Last-Event-ID": last.encode()},
        )
        assert (answer.status_code, answer.json()["reason"]) == (400, "feed-cursor-invalid"), last


# --- what holds the feed back ---------------------------------------------------------------------


async def test_what_holds_the_feed_back_is_named(http, database_url):
    slow = await asyncpg.connect(database_url)
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("-- some.statement\nSELECT pg_current_xact_id()")
    pid = slow.get_server_pid()
    await asyncio.sleep(1.1)  # below that nobody would feel it

    ready = (await http.get("/readyz")).json()
    metrics = (await http.get("/metrics")).text
    await transaction.rollback()
    free = (await http.get("/readyz")).json()
    await slow.close()

    held = ready["feed_held_back"]
    assert held["seconds"] > 1
    assert held["by"] == f"session {pid}"
    assert held["statement"] == "some.statement"
    assert held["state"].startswith("idle in transaction")
    [line] = [
        line
        for line in metrics.splitlines()
        if line.startswith("execution_plane_feed_horizon_age_seconds ")
    ]
    assert float(line.split()[1]) > 1
    assert free["feed_held_back"] is None


def test_the_crowd_counts_inversions():
    assert crowd.inversions([("a", 1), ("b", 1), ("a", 3), ("a", 2), ("b", 2)]) == 1
