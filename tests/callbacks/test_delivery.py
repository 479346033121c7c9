"""What a receiver gets: every event, an attempt's in order, signed, whatever fails."""

import asyncio
from uuid import UUID

import pytest
from starlette.responses import Response

from app.domain.callbacks import batch_id
from app.loops.callback_worker import Overtaken
from tests.callbacks.receiver import Got

LIFE = ["created", "leased", "started", "succeeded"]


async def test_a_life_arrives_in_order_signed_and_with_the_id_of_its_events(
    callbacks, receiver, lives, sql
):
    made = await callbacks.put(url=receiver.url)
    attempt = await lives.one()

    await callbacks.drain(await callbacks.worker())

    assert [event["type"] for event in receiver.taken] == [f"attempt.{one}" for one in LIFE]
    assert receiver.numbers(attempt) == [1, 2, 3, 4]
    assert all(got.is_genuine(made["signing_secret"]) for got in receiver.requests)
    ids = [
        str(row["id"])
        for row in await sql.fetch("SELECT id FROM attempt_events ORDER BY event_number")
    ]
    assert [got.headers["webhook-id"] for got in receiver.requests] == ids
    assert [event["id"] for event in receiver.taken] == ids
    assert receiver.requests[0].headers["content-type"] == "application/json"


async def test_a_changed_byte_anywhere_fails_the_verification(callbacks, receiver, lives):
    made = await callbacks.put(url=receiver.url)
    await lives.created()
    await callbacks.drain(await callbacks.worker())
    [got] = receiver.requests

    forged = [
        Got(got.headers, got.body[:at] + bytes([got.body[at] ^ 1]) + got.body[at + 1 :])
        for at in range(len(got.body))
        if got.body[at] ^ 1 < 128
    ]

    assert got.is_genuine(made["signing_secret"])
    assert not any(one.is_genuine(made["signing_secret"]) for one in forged)
    assert not Got({**got.headers, "webhook-id": "other"}, got.body).is_genuine(
        made["signing_secret"]
    )


async def test_filters_narrow_what_is_sent_and_the_rest_is_passed(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url, event_types=["attempt.succeeded"])
    wanted = await lives.one()
    worker = await callbacks.worker()

    await callbacks.drain(worker)
    await lives.created(3)
    await callbacks.drain(worker)

    assert [(one["attempt_id"], one["type"]) for one in receiver.taken] == [
        (wanted, "attempt.succeeded")
    ]
    assert (await callbacks.get())["behind"] == 0


async def test_a_new_subscription_begins_where_it_was_asked_to(callbacks, receiver, lives):
    [before] = await lives.created()
    for name, start in (("now", "now"), ("oldest", "oldest")):
        await callbacks.put(name, url=receiver.url, start=start)
    cursor = (await callbacks.get("now"))["cursor"]
    [after] = await lives.created()
    await callbacks.put("cursor", url=receiver.url, start=cursor)

    got = {}
    for name in ("now", "oldest", "cursor"):
        receiver.requests.clear()
        await _serve_only(callbacks, name)
        got[name] = {event["attempt_id"] for event in receiver.taken}

    assert got == {"now": {after}, "oldest": {before, after}, "cursor": {after}}


async def _serve_only(callbacks, name: str) -> None:
    """Others look as if somebody served them."""
    await callbacks.sql.execute(
        "UPDATE callback_cursors c SET holder = CASE WHEN s.name = $1 THEN NULL "
        "ELSE gen_random_uuid() END, lease_expires_at = clock_fact() + interval '1 h' "
        "FROM callback_subscriptions s WHERE s.id = c.subscription_id",
        name,
    )
    await callbacks.drain(await callbacks.worker())


async def test_a_batch_holds_many_and_its_id_is_made_of_theirs(callbacks, receiver, lives):
    made = await callbacks.put(url=receiver.url, max_batch=3)
    await lives.one()

    await callbacks.drain(await callbacks.worker())

    assert [len(got.events) for got in receiver.requests] == [3, 1]
    assert all("events" in got.json for got in receiver.requests)
    for got in receiver.requests:
        ids = [UUID(event["id"]) for event in got.events]
        assert got.headers["webhook-id"] == str(batch_id(ids))
        assert got.is_genuine(made["signing_secret"])


