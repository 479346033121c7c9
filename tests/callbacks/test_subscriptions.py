"""What callers may do with subscriptions: secrets, replays, changes, and what retention is told."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from pydantic import SecretStr

from app.domain.keys import KeyRing
from app.loops.callback_worker import Overtaken
from app.store import callbacks as store

NOBODY = "/v1/callback-subscriptions/nobody"


async def sent_one(callbacks, lives, worker):
    """Send one event; the request that it came in is the receiver's last."""
    await lives.created()
    await callbacks.drain(worker)


# --- secrets -------------------------------------------------------------------------------------


async def test_a_secret_is_shown_once_and_stored_nowhere(callbacks, receiver, sql):
    made = await callbacks.put(url=receiver.url)
    again = await callbacks.put(url=receiver.url)

    assert made["signing_secret"].startswith("whsec_")
    assert again["signing_secret"] is None
    assert (await callbacks.get())["signing_secret"] is None
    rows = await sql.fetch("SELECT to_jsonb(s)::text AS row FROM callback_subscriptions s")
    assert made["signing_secret"].removeprefix("whsec_") not in rows[0]["row"]


async def test_while_a_secret_rotates_both_versions_verify_and_then_the_new_one_alone(
    callbacks, receiver, lives, sql
):
    old = (await callbacks.put(url=receiver.url))["signing_secret"]
    worker = await callbacks.worker()
    request = str(uuid4())

    rotated = await callbacks.post("rotate-secret", request_id=request, overlap_seconds=3600)
    new = rotated["signing_secret"]
    await sent_one(callbacks, lives, worker)
    both = receiver.requests[-1]
    await sql.execute("UPDATE callback_subscriptions SET previous_until = clock_fact()")
    await sent_one(callbacks, lives, worker)
    after = receiver.requests[-1]

    assert new != old
    assert rotated["secret"]["version"] == 2
    assert both.is_genuine(old)
    assert both.is_genuine(new)
    assert (after.is_genuine(old), after.is_genuine(new)) == (False, True)


async def test_a_repeated_rotation_shows_the_same_secret(callbacks, receiver):
    await callbacks.put(url=receiver.url)
    request = str(uuid4())

    first = await callbacks.post("rotate-secret", request_id=request)
    second = await callbacks.post("rotate-secret", request_id=request)
    third = await callbacks.post("rotate-secret", request_id=str(uuid4()))

    assert first["signing_secret"] == second["signing_secret"] != third["signing_secret"]
    assert (second["secret"]["version"], third["secret"]["version"]) == (2, 3)


async def test_subscriptions_have_secrets_of_their_own_also_under_a_name_used_again(
    callbacks, receiver
):
    one = await callbacks.put("one", url=receiver.url)
    two = await callbacks.put("two", url=receiver.url)
    await callbacks.caller.call("DELETE", "/v1/callback-subscriptions/one")
    again = await callbacks.put("one", url=receiver.url)

    assert len({made["signing_secret"] for made in (one, two, again)}) == 3


async def test_a_server_key_may_change_and_nothing_is_signed_once_it_is_gone(
    callbacks, receiver, lives
):
    made = await callbacks.put(url=receiver.url)
    old, new = callbacks.services.keys.secrets["k1"], b"another secret of the server, long enough"
    worker = await callbacks.worker()
    sender = callbacks.services.callbacks

    sender.keys = KeyRing("k2", {"k1": old, "k2": new})
    await sent_one(callbacks, lives, worker)
    assert receiver.requests[-1].is_genuine(made["signing_secret"])
    sender.keys = KeyRing("k2", {"k2": new})
    await lives.created()
    await worker.live_once()

    assert len(receiver.requests) == 1
    assert (await callbacks.get())["last_result"] == "no_secret"


async def test_header_values_come_from_settings_or_files_and_stand_nowhere_else(
    callbacks, receiver, lives, tmp_path, sql
):
    file = tmp_path / "token"
    file.write_text("first-value-of-the-file\n")
    services = callbacks.services
    given = {"secrets_folder": tmp_path, "secrets": {"key": SecretStr("value-of-the-settings")}}
    changed = services.settings.callbacks.model_copy(update=given)
    object.__setattr__(services.settings, "callbacks", changed)
    services.callbacks.settings = changed
    await callbacks.put(
        url=receiver.url,
        headers={
            "Authorization": {"secret_ref": "file://token"},
            "X-Api-Key": {"secret_ref": "settings://key"},
        },
    )
    worker = await callbacks.worker()

    await sent_one(callbacks, lives, worker)
    file.write_text("second-value")
    await sent_one(callbacks, lives, worker)
    file.unlink()
    await lives.created()
    await worker.live_once()

    sent = [(got.headers["authorization"], got.headers["x-api-key"]) for got in receiver.requests]
    assert sent == [
        ("first-value-of-the-file", "value-of-the-settings"),
        ("second-value", "value-of-the-settings"),
    ]
    assert (await callbacks.get())["last_result"] == "no_secret"
    rows = await sql.fetch("SELECT to_jsonb(s)::text AS row FROM callback_subscriptions s")
    assert "value" not in rows[0]["row"]


