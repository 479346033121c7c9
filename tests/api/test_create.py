"""Creation of attempts is idempotent on its key, for ever, whoever asks and however often."""

import asyncio
import json
from datetime import datetime
from uuid import UUID

import pytest

from app.domain import errors
from tests.driver import Control, new_attempt

SECRETS = {
    "k1": "the first secret of the tests, long enough",
    "k2": "the second secret of the tests, long enough",
}


async def test_created_attempt_is_answered_whole_and_says_where_it_is(control):
    request = new_attempt(priority=5, placement={"zone": "eu"}, queue_timeout_seconds=60)

    answer = await control.call("POST", "/v1/attempts", json=request)

    attempt = answer.json()
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/attempts/{attempt['id']}"
    assert "Idempotent-Replayed" not in answer.headers
    assert UUID(attempt["id"]).version == 7
    assert datetime.fromisoformat(attempt["created_at"]).tzinfo is not None
    assert {name: attempt[name] for name in request} == request | {
        "placement": {"zone": "eu", "labels": {}}
    }
    assert (attempt["status"], attempt["runner_kind"]) == ("queued", "ssh")
    assert await control.get(attempt["id"]) == attempt


async def test_what_was_left_out_has_its_default(control):
    attempt = await control.create()

    assert attempt["priority"] == 100
    assert attempt["requested_by_service"] == "control-plane-service"
    assert attempt["queue_timeout_seconds"] is None
    assert attempt["concurrency_key"] is None
    assert attempt["placement"] == {"zone": None, "labels": {}}


async def test_first_event_says_what_was_asked_for(control):
    attempt = await control.create(concurrency_key="host-1")

    [event] = await control.events(attempt["id"])
    assert (event["event_number"], event["event_type"]) == (1, "created")
    assert event["created_at"] == attempt["created_at"]
    assert event["payload"]["operation_id"] == attempt["operation_id"]
    assert event["payload"]["concurrency_key"] == "host-1"


async def test_equal_creates_at_once_make_one_attempt(control, open_instance, sql):
    other = Control(await open_instance(), "")
    other.headers = control.headers
    request = new_attempt()

    answers = await asyncio.gather(
        *(
            caller.call("POST", "/v1/attempts", json=request)
            for caller in (control, other)
            for _ in range(10)
        )
    )

    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await sql.fetchval("SELECT count(*) FROM execution_attempts") == 1
    assert await sql.fetchval("SELECT count(*) FROM attempt_events") == 1


async def test_different_creates_at_once_under_one_key_make_one_attempt(control, sql):
    requests = [new_attempt(idempotency_key="the-key") for _ in range(10)]

    answers = await asyncio.gather(
        *(control.call("POST", "/v1/attempts", json=request) for request in requests)
    )

    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 9
    assert await sql.fetchval("SELECT count(*) FROM execution_attempts") == 1


