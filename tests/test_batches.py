"""Many commands in one request: each is answered as if it had come alone."""

from uuid import uuid4

from app.commands.attempts import CreateRequest
from app.domain.commands import CreateAttempt
from app.domain.errors import TooManyPlacements
from app.handlers.attempts import create_attempts
from app.wiring import open_services
from tests.driver import new_attempt


async def test_a_batch_creates_each_attempt_and_answers_by_position(control):
    known = await control.create(idempotency_key="known")
    requests = [
        new_attempt(idempotency_key="first"),
        new_attempt(idempotency_key="known"),
        new_attempt(timeout_seconds=-1),
        "not an object",
        new_attempt(idempotency_key="last", concurrency_key="host-1"),
    ]

    answer = await control.call("POST", "/v1/attempts:batch", json={"attempts": requests})

    items = answer.json()["items"]
    assert [item["status"] for item in items] == [201, 409, 422, 422, 201]
    assert items[1]["problem"]["attempt_id"] == known["id"]
    assert items[2]["problem"]["errors"][0]["pointer"] == "/timeout_seconds"
    assert await control.status(items[0]["attempt"]["id"]) == "queued"


async def test_a_batch_that_names_one_key_twice_creates_it_once(control):
    request = new_attempt()

    answer = await control.call("POST", "/v1/attempts:batch", json={"attempts": [request] * 3})

    items = answer.json()["items"]
    assert [item["status"] for item in items] == [201, 200, 200]
    assert len({item["attempt"]["id"] for item in items}) == 1


async def test_a_repeated_batch_gives_the_same_attempts(control):
    requests = [new_attempt() for _ in range(500)]

    first = await control.call("POST", "/v1/attempts:batch", json={"attempts": requests})
    second = await control.call("POST", "/v1/attempts:batch", json={"attempts": requests})

    assert [item["attempt"] for item in first.json()["items"]] == [
        item["attempt"] for item in second.json()["items"]
    ]
    assert {item["status"] for item in second.json()["items"]} == {200}


async def test_a_batch_over_its_limit_is_refused_whole(control):
    answer = await control.call(
        "POST", "/v1/attempts:batch", json={"attempts": [new_attempt() for _ in range(501)]}
    )

    assert (answer.status_code, answer.json()["reason"]) == (413, "batch-too-large")


async def test_a_placement_too_many_costs_the_others_of_its_batch_nothing(make_settings):
    settings = make_settings(LIMITS__MAX_PLACEMENT_CLASSES_PER_KIND=1)
    bodies = [new_attempt(placement={"zone": zone}) for zone in ("a", "a", "b", "a")]
    requests = [CreateRequest(CreateAttempt.model_validate(body), body) for body in bodies]

    async with open_services(settings) as services:
        outcomes = await create_attempts(services, requests)

    assert [isinstance(one, TooManyPlacements) for one in outcomes] == [False, False, True, False]


async def test_many_heartbeats_are_answered_by_position(control, runner):
    for _ in range(3):
        await control.create()
    await runner.register(capacity_total=3)
    held = await runner.claim_all(max_leases=3)
    beats = [
        {
            "lease_id": one.id,
            "lease_token": one.token,
            "session_id": runner.session_id,
            "sequence": 1,
        }
        for one in held
    ]
    beats[1] = {**beats[1], "lease_token": "wrong"}
    beats.append({**beats[0], "lease_id": str(uuid4())})

    answer = await runner.call("POST", "/v1/leases:heartbeat", json={"heartbeats": beats})

    items = answer.json()["items"]
    assert [item["status"] for item in items] == [200, 403, 200, 404]
    assert items[0]["lease"]["action"] == "continue"
    assert items[1]["problem"]["reason"] == "lease-token-invalid"
