"""Schedules: kept, changed, refused, paused, triggered, and each due time with one effect."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from app.domain.errors import LeadershipLost
from app.domain.schedules import fire_id
from app.loops.fire_schedules import FireSchedules
from app.loops.leader import Leader
from app.loops.send_outbox import SendOutbox
from tests.scheduler.world import a_schedule, attempt_data

START = datetime(2027, 6, 1, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
ID = "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a01"
KEY = "AKIA" + "IOSFODNN7EXAMPLB"


def hour(number: int) -> str:
    return f"2027-06-01T{number:02}:00:00Z"


@pytest.fixture(autouse=True)
async def morning(world):
    """Half past midnight."""
    await world.at(START)


# --- the definition ------------------------------------------------------------------------------


async def test_schedule_is_created_read_listed_replaced_and_removed(world):
    created = await world.try_put("nightly", time_zone="Europe/Berlin", cron="0 2 * * *")
    again = await world.try_put("nightly", **definition(created.json()))
    replaced = await world.try_put("nightly", cron="0 4 * * *")
    await world.put("other")
    listed = await world.control.call("GET", "/v1/schedules?page_size=1")
    more = await world.control.call(
        "GET", f"/v1/schedules?page_size=1&page_token={listed.json()['next_page_token']}"
    )
    removed = await world.control.call("DELETE", "/v1/schedules/nightly")
    gone = await world.control.call("GET", "/v1/schedules/nightly")

    assert [one.status_code for one in (created, again, replaced)] == [201, 200, 200]
    assert created.json()["upcoming"][:2] == ["2027-06-02T00:00:00Z", "2027-06-03T00:00:00Z"]
    assert [one.json()["version"] for one in (created, again, replaced)] == [1, 1, 2]
    assert replaced.json()["next_due_at"] == hour(4)
    assert [page.json()["items"][0]["name"] for page in (listed, more)] == ["nightly", "other"]
    assert (removed.status_code, gone.status_code) == (204, 404)
    assert gone.json()["reason"] == "schedule-not-found"


def definition(shown: dict) -> dict:
    """Of an answer, what the caller had sent."""
    kept = ("cron", "time_zone", "to", "data", "misfire", "misfire_limit", "jitter_seconds")
    return {name: shown[name] for name in kept}


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "0 0 31 2 *"}, "/cron"),
        ({"cron": "* * * *"}, "/cron"),
        ({"cron": "; DROP"}, "/cron"),
        ({"cron": "0 0 * * *", "at": "2027-01-01T00:00:00Z"}, ""),
        ({"at": "2027-01-01T00:00:00"}, "/at"),
        ({"at": "9999-12-31T23:59:59Z"}, "/at"),
        ({"at": None}, ""),
        ({"time_zone": "Mars/Olympus"}, "/time_zone"),
        ({"time_zone": "../../etc/passwd"}, "/time_zone"),
        ({"misfire": "sometimes"}, "/misfire"),
        ({"misfire_limit": 501}, "/misfire_limit"),
        ({"jitter_seconds": -1}, "/jitter_seconds"),
        ({"to": "attempt.destroy"}, "/to"),
        ({"to": "lease.complete"}, "/to"),
        ({"to": "runner.register"}, "/to"),
        ({"to": ""}, "/to"),
        ({"data": []}, "/data"),
        ({"data": {}}, "/data/operation_id"),
        ({"data": attempt_data(job_type="magic.wand")}, "/data/job_type"),
        ({"data": attempt_data(timeout_seconds="{{due_at}}")}, "/data/timeout_seconds"),
        ({"data": attempt_data(colour="red")}, "/data/colour"),
        ({"data": {**attempt_data(), "idempotency_key": "always"}}, "/data/idempotency_key"),
        ({"data": {"text": "x" * 70_000}}, "/data"),
        ({"data": attempt_data(job_spec_ref={"a": "\x00"})}, "/data"),
        ({"unknown": 1}, "/unknown"),
        (
            {"data": attempt_data(job_spec_ref={"password": "hunter2!"})},
            "/data/job_spec_ref/password",
        ),
        ({"to": "attempt.cancel", "data": {"attempt_id": ID, "reason": KEY}}, "/data/reason"),
    ],
)
async def test_schedule_that_cannot_work_is_refused_at_once_and_says_where(world, fields, pointer):
    answer = await world.try_put("bad", **fields)

    assert answer.status_code == 422, answer.text
    assert pointer in [fault["pointer"] for fault in answer.json()["errors"]]
    assert (await world.control.call("GET", "/v1/schedules/bad")).status_code == 404


@pytest.mark.parametrize("name", ["a b", "x" * 129, "a/b", "é", "a%00"])
async def test_name_of_another_form_is_refused(world, name):
    answer = await world.control.call("PUT", f"/v1/schedules/{name}", json=a_schedule())

    assert answer.status_code in {404, 422}


async def test_only_the_control_plane_and_operators_may(world, operator, http, runner_token):
    theirs = await operator.call("PUT", "/v1/schedules/theirs", json=a_schedule())
    headers = {"Authorization": f"Bearer {runner_token}"}
    refused = await http.put("/v1/schedules/mine", json=a_schedule(), headers=headers)

    assert (theirs.status_code, refused.status_code) == (201, 403)


async def test_next_time_stays_when_only_the_message_changes(world):
    await world.put("hourly")
    await world.at(START + HOUR)  # due, and not settled yet
    changed = await world.put("hourly", data=attempt_data(timeout_seconds=5))

    assert changed["next_due_at"] == hour(1)
    assert (await world.fire()).done == 1


# --- coming due ----------------------------------------------------------------------------------


async def test_due_time_has_one_attempt_whose_key_is_the_envelopes_id(world):
    await world.put("hourly", data=attempt_data(job_spec_ref={"as_of": "{{due_at}}"}))
    early = await world.fire()
    await world.at(START + HOUR / 2)
    fired, sent, again = await world.fire(), await world.send(), await world.fire()

    [attempt] = await world.attempts()
    [fire] = await world.fires("hourly")
    shown = await world.get("hourly")
    assert [one.done for one in (early, fired, sent, again)] == [0, 1, 1, 0]
    assert attempt["idempotency_key"] == fire["id"] == str(fire_id("hourly", START + HOUR / 2))
    assert f'"as_of": "{hour(1)}"' in attempt["job_spec_ref"]
    assert (fire["due_at"], fire["outcome"], fire["sent_as"]) == (hour(1), "fired", "done")
    assert fire["term"] == world.services.leadership.term
    assert (shown["last_due_at"], shown["next_due_at"]) == (hour(1), hour(2))
    assert await world.audit() == {}


async def test_nothing_fires_without_the_leadership_and_it_is_late_and_not_lost(world, another):
    await world.put("hourly")
    await world.at(START + HOUR)
    other = another()

    with pytest.raises(LeadershipLost):
        await FireSchedules().run_once(other)
    assert await world.fires("hourly") == []

    assert (await world.fire()).done == 1


async def test_replaced_leader_that_still_trusts_itself_fires_nothing(world, clock, another):
    await world.put("hourly")
    await clock.forward(3600)
    successor = another()
    assert await Leader(successor).renew()

    assert world.services.leadership.is_held()
    with pytest.raises(LeadershipLost):
        await world.fire()
    assert (await FireSchedules().run_once(successor)).done == 1
    [fire] = await world.fires("hourly")
    assert fire["term"] == successor.leadership.term


async def test_two_leaders_at_once_settle_each_due_time_once(world, sql, monkeypatch):
    """Even without the fence: the schedule moves on once, and ids follow from name and time."""
    for number in range(50):
        await world.put(f"s{number}")
    await world.at(START + HOUR)

    async def prove(self, conn) -> int:
        return 1

    monkeypatch.setattr(type(world.services.leadership), "prove", prove)
    results = await asyncio.gather(*(world.fire() for _ in range(4)))
    await asyncio.gather(*(world.send() for _ in range(4)))

    assert sum(one.done for one in results) == 50
    assert len(await world.attempts()) == 50
    assert await sql.fetchval("SELECT count(*) FROM schedule_fires") == 50
    assert await sql.fetchval("SELECT count(*) FROM outbox") == 0


async def test_message_that_is_sent_again_after_a_crash_has_no_second_effect(world, sql):
    await world.put("hourly")
    await world.at(START + HOUR)
    await world.fire()
    kept = await sql.fetch("SELECT * FROM outbox")
    await world.send()
    await sql.executemany(
        "INSERT INTO outbox VALUES ($1, $2, $3, $4, $5, $6, $7, $8)", [tuple(r) for r in kept]
    )
    await world.send()

    assert len(await world.attempts()) == 1
    assert await sql.fetchval("SELECT count(*) FROM outbox") == 0


async def test_schedule_that_is_removed_and_made_again_does_not_fire_a_due_time_twice(world):
    await world.put("hourly")
    await world.at(START + HOUR)
    await world.fire()
    await world.control.call("DELETE", "/v1/schedules/hourly")
    await world.at(START)
    await world.put("hourly")
    await world.at(START + HOUR)
    await world.fire()
    await world.send()

    assert len(await world.attempts()) == 1
    assert (await world.get("hourly"))["next_due_at"] == hour(2)


@pytest.fixture
def meanwhile(monkeypatch):
    """Lets something happen between a pass's look and its write."""
    look = FireSchedules.run_once.__globals__["schedules"].list_due

    def happen(what) -> None:
        async def and_then(conn, limit):
            found = await look(conn, limit)
            monkeypatch.undo()
            await what()
            return found

        monkeypatch.setattr("app.loops.fire_schedules.schedules.list_due", and_then)

    return happen