async def test_a_refused_batch_is_sent_one_by_one_and_only_the_unwanted_is_parked(
    callbacks, receiver, lives
):
    ids = await lives.created(5)
    bad = ids[2]
    receiver.answering = lambda got: (
        400 if any(event["attempt_id"] == bad for event in got.events) else 200
    )
    await callbacks.put(url=receiver.url, max_batch=10, start="oldest")

    await callbacks.drain(await callbacks.worker())

    assert {event["attempt_id"] for event in receiver.taken} == set(ids) - {bad}
    assert len(receiver.requests[0].events) == 5
    assert (await callbacks.get())["parked"] == 1


async def test_an_event_that_is_refused_waits_apart_and_holds_back_only_its_own_attempt(
    callbacks, receiver, lives
):
    await callbacks.put(url=receiver.url)
    bad, good = await lives.one(), await lives.one()
    receiver.answering = lambda got: (
        422 if got.json["attempt_id"] == bad and got.json["event_number"] == 2 else 200
    )
    worker = await callbacks.worker()

    await callbacks.drain(worker)
    later = await lives.one()
    await callbacks.drain(worker)

    assert receiver.numbers(bad) == [1]
    assert receiver.numbers(good) == receiver.numbers(later) == [1, 2, 3, 4]
    standing = await callbacks.get()
    assert (standing["state"], standing["parked"], standing["behind"]) == ("active", 1, 0)

    receiver.answering = lambda _: 200
    await callbacks.skip_waits()
    await callbacks.repair(worker)

    assert receiver.numbers(bad) == [1, 2, 3, 4]
    assert (await callbacks.get())["parked"] == 0
    receiver.assert_in_order()


async def test_what_comes_while_an_attempt_is_parked_waits_behind_it(
    callbacks, receiver, control, runner
):
    await callbacks.put(url=receiver.url)
    await runner.register()
    bad = (await control.create())["id"]
    other = (await control.create())["id"]
    receiver.answering = lambda got: 500 if got.json["attempt_id"] == bad else 200
    worker = await callbacks.worker()
    await callbacks.drain(worker)

    held = await runner.start()
    assert held.attempt_id == bad
    await held.complete()
    await callbacks.drain(worker)
    assert receiver.numbers(bad) == []
    receiver.answering = lambda _: 200
    await callbacks.skip_waits()
    await callbacks.repair(worker)
    await callbacks.drain(worker)

    assert receiver.numbers(bad) == [1, 2, 3, 4]
    assert receiver.numbers(other) == [1]


