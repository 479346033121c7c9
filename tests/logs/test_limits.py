"""The limit of an attempt's logs, and the time in which its last lines are taken."""

import pytest

from tests.conftest import serve_in_process
from tests.driver import Held, RunnerClient
from tests.lifecycle.world import World
from tests.logs.world import send

MIB = 1 << 20
LINE = b"a line of a log, and it is a hundred bytes long: " + b"-" * 50 + b"\n"


def under(held: Held, http, runner_token) -> Held:
    """The same lease through another instance."""
    claimed = {"lease": held.lease, "attempt": held.attempt, "continuation": None}
    return Held(
        RunnerClient(http, runner_token, id=held.runner.id),
        {**claimed, "lease_token": held.token},
    )


@pytest.fixture
async def small(held, open_instance, runner_token) -> Held:
    """The lease at an instance that keeps one MiB of logs an attempt."""
    instance = await open_instance(LIMITS__MAX_LOG_BYTES_PER_ATTEMPT=MIB)
    async with serve_in_process(instance) as http:
        yield under(held, http, runner_token)


@pytest.fixture
async def small_reader(small, issuer, control):
    """Reads at the same instance, which alone knows the limit."""
    control.http = small.runner.http
    return control


async def test_log_is_kept_to_the_limit_and_then_refused_for_good(small, small_reader):
    await small.log(LINE * 10_000, 0)

    last = await small.log(LINE * 1000, 1_000_000)
    refused = await small.log(LINE * 1000, last.json()["next_offset"])
    again = await small.log(b"x\n", last.json()["next_offset"])
    final = await small.log(b"", last.json()["next_offset"], final=True)

    assert last.json()["next_offset"] == MIB // 100 * 100
    assert (refused.status_code, refused.json()["reason"]) == (413, "log-limit-reached")
    assert refused.json()["next_offset"] == MIB // 100 * 100
    assert (again.status_code, final.status_code) == (413, 200)
    text = (await small_reader.read_log(small.attempt_id)).content
    assert text == LINE * (MIB // 100) + (
        b"--- cut off: the logs of one attempt may have 1,048,576 bytes in all ---\n"
    )
    await small.complete()
    assert await small_reader.status(small.attempt_id) == "succeeded"


async def test_limit_is_told_once_an_attempt_and_marked_in_every_stream(small, small_reader):
    await small.log(LINE * 10_485, 0)
    for _ in range(2):
        for stream in ("stdout", "stderr"):
            answer = await small.log(LINE * 10, 1_048_500 if stream == "stdout" else 0, stream)
            assert answer.status_code == 413

    told = [e for e in await small_reader.events(small.attempt_id) if "trunc" in e["event_type"]]
    assert [event["payload"]["stream"] for event in told] == ["stdout"]
    assert told[0]["payload"]["limit_bytes"] == MIB
    assert told[0]["payload"]["next_offset"] == 1_048_500
    answer = await small_reader.call("GET", f"/v1/attempts/{small.attempt_id}/logs")
    states = answer.json()["streams"]
    assert {one["stream"]: one["truncated"] for one in states} == {"stdout": True, "stderr": True}
    for stream in ("stdout", "stderr"):
        text = (await small_reader.read_log(small.attempt_id, stream)).content
        assert text.count(b"--- cut off") == 1


async def test_repeat_of_what_is_stored_is_answered_beyond_the_limit_too(small):
    await small.log(LINE * 10_485, 0)
    await small.log(LINE * 10, 1_048_500)

    repeated = await small.log(LINE * 10_485, 0)

    assert (repeated.status_code, repeated.json()["next_offset"]) == (200, 1_048_500)


async def test_sender_without_line_ends_reaches_the_limit_too(small, small_reader):
    at, data = 0, b"Q" * (2 * MIB)
    while True:
        answer = await small.log(data[at : at + 300_000], at)
        if answer.status_code != 200:
            break
        assert answer.json()["next_offset"] > at
        at = answer.json()["next_offset"]

    assert answer.json()["reason"] == "log-limit-reached"
    assert MIB - 70_000 < at <= MIB
    assert (await small_reader.read_log(small.attempt_id)).content.count(b"Q") == at


# --- the grace ------------------------------------------------------------------------------------

GRACE, LEASE = 120, 30


@pytest.fixture
async def world(clock, services, control, make_runner, sql) -> World:
    return World(services, control, control, make_runner, sql)


async def ended(world) -> Held:
    held = await world.running()
    await held.complete()
    return held


async def test_grace_waits_for_our_outage(world, clock):
    held = await ended(world)

    await clock.forward(100)
    await clock.forward(500, serving=False)
    before_a_tick = await held.log(b"one\n", 0)
    await world.tick()
    after_it = await held.log(b"two\n", 4)
    await clock.forward(19 + LEASE)
    in_time = await held.log(b"three\n", 8)
    await clock.forward(2)
    late = await held.log(b"four\n", 14)

    statuses = [answer.status_code for answer in (before_a_tick, after_it, in_time, late)]
    assert statuses == [200, 200, 200, 409]


async def test_grace_that_was_over_before_our_outage_stays_over(world, clock):
    held = await ended(world)

    await clock.forward(GRACE)
    await clock.forward(500, serving=False)
    before_a_tick = await held.log(b"one\n", 0)
    await world.tick()
    after_it = await held.log(b"one\n", 0)

    assert [before_a_tick.status_code, after_it.status_code] == [409, 409]


async def test_outage_before_the_end_does_not_lengthen_the_grace(world, clock):
    held = await world.running()
    await clock.forward(500, serving=False)
    await world.tick()
    await held.complete()

    await clock.forward(GRACE)

    assert (await held.log(b"one\n", 0)).status_code == 409


async def test_lease_that_ended_within_our_outage_has_its_whole_grace_after_it(world, clock):
    held = await world.running()
    await clock.forward(200, serving=False)
    await held.complete()
    await clock.forward(200, serving=False)
    await world.tick()

    await clock.forward(GRACE + LEASE - 1)
    in_time = await held.log(b"one\n", 0)
    await clock.forward(2)
    late = await held.log(b"two\n", 4)

    assert [in_time.status_code, late.status_code] == [200, 409]


async def test_store_that_was_away_stores_once_later(held, open_instance, runner_token, logs):
    away = await open_instance(OBJECTS__ENDPOINT_URL="http://127.0.0.1:1")
    async with serve_in_process(away) as http:
        for offset in (0, 0, 0):
            answer = await under(held, http, runner_token).log(b"one\ntwo\n", offset)
            assert (answer.status_code, answer.json()["reason"]) == (
                503,
                "object-store-unavailable",
            )

    await send(held, b"one\ntwo\nthree", iter([4, 4, 5]))

    assert await logs.text(held) == b"one\ntwo\nthree"
    assert len(await logs.stored()) == 3