CHANGES = [
    {"priority": 1},
    {"priority": 100},
    {"timeout_seconds": 601},
    {"job_spec_ref": {"command": "uptime "}},
    {"job_spec_ref": {"command": "uptime", "x": None}},
    {"job_type": "ssh.command.check"},
    {"placement": {}},
    {"placement": {"zone": "eu"}},
    {"concurrency_key": "host-1"},
    {"requested_by_service": "another"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_used_key_with_another_request_is_refused_and_says_whose_it_is(change, control):
    request = new_attempt()
    attempt = (await control.call("POST", "/v1/attempts", json=request)).json()

    answer = await control.call("POST", "/v1/attempts", json=request | change)

    assert (answer.status_code, answer.json()["reason"]) == (409, "idempotency-key-reused")
    assert answer.json()["attempt_id"] == attempt["id"]
    assert await control.get(attempt["id"]) == attempt


async def test_spelling_of_a_request_does_not_matter(control):
    request = new_attempt(job_spec_ref={"a": 1, "b": [1.0, "ä"]})
    attempt = (await control.call("POST", "/v1/attempts", json=request)).json()
    spellings = [
        json.dumps(request, indent=3, sort_keys=True),
        json.dumps(dict(reversed(request.items())), ensure_ascii=False),
        json.dumps(request).replace("1.0", "1.00").replace('"a"', '"\\u0061"'),
    ]

    for spelling in spellings:
        answer = await control.call("POST", "/v1/attempts", content=spelling.encode())

        assert (answer.status_code, answer.json()) == (200, attempt)


async def test_keys_that_differ_at_all_are_different(control):
    keys = ["Key", "key", "key ", " key", "kéy", "ke\u0301y", "key\u200b"]

    attempts = [await control.create(idempotency_key=key) for key in keys]

    assert len({attempt["id"] for attempt in attempts}) == len(keys)
    assert [attempt["idempotency_key"] for attempt in attempts] == keys


async def test_repeat_is_answered_with_the_attempt_as_it_is_now(control, runner):
    request = new_attempt()
    await control.call("POST", "/v1/attempts", json=request)
    await (await (await runner.register()).start()).complete()

    answer = await control.call("POST", "/v1/attempts", json=request)

    assert answer.status_code == 200
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert answer.json()["status"] == "succeeded"


async def test_key_of_a_refused_request_is_still_free(control):
    request = new_attempt(idempotency_key="the-key")
    await control.call("POST", "/v1/attempts", json=request | {"priority": -1})

    assert (await control.call("POST", "/v1/attempts", json=request)).status_code == 201


async def test_honest_repeat_is_known_after_the_server_key_was_changed(open_instance, control):
    request = new_attempt()
    answers = []

    for current in ("k1", "k2", "k1"):
        http = await open_instance(KEYS__CURRENT=current, KEYS__SECRETS=SECRETS)
        caller = Control(http, "")
        caller.headers = control.headers
        answers.append(await caller.call("POST", "/v1/attempts", json=request))
        changed = await caller.call("POST", "/v1/attempts", json=request | {"priority": 1})
        assert changed.status_code == 409

    assert [answer.status_code for answer in answers] == [201, 200, 200]


def test_id_of_a_server_key_that_could_not_be_found_again_is_refused_at_start(make_settings):
    with pytest.raises(errors.SettingsInvalid, match="colon"):
        make_settings(KEYS__CURRENT="a:1", KEYS__SECRETS={"a:1": SECRETS["k1"]})


async def test_repeat_whose_server_key_is_gone_is_no_server_error(open_instance, control):
    request = new_attempt()
    for secrets in (SECRETS, {"k2": SECRETS["k2"]}):
        http = await open_instance(KEYS__CURRENT=min(secrets), KEYS__SECRETS=secrets)
        answer = await http.post("/v1/attempts", json=request, headers=control.headers)

    assert answer.status_code in {200, 409, 503}, answer.text


async def test_too_many_placements_of_a_kind_are_refused_and_nothing_is_kept(
    open_instance, control, sql
):
    http = await open_instance(LIMITS__MAX_PLACEMENT_CLASSES_PER_KIND=2)
    caller = Control(http, "")
    caller.headers = control.headers

    answers = [
        await caller.try_create(placement={"labels": {"target": f"host-{number}"}})
        for number in (1, 2, 3, 2)
    ]

    assert [answer.status_code for answer in answers] == [201, 201, 422, 201]
    assert answers[2].json()["reason"] == "too-many-placements"
    assert await sql.fetchval("SELECT count(*) FROM placement_classes") == 2
    assert await sql.fetchval("SELECT count(*) FROM execution_attempts") == 3


async def test_database_that_is_away_is_told_with_when_to_come_back(open_instance, control):
    http = await open_instance(DATABASE__URL="postgresql://nobody@127.0.0.1:1/nothing")

    answer = await http.post("/v1/attempts", json=new_attempt(), headers=control.headers)

    assert (answer.status_code, answer.json()["reason"]) == (503, "database-unavailable")
    assert int(answer.headers["Retry-After"]) >= 1
