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


async def hold_many(control, runner, count: int) -> list[dict[str, str]]:
    """The proofs of as many leases, claimed together."""
    for _ in range(count):
        await control.create()
    await runner.register(capacity_total=count)
    held = await runner.claim_all(max_leases=count)
    return [{"lease_id": one.id, "lease_token": one.token} for one in held]


async def test_many_leases_are_started_together(control, runner):
    proofs = await hold_many(control, runner, 3)
    wrong = {**proofs[1], "lease_token": "wrong"}
    starts = [proofs[0], wrong, proofs[2], proofs[0], {"lease_id": "none"}]

    answer = await runner.call("POST", "/v1/leases:start", json={"starts": starts})

    items = answer.json()["items"]
    assert [item["status"] for item in items] == [200, 403, 200, 200, 422]
    assert [items[n]["lease"]["lease_id"] for n in (0, 2)] == [
        proofs[n]["lease_id"] for n in (0, 2)
    ]
    running = [items[n]["lease"]["attempt_id"] for n in (0, 2)]
    assert {await control.status(attempt_id) for attempt_id in running} == {"running"}
    assert items[1]["problem"]["reason"] == "lease-token-invalid"


async def test_start_of_a_cancelled_attempt_in_a_batch_says_stop(control, runner):
    proofs = await hold_many(control, runner, 2)
    first = await runner.call("POST", "/v1/leases:start", json={"starts": proofs[1:]})
    for attempt in (await control.call("GET", "/v1/attempts")).json()["items"]:
        if attempt["id"] != first.json()["items"][0]["lease"]["attempt_id"]:
            await control.call("POST", f"/v1/attempts/{attempt['id']}:cancel", json={})

    answer = await runner.call("POST", "/v1/leases:start", json={"starts": proofs})

    stopped, begun = answer.json()["items"]
    assert (stopped["status"], stopped["problem"]["action"]) == (409, "stop")
    assert (begun["status"], begun["lease"]["action"]) == (200, "continue")


async def test_many_completions_are_answered_by_position_and_may_be_repeated(control, runner):
    proofs = await hold_many(control, runner, 4)
    await runner.call("POST", "/v1/leases:start", json={"starts": proofs[:3]})
    words = [{**proof, "outcome": "succeeded"} for proof in proofs]
    words[1] |= {"outcome": "failed", "failure_category": "internal", "result": {"exit": 1}}
    words[2] |= {"outcome": "failed"}

    first = await runner.call("POST", "/v1/leases:complete", json={"completions": words})
    alone = await runner.call(
        "POST",
        f"/v1/leases/{proofs[0]['lease_id']}:complete",
        headers={"Lease-Token": proofs[0]["lease_token"]},
        json={"outcome": "succeeded"},
    )
    words[0]["outcome"] = "cancelled"
    again = await runner.call("POST", "/v1/leases:complete", json={"completions": words})

    items = first.json()["items"]
    assert [item["status"] for item in items] == [200, 200, 422, 200]
    assert [item["attempt"] and item["attempt"]["status"] for item in items] == [
        "succeeded",
        "failed",
        None,
        "succeeded",
    ]
    assert items[2]["problem"]["errors"]
    assert alone.headers["Idempotent-Replayed"] == "true"
    assert [item["status"] for item in again.json()["items"]] == [409, 200, 422, 200]
    assert [item["replayed"] for item in again.json()["items"]] == [False, True, False, True]


async def test_completion_twice_in_one_batch_is_done_once(control, runner):
    [proof] = await hold_many(control, runner, 1)
    words = [{**proof, "outcome": "succeeded"}, {**proof, "outcome": "succeeded"}]

    answer = await runner.call("POST", "/v1/leases:complete", json={"completions": words})

    assert [item["replayed"] for item in answer.json()["items"]] == [False, True]


async def test_batch_of_completions_hands_their_keys_on(control, runner):
    """Who waits for a key learns of it as if each had been completed by itself."""
    for key in ("host-1", "host-2"):
        for _ in range(2):
            await control.create(concurrency_key=key)
    await runner.register(capacity_total=4)
    held = await runner.claim_all(max_leases=4)
    words = [{"lease_id": one.id, "lease_token": one.token, "outcome": "succeeded"} for one in held]

    await runner.call("POST", "/v1/leases:complete", json={"completions": words})

    assert len(held) == 2
    assert len(await runner.claim_all(max_leases=4)) == 2