async def test_new_timing_that_comes_between_the_look_and_the_write_wins(world, meanwhile):
    await world.put("hourly")
    await world.at(START + HOUR)
    meanwhile(lambda: world.put("hourly", cron="0 12 * * *"))

    fired = await world.fire()

    assert fired.done == 0
    assert await world.fires("hourly") == []
    assert (await world.get("hourly"))["next_due_at"] == hour(12)


async def test_new_message_that_comes_between_the_look_and_the_write_is_the_one_that_is_sent(
    world, meanwhile
):
    await world.put("hourly", data=attempt_data(job_spec_ref={"is": "old"}))
    await world.at(START + HOUR)
    new = attempt_data(job_spec_ref={"is": "new"})
    meanwhile(lambda: world.put("hourly", data=new))

    done = [(await world.fire()).done, (await world.fire()).done]
    await world.send()

    [attempt] = await world.attempts()
    assert done == [0, 1]
    assert "new" in attempt["job_spec_ref"]


async def test_plan_that_others_have_overtaken_does_not_set_the_schedule_back(world, meanwhile):
    await world.put("hourly")
    await world.at(START + HOUR)

    async def others_go_on() -> None:
        await world.fire()
        await world.at(START + 2 * HOUR)
        await world.fire()

    meanwhile(others_go_on)
    await world.fire()

    assert (await world.get("hourly"))["next_due_at"] == hour(3)
    assert [one["due_at"] for one in await world.fires("hourly")] == [hour(1), hour(2)]


