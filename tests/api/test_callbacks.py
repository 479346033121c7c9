"""Callback subscriptions over REST: what is accepted, what is refused, and how each is told."""

from uuid import uuid4

import pytest

BASE = "/v1/callback-subscriptions"
GOOD = {"url": "https://receiver.example/events"}


@pytest.fixture
def put(control):
    async def send(name: str = "billing", **fields):
        return await control.call("PUT", f"{BASE}/{name}", json=fields)

    return send


async def test_a_subscription_is_created_read_listed_and_removed(control, put):
    made = await put(**GOOD, event_types=["attempt.succeeded", "attempt.lost"], max_batch=50)
    read = await control.call("GET", f"{BASE}/billing")
    listed = await control.call("GET", BASE)
    removed = await control.call("DELETE", f"{BASE}/billing")
    gone = await control.call("GET", f"{BASE}/billing")

    assert made.status_code == 201
    assert made.json()["signing_secret"].startswith("whsec_")
    assert read.json() == {**made.json(), "signing_secret": None, "behind": 0}
    assert listed.json()["items"] == [{**read.json(), "behind": None}]
    assert read.json()["event_types"] == ["attempt.lost", "attempt.succeeded"]
    assert (removed.status_code, gone.status_code) == (204, 404)
    assert gone.json()["reason"] == "callback-subscription-not-found"


async def test_the_same_put_again_changes_nothing(put):
    first = (await put(**GOOD)).json()
    second = await put(**GOOD)
    third = await put(url="https://other.example/")

    assert second.status_code == third.status_code == 200
    assert second.json() == {**first, "signing_secret": None}
    assert third.json()["updated_at"] > first["updated_at"]
    assert third.json()["cursor"] == first["cursor"]


BAD = [
    ({}, "", "either url or topic"),
    ({**GOOD, "topic": "projects/dev-1/topics/events"}, "", "either url or topic"),
    ({"topic": "projects/dev-1/topics/events", "oidc_audience": "x"}, "", "go with url"),
    ({"topic": "https://x"}, "/topic", ""),
    ({"url": "http://receiver.example/"}, "/url", "https"),
    ({"url": "https://127.0.0.1/"}, "/url", "address"),
    ({"url": "https://[::ffff:169.254.169.254]/"}, "/url", "address"),
    ({"url": "https://user:pw@receiver.example/"}, "/url", ""),
    ({"url": "https://receiver.example:22/"}, "/url", "port"),
    ({"url": 7}, "/url", ""),
    ({**GOOD, "event_types": []}, "/event_types", ""),
    ({**GOOD, "event_types": ["succeeded"]}, "/event_types/0", "no event type"),
    ({**GOOD, "event_types": ["attempt.lost"] * 2}, "/event_types", "twice"),
    ({**GOOD, "operation_ids": ["x"]}, "/operation_ids/0", ""),
    ({**GOOD, "job_types": ["nothing.of.ours"]}, "/job_types/0", ""),
    ({**GOOD, "max_batch": 0}, "/max_batch", ""),
    ({**GOOD, "max_batch": 501}, "/max_batch", ""),
    ({**GOOD, "max_batch": "5"}, "/max_batch", ""),
    ({**GOOD, "timeout_seconds": 31}, "/timeout_seconds", ""),
    ({**GOOD, "pause_after_seconds": 1}, "/pause_after_seconds", ""),
    ({**GOOD, "headers": {"X-A": "value"}}, "/headers/X-A", ""),
    ({**GOOD, "headers": {"X-A": {"secret_ref": "vault://a"}}}, "/headers/X-A/secret_ref", ""),
    ({**GOOD, "headers": {"X-A": {"secret_ref": "file://../a"}}}, "/headers/X-A/secret_ref", ""),
    ({**GOOD, "headers": {"X-A": {"secret_ref": "file://a"}}}, "/headers/x-a/secret_ref", "names"),
    ({**GOOD, "headers": {"Host": {"secret_ref": "file://a"}}}, "/headers/Host/[key]", "itself"),
    ({**GOOD, "headers": {"webhook-id": {"secret_ref": "file://a"}}}, "", "itself"),
    ({**GOOD, "headers": {"a b": {"secret_ref": "file://a"}}}, "", ""),
    ({**GOOD, "surprise": 1}, "/surprise", ""),
    ({**GOOD, "start": ""}, "/start", ""),
]