async def test_a_parked_event_that_is_refused_again_waits_longer(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    bad, _ = await lives.created(2)
    receiver.answering = lambda got: 500 if got.json["attempt_id"] == bad else 200
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    waits = []

    for _ in range(5):
        await callbacks.skip_waits()
        await callbacks.repair(worker)
        waits.append(
            await sql.fetchval(
                "SELECT extract(epoch FROM next_try_at - clock_fact())::float8 FROM callback_parked"
            )
        )

    assert waits == sorted(waits)
    assert waits[-1] > 60


async def test_a_receiver_that_is_down_gets_all_of_it_later_and_nothing_is_parked(
    callbacks, receiver, lives
):
    await callbacks.put(url=receiver.url)
    attempts = [await lives.one() for _ in range(6)]
    receiver.answering = lambda _: 503
    worker = await callbacks.worker()

    for number in range(1, 6):
        wait = await worker.live_once()
        assert wait.seconds and 0.5 * 2 ** (number - 1) <= wait.seconds <= 2 ** (number - 1)
        await callbacks.skip_waits()
    standing = await callbacks.get()
    assert (standing["state"], standing["failures"], standing["parked"]) == ("failing", 5, 0)
    assert (standing["last_status"], standing["last_result"]) == (503, "refused")
    assert len(receiver.requests) <= 5 * 4
    receiver.answering = lambda _: 200
    await callbacks.drain(worker)

    assert all(receiver.numbers(one) == [1, 2, 3, 4] for one in attempts)
    assert (await callbacks.get())["state"] == "active"


async def test_no_second_try_before_its_time(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    await lives.created()
    receiver.answering = lambda _: 503
    worker = await callbacks.worker()
    first = await worker.live_once()

    second = await worker.live_once()

    assert len(receiver.requests) == 1
    assert second.seconds is not None and 0 < second.seconds <= first.seconds


async def test_the_only_event_is_parked_when_it_is_refused_but_not_when_nobody_answers(
    callbacks, receiver, lives
):
    await callbacks.put(url=receiver.url)
    await lives.created()
    receiver.answering = lambda _: 400
    worker = await callbacks.worker()

    await callbacks.drain(worker)
    assert (await callbacks.get())["parked"] == 1
    await lives.created()
    await receiver.stop()
    for _ in range(6):
        await worker.live_once()
        await callbacks.skip_waits()

    standing = await callbacks.get()
    assert (standing["parked"], standing["failures"]) == (1, 6)
    assert standing["last_result"] == "unreachable"


async def test_410_stops_the_subscription_and_says_so(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    await lives.created(3)
    receiver.answering = lambda _: 410
    worker = await callbacks.worker()

    with pytest.raises(Overtaken):
        await worker.live_once()

    standing = await callbacks.get()
    assert (standing["state"], standing["pause_reason"]) == ("paused", "gone")
    assert standing["last_status"] == 410
    receiver.answering = lambda _: 200
    await callbacks.post("resume")
    await callbacks.drain(await callbacks.worker())
    assert len(receiver.taken) == 3


async def test_a_pause_that_the_receiver_asks_for_is_kept_up_to_an_hour(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    await lives.created(3)
    worker = await callbacks.worker()
    seconds = []
    for asked in ("120", "1000000000", "-5", "0"):
        receiver.answering = lambda _, asked=asked: Response("", 429, {"Retry-After": asked})
        seconds.append((await worker.live_once()).seconds)
        await callbacks.skip_waits()

    assert seconds[:2] == [120, 3600]
    assert 0 < seconds[2] < 5
    assert 1 <= seconds[3] < 9
    assert (await callbacks.get())["parked"] == 0


async def test_after_too_long_without_an_acceptance_it_pauses_and_a_resume_loses_nothing(
    callbacks, receiver, lives, sql
):
    await callbacks.put(url=receiver.url, pause_after_seconds=3600)
    ids = await lives.created(3)
    receiver.answering = lambda _: 500
    worker = await callbacks.worker()
    await worker.live_once()
    await callbacks.skip_waits()
    await sql.execute("UPDATE callback_cursors SET failing_since = clock_fact() - interval '1 h'")

    with pytest.raises(Overtaken):
        await worker.live_once()

    standing = await callbacks.get()
    assert (standing["state"], standing["pause_reason"]) == ("paused", "refused_too_long")
    assert standing["last_event_id"] is not None
    with pytest.raises(ValueError, match="not enough values"):
        await callbacks.worker()
    receiver.answering = lambda _: 200
    await callbacks.post("resume")
    await callbacks.drain(await callbacks.worker())
    assert {event["attempt_id"] for event in receiver.taken} == set(ids)


async def test_over_the_allowed_number_of_parked_attempts_it_pauses(
    callbacks, receiver, lives, make_settings
):
    await callbacks.put(url=receiver.url)
    settings = callbacks.services.settings
    object.__setattr__(
        settings, "callbacks", settings.callbacks.model_copy(update={"max_parked": 3})
    )
    ids = await lives.created(8)
    receiver.answering = lambda got: 200 if got.json["attempt_id"] in ids[:4] else 400
    worker = await callbacks.worker()

    with pytest.raises(Overtaken):
        for _ in range(10):
            await worker.live_once()
            await callbacks.skip_waits()

    standing = await callbacks.get()
    assert (standing["pause_reason"], standing["parked"]) == ("too_many_parked", 4)


async def test_a_crash_after_sending_repeats_with_the_same_ids_and_skips_nothing(
    callbacks, receiver, lives, monkeypatch
):
    await callbacks.put(url=receiver.url)
    attempt = await lives.one()
    worker = await callbacks.worker()

    async def crash(*_, **__):
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(worker, "_record", crash)
        with pytest.raises(asyncio.CancelledError):
            await worker.live_once()
    await callbacks.sql.execute("UPDATE callback_cursors SET holder = NULL")
    await callbacks.drain(await callbacks.worker())

    assert receiver.numbers(attempt) == [1, 2, 3, 4, 1, 2, 3, 4]
    assert len({event["id"] for event in receiver.taken}) == 4
    receiver.assert_in_order()


async def test_a_worker_that_was_overtaken_changes_nothing(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    old = await callbacks.worker()
    await sql.execute("UPDATE callback_cursors SET lease_expires_at = clock_fact()")
    new = await callbacks.worker()
    await lives.created(2)
    before = (await callbacks.get())["cursor"]

    with pytest.raises(Overtaken):
        await old.live_once()
    assert (await callbacks.get())["cursor"] == before
    await callbacks.drain(new)

    assert len(receiver.taken) == 2


async def test_one_is_overtaken_between_sending_and_recording(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    await lives.created(2)
    old = await callbacks.worker()
    before = (await callbacks.get())["cursor"]
    real = old._record

    async def late(*given):
        await sql.execute("UPDATE callback_cursors SET term = term + 1")
        return await real(*given)

    old._record = late
    with pytest.raises(Overtaken):
        await old.live_once()

    assert (await callbacks.get())["cursor"] == before
    assert await sql.fetchval("SELECT count(*) FROM callback_deliveries") == 0


async def test_an_attempt_unparked_meanwhile_is_parked_again_for_what_was_passed_over(
    callbacks, receiver, control, runner
):
    """What is new is read while the attempt is parked; before that is recorded it is un-parked."""
    await callbacks.put(url=receiver.url)
    await runner.register()
    bad, _ = (await control.create())["id"], await control.create()
    receiver.answering = lambda got: 400 if got.json["attempt_id"] == bad else 200
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    receiver.answering = lambda _: 200
    held = await runner.start()
    await held.complete()
    real = worker._record

    async def late(*given):
        await callbacks.skip_waits()
        await callbacks.repair(worker)
        assert receiver.numbers(bad) == [1]
        assert (await callbacks.get())["parked"] == 0
        return await real(*given)

    worker._record = late
    await callbacks.drain(worker)
    worker._record = real
    await callbacks.repair(worker)
    await callbacks.drain(worker)

    assert receiver.numbers(bad) == [1, 2, 3, 4]


async def test_the_log_tells_every_request_with_a_masked_excerpt(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    await lives.created(2)
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    receiver.answering = lambda _: Response(f"no such thing, token={secret}", 400)
    worker = await callbacks.worker()
    await worker.live_once()
    receiver.answering = lambda _: 200
    await callbacks.skip_waits()
    await callbacks.drain(worker)

    log = await callbacks.deliveries()

    assert {(one["result"], one["status"]) for one in log} == {
        ("refused", 400),
        ("delivered", 200),
    }
    assert all(one["kind"] == "live" and len(one["event_ids"]) == 1 for one in log)
    refused = await callbacks.deliveries(accepted=False)
    assert all("no such thing" in one["excerpt"] for one in refused)
    assert not any(secret in one["excerpt"] for one in refused)
    assert len(await callbacks.deliveries(page_size=1)) == 1


async def test_two_receivers_do_not_wait_for_each_other(callbacks, receiver, lives, delivering):
    hanging = asyncio.Event()

    async def hang(reader, writer):
        await hanging.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await callbacks.put("hangs", url=f"http://127.0.0.1:{port}/", timeout_seconds=30)
    await callbacks.put("fine", url=receiver.url)

    attempt = await lives.one()
    async with asyncio.timeout(10):
        while receiver.numbers(attempt) != [1, 2, 3, 4]:
            await asyncio.sleep(0.02)

    hanging.set()
    server.close()