@pytest.mark.parametrize(
    ("misfire", "sent", "skipped"), [("skip", [], 5), ("once", [5], 4), ("all", [4, 5], 3)]
)
async def test_times_missed_while_nobody_led_are_settled_by_the_policy(
    world, misfire, sent, skipped
):
    await world.put("hourly", misfire=misfire, misfire_limit=2)
    await world.at(START + 5 * HOUR)

    await world.fire()

    fires = await world.fires("hourly")
    assert [one["due_at"] for one in fires if one["outcome"] == "fired"] == list(map(hour, sent))
    [passed] = [one for one in fires if one["outcome"] == "skipped"]
    assert (passed["due_at"], passed["skipped_count"]) == (hour(1), skipped)
    assert passed["skipped_until"] == hour(skipped)
    assert (await world.get("hourly"))["next_due_at"] == hour(6)
    assert await world.audit() == {}  # their messages wait in the outbox


async def test_a_hundred_days_off_are_settled_in_bounded_passes(world):
    await world.put("often", cron="* * * * *", misfire="once")
    await world.at(START + timedelta(days=3, seconds=30))

    passes = 1
    while (await world.fire()).more:
        passes += 1

    fires = await world.fires("often")
    assert passes > 5
    assert [one["outcome"] for one in fires].count("fired") == 1
    assert sum(one["skipped_count"] or 1 for one in fires) == 3 * 24 * 60


async def test_single_time_comes_due_once_and_the_schedule_is_over(world):
    await world.put("once", at=hour(1))
    await world.at(START + HOUR)
    await world.fire()
    await world.at(START + 24 * HOUR)
    again = await world.fire()
    same = await world.try_put("once", at=hour(1))

    shown = await world.get("once")
    assert (again.done, same.status_code) == (0, 200)
    assert (shown["next_due_at"], shown["last_due_at"], shown["upcoming"]) == (None, hour(1), [])


async def test_jitter_puts_the_message_off_and_leaves_the_due_time(world):
    await world.put("spread", jitter_seconds=1800)
    shown = await world.get("spread")
    fires_at = datetime.fromisoformat(shown["next_fire_at"])
    await world.at(fires_at - timedelta(milliseconds=1))
    early = await world.fire()
    await world.at(fires_at)
    fired = await world.fire()

    assert START + HOUR / 2 < fires_at < START + HOUR
    assert (early.done, fired.done) == (0, 1)
    assert [one["due_at"] for one in await world.fires("spread")] == [hour(1)]


# --- pause and trigger ---------------------------------------------------------------------------


async def test_paused_schedule_comes_due_no_more_and_makes_up_for_nothing(world):
    await world.put("hourly")
    paused = await world.post("hourly", "pause")
    again = await world.post("hourly", "pause")
    await world.at(START + 3 * HOUR)
    fired = await world.fire()
    kept = await world.put("hourly", cron="30 * * * *")
    resumed = await world.post("hourly", "resume")

    assert paused.json()["paused_by"] == "control-plane@dev.localhost"
    assert paused.json() == again.json()
    assert (fired.done, kept["next_due_at"]) == (0, None)
    assert resumed.json()["next_due_at"] == "2027-06-01T04:30:00Z"
    assert resumed.json()["paused_at"] is None
    assert (await world.post("hourly", "resume")).json() == resumed.json()
    assert (await world.fire()).done == 0