# --- changes -------------------------------------------------------------------------------------


async def test_a_change_of_filters_counts_from_its_answer_on(callbacks, receiver, lives):
    """Whoever reads with the old filters at that moment records nothing."""
    await callbacks.put(url=receiver.url, event_types=["attempt.lost"])
    worker = await callbacks.worker()
    await worker.live_once()
    await callbacks.put(url=receiver.url, event_types=["attempt.created"])
    await lives.created(2)

    with pytest.raises(Overtaken):
        await worker.live_once()
    await callbacks.drain(await callbacks.worker())

    assert len(receiver.taken) == 2


async def test_a_removed_subscription_sends_nothing_more(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    worker = await callbacks.worker()
    answer = await callbacks.caller.call("DELETE", "/v1/callback-subscriptions/billing")
    await lives.created()

    with pytest.raises(Overtaken):
        await worker.live_once()

    assert answer.status_code == 204
    assert receiver.requests == []
    assert await sql.fetchval("SELECT count(*) FROM callback_cursors") == 0


async def test_a_test_event_is_signed_and_changes_nothing(callbacks, receiver):
    made = await callbacks.put(url=receiver.url)
    before = await callbacks.get()

    told = await callbacks.post("test")

    assert (told["result"], told["status"]) == ("delivered", 204)
    [got] = receiver.requests
    assert got.json["type"] == "callback.test"
    assert got.headers["webhook-id"] == told["webhook_id"] == got.json["id"]
    assert got.is_genuine(made["signing_secret"])
    assert (await callbacks.get()) == before
    assert [one["kind"] for one in await callbacks.deliveries()] == ["test"]


# --- replays -------------------------------------------------------------------------------------


async def test_an_attempt_is_sent_again_with_the_same_ids(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    one, other = await lives.one(), await lives.one()
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    request = str(uuid4())

    for _ in range(2):
        await callbacks.post("replay", request_id=request, attempt_id=one)
    await callbacks.repair(worker)

    assert receiver.numbers(one) == [1, 2, 3, 4, 1, 2, 3, 4]
    assert receiver.numbers(other) == [1, 2, 3, 4]
    assert (await callbacks.get())["parked"] == 0
    receiver.assert_in_order()


async def test_everything_after_a_cursor_is_sent_again_and_no_more(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    worker = await callbacks.worker()
    before = await lives.one()
    await callbacks.drain(worker)
    cursor = (await callbacks.get())["cursor"]
    after = await lives.one()
    await callbacks.drain(worker)
    asked = await callbacks.post("replay", request_id=str(uuid4()), after=cursor)
    newer = await lives.one()

    await callbacks.repair(worker)
    await callbacks.drain(worker)

    assert asked["replay"]["running"]
    assert receiver.numbers(before) == receiver.numbers(newer) == [1, 2, 3, 4]
    assert receiver.numbers(after) == [1, 2, 3, 4] * 2
    replay = (await callbacks.get())["replay"]
    assert (replay["running"], replay["sent"]) == (False, 4)


async def test_a_time_is_sent_again_and_nothing_beside_it(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    worker = await callbacks.worker()
    first = await lives.one()
    begin = await sql.fetchval("SELECT clock_fact()")
    second = await lives.one()
    end = await sql.fetchval("SELECT clock_fact()")
    third = await lives.one()
    await callbacks.drain(worker)

    await callbacks.post(
        "replay",
        request_id=str(uuid4()),
        created_after=begin.isoformat(),
        created_before=end.isoformat(),
    )
    await callbacks.repair(worker)

    assert receiver.numbers(second) == [1, 2, 3, 4] * 2
    assert receiver.numbers(first) == receiver.numbers(third) == [1, 2, 3, 4]


async def test_one_replay_at_a_time(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    await lives.one()
    first = {"request_id": str(uuid4()), "after": "oldest"}
    await callbacks.post("replay", **first)

    other = await callbacks.caller.call(
        "POST",
        "/v1/callback-subscriptions/billing:replay",
        json={"request_id": str(uuid4()), "after": "oldest"},
    )

    assert (other.status_code, other.json()["reason"]) == (409, "replay-running")
    await callbacks.post("replay", **first)


async def test_a_replay_waits_while_its_receiver_is_down_and_goes_on(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    one = await lives.one()
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    await callbacks.post("replay", request_id=str(uuid4()), after="oldest")
    receiver.answering = lambda _: 503

    await callbacks.repair(worker)
    assert (await callbacks.get())["replay"]["running"]
    receiver.answering = lambda _: 200
    await callbacks.skip_waits()
    await callbacks.repair(worker)

    assert receiver.numbers(one) == [1, 2, 3, 4] * 2


async def test_a_replay_on_which_an_event_is_refused_parks_it_and_goes_on(
    callbacks, receiver, lives
):
    await callbacks.put(url=receiver.url)
    bad, good = await lives.one(), await lives.one()
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    receiver.requests.clear()
    receiver.answering = lambda got: 400 if got.json["attempt_id"] == bad else 200
    await callbacks.post("replay", request_id=str(uuid4()), after="oldest")

    await callbacks.repair(worker)
    assert receiver.numbers(good) == [1, 2, 3, 4]
    receiver.answering = lambda _: 200
    await callbacks.skip_waits()
    await callbacks.repair(worker)

    assert receiver.numbers(bad) == [1, 2, 3, 4]


# --- retention -----------------------------------------------------------------------------------


async def needed(callbacks) -> datetime | None:
    return await callbacks.services.database.run(store.oldest_needed)


async def test_retention_is_told_what_is_still_needed(callbacks, receiver, lives, sql):
    assert await needed(callbacks) is None
    await callbacks.put(url=receiver.url)
    ago = datetime.now(UTC) - timedelta(days=50)
    await sql.execute("UPDATE callback_cursors SET created_from = $1", ago)
    assert await needed(callbacks) == ago

    for days, counts in ((29, True), (31, False)):
        await sql.execute(
            "UPDATE callback_cursors SET pause_reason = 'gone', "
            "paused_at = clock_fact() - make_interval(days => $1)",
            days,
        )
        assert (await needed(callbacks) == ago) is counts


async def test_what_is_parked_or_replayed_is_needed_too(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    bad, _ = await lives.created(2)
    receiver.answering = lambda got: 400 if got.json["attempt_id"] == bad else 200
    await callbacks.drain(await callbacks.worker())
    now = datetime.now(UTC)
    old, older = now - timedelta(days=20), now - timedelta(days=40)
    await sql.execute("UPDATE callback_cursors SET created_from = $1", now)

    await sql.execute("UPDATE callback_parked SET created_from = $1", old)
    assert await needed(callbacks) == old
    await sql.execute(
        "UPDATE callback_cursors SET replay_created_from = $1, replay_cursor = '', "
        "replay_until = ''",
        older,
    )
    assert await needed(callbacks) == older
    await sql.execute(
        "UPDATE callback_cursors SET replay_created_from = NULL, replay_cursor = NULL, "
        "replay_until = NULL"
    )
    await sql.execute("UPDATE callback_parked SET parked_at = clock_fact() - interval '31 d'")
    assert await needed(callbacks) == now


async def test_events_removed_before_they_were_delivered_are_said_to_be_missing(
    callbacks, receiver, lives, sql
):
    await callbacks.put(url=receiver.url)
    await sql.execute(
        "UPDATE callback_cursors SET created_from = clock_fact() - interval '400 days'"
    )
    [attempt] = await lives.created()
    worker = await callbacks.worker()

    with pytest.raises(Overtaken):
        await worker.live_once()
    standing = await callbacks.get()
    assert (standing["state"], standing["pause_reason"]) == ("paused", "cursor_expired")
    resumed = await callbacks.post("resume")
    await callbacks.drain(await callbacks.worker())

    assert (resumed["state"], standing["gap_until"]) == ("active", None)
    assert resumed["gap_until"] is not None
    assert receiver.numbers(attempt) == [1]


async def test_a_parked_event_that_was_removed_leaves_a_gap_that_is_shown(
    callbacks, receiver, lives, sql
):
    await callbacks.put(url=receiver.url)
    bad, _ = await lives.one(), await lives.one()
    receiver.answering = lambda got: 400 if got.json["attempt_id"] == bad else 200
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    await sql.execute("DELETE FROM attempt_events WHERE attempt_id = $1 AND event_number < 3", bad)
    receiver.answering = lambda _: 200

    await callbacks.skip_waits()
    await callbacks.repair(worker)

    assert receiver.numbers(bad) == [3, 4]
    standing = await callbacks.get()
    assert (standing["parked"], standing["gap_until"] is not None) == (0, True)