@pytest.mark.parametrize(("fields", "place", "words"), BAD, ids=range(len(BAD)))
async def test_what_is_not_right_is_refused_at_its_place(put, fields, place, words):
    answer = await put(**fields)

    assert answer.status_code == 422, answer.text
    told = answer.json()["errors"]
    assert any(one["pointer"].startswith(place) and words in one["detail"] for one in told), told


async def test_a_secret_in_a_url_or_a_name_is_refused(put):
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"

    in_url = await put(url=f"https://receiver.example/?token={secret}")
    in_name = await put(secret, **GOOD)

    assert in_url.json()["reason"] == in_name.json()["reason"] == "secret-in-request"
    assert secret not in in_url.text
    assert [one["pointer"] for one in in_url.json()["errors"]] == ["/url"]


@pytest.mark.parametrize("name", ["%00", "a%20b", "-x", "x" * 101, "a%2Fb", "%F0%9F%98%80"])
async def test_names_are_plain(control, name):
    answer = await control.call("PUT", f"{BASE}/{name}", json=GOOD)

    assert answer.status_code in {404, 405, 422}


@pytest.mark.parametrize("start", ["latest", "garbage", "A" * 60, "now "])
async def test_a_start_that_is_no_place_is_refused(put, start):
    answer = await put(**GOOD, start=start)

    assert (answer.status_code, answer.json()["reason"]) == (400, "feed-cursor-invalid")


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("rotate-secret", {}),
        ("rotate-secret", {"request_id": "x"}),
        ("rotate-secret", {"request_id": str(uuid4()), "overlap_seconds": -1}),
        ("replay", {"request_id": str(uuid4())}),
        ("replay", {"request_id": str(uuid4()), "after": "oldest", "attempt_id": str(uuid4())}),
        ("replay", {"request_id": str(uuid4()), "created_before": "2026-01-01T00:00:00Z"}),
        ("replay", {"request_id": str(uuid4()), "created_after": "2026-01-01T00:00:00"}),
        ("replay", {"request_id": str(uuid4()), "created_after": "0001-01-01T00:00:00Z"}),
        ("replay", {"request_id": str(uuid4()), "created_after": "9999-12-31T23:59:59Z"}),
        (
            "replay",
            {
                "request_id": str(uuid4()),
                "created_after": "2026-01-02T00:00:00Z",
                "created_before": "2026-01-01T00:00:00Z",
            },
        ),
    ],
    ids=range(10),
)
async def test_verbs_refuse_what_they_cannot_do(control, put, verb, fields):
    await put(**GOOD)

    answer = await control.call("POST", f"{BASE}/billing:{verb}", json=fields)

    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("verb", ["resume", "rotate-secret", "replay", "test"])
async def test_a_subscription_that_is_not_there_is_not_found(control, verb):
    body = {"request_id": str(uuid4())} | ({"after": "oldest"} if verb == "replay" else {})

    answer = await control.call("POST", f"{BASE}/nobody:{verb}", json=body)

    assert (answer.status_code, answer.json()["reason"]) == (
        404,
        "callback-subscription-not-found",
    )


async def test_a_replay_of_an_attempt_that_is_not_there_is_refused(control, put):
    await put(**GOOD)

    answer = await control.call(
        "POST",
        f"{BASE}/billing:replay",
        json={"request_id": str(uuid4()), "attempt_id": str(uuid4())},
    )

    assert (answer.status_code, answer.json()["reason"]) == (404, "attempt-not-found")


async def test_there_is_a_limit_to_their_number(open_instance, control):
    http = await open_instance(CALLBACKS__MAX_SUBSCRIPTIONS=2)
    answers = [
        await http.put(f"{BASE}/{name}", json=GOOD, headers=control.headers) for name in "abc"
    ]

    assert [one.status_code for one in answers] == [201, 201, 422]
    assert answers[2].json()["reason"] == "too-many-subscriptions"


async def test_runners_have_no_business_here(runner):
    for method, path in (("GET", BASE), ("PUT", f"{BASE}/x"), ("POST", f"{BASE}/x:test")):
        assert (await runner.call(method, path, json=GOOD)).status_code == 403


async def test_their_states_are_metrics(http, put):
    await put(**GOOD)

    text = (await http.get("/metrics")).text

    assert 'execution_plane_callback_subscriptions{state="active"} 1.0' in text