async def test_single_time_that_fell_into_the_pause_is_settled_by_its_policy(world):
    await world.put("once", at=hour(1))
    await world.post("once", "pause")
    await world.at(START + 2 * HOUR)
    await world.post("once", "resume")

    assert (await world.fire()).done == 1
    await world.post("once", "pause")
    resumed = await world.post("once", "resume")
    assert resumed.json()["next_due_at"] is None


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
async def test_verb_about_a_schedule_that_is_not_there(world, verb):
    body = {"request_id": str(uuid4())} if verb == "trigger" else {}

    answer = await world.post("nothing", verb, **body)

    assert (answer.status_code, answer.json()["reason"]) == (404, "schedule-not-found")


async def test_trigger_sends_the_message_once_for_each_request_even_while_paused(world):
    await world.put("hourly")
    await world.post("hourly", "pause")
    request_id = str(uuid4())
    first, repeat = (
        await world.trigger("hourly", request_id),
        await world.trigger("hourly", request_id),
    )
    other = await world.trigger("hourly")
    without = await world.post("hourly", "trigger")
    await world.send()

    assert first == repeat
    assert other["id"] != first["id"]
    assert without.status_code == 422
    assert {one["idempotency_key"] for one in await world.attempts()} == {first["id"], other["id"]}
    fires = await world.fires("hourly")
    assert [one["kind"] for one in fires] == ["trigger", "trigger"]
    assert await world.audit() == {}


async def test_many_triggers_of_one_request_at_once_send_one_message(world):
    await world.put("hourly")
    request_id = str(uuid4())

    fires = await asyncio.gather(*(world.trigger("hourly", request_id) for _ in range(10)))

    assert len({one["id"] for one in fires}) == 1
    assert (await world.send()).done == 1


async def test_history_is_paged_and_outlives_its_schedule(world):
    await world.put("hourly", misfire="all")
    await world.at(START + 5 * HOUR)
    await world.fire()
    await world.control.call("DELETE", "/v1/schedules/hourly")

    got, token = [], ""
    while token is not None:
        page = await world.control.call(
            "GET",
            "/v1/schedules/hourly/fires",
            params={"page_size": 2, **({"page_token": token} if token else {})},
        )
        got += [one["due_at"] for one in page.json()["items"]]
        token = page.json()["next_page_token"]

    assert sorted(got) == [hour(number) for number in range(1, 6)]
    assert (await world.send()).done == 5


# --- what handlers make of it --------------------------------------------------------------------


async def test_message_that_its_handler_refuses_becomes_a_dead_letter_that_can_be_redriven(
    world, sql, operator
):
    await world.put("bad")
    await sql.execute("""UPDATE schedules SET data = '{"attempt_id": 1}'""")
    await world.at(START + HOUR)
    await world.fire()
    await world.send()

    [letter] = (await operator.call("GET", "/v1/dead-letters")).json()["items"]
    [fire] = await world.fires("bad")
    assert (letter["subscription"], letter["handler"]) == ("schedules", "attempt.create")
    assert letter["envelope_id"] == fire["id"]
    assert fire["sent_as"] == "dead-letter"
    again = await operator.call(
        "POST", f"/v1/dead-letters/{letter['id']}:redrive", json={"request_id": str(uuid4())}
    )
    assert again.status_code in {409, 422}  # for its data, and not for its subscription


async def test_message_that_cannot_be_handled_now_waits_and_holds_up_no_other(world, sql):
    await world.put("early", to="attempt.cancel", data={"attempt_id": str(uuid4())})
    await world.put("good")
    await world.at(START + HOUR)
    await world.fire()

    sent = await world.send()

    assert sent.done == 1
    [waiting] = await sql.fetch("SELECT schedule, tries, last_reason, next_try_at FROM outbox")
    assert (waiting["schedule"], waiting["tries"]) == ("early", 1)
    assert waiting["last_reason"] == "attempt-not-found"
    assert (await world.send()).done == 0
    shown = await world.control.call("GET", "/v1/scheduler")
    assert shown.json()["outbox"]["waiting"] == 1
    assert shown.json()["outbox"]["last_reason"] == "attempt-not-found"


async def test_sweep_that_was_replaced_meanwhile_sends_nothing(world, another):
    await world.put("hourly")
    await world.at(START + HOUR)
    await world.fire()

    with pytest.raises(LeadershipLost):
        await SendOutbox(world.inside.deliver).run_once(another())

    assert await world.attempts() == []
