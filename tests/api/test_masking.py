"""No secret that a caller sends is in any row afterwards; what stays says that one was there."""

import pytest

from app.store import tables
from tests.api.conftest import end_lease
from tests.driver import Control, Held, new_attempt

CANARY = "ghp_hunter2CanaryhUnter2cAnaryhuNter20001"
SAID = f"login failed for token {CANARY}"
MASKED = "login failed for token ***"


async def rows(sql) -> str:
    """Every row of every table, as text."""
    texts = []
    for name in tables.metadata.tables:
        texts += [row["row"] for row in await sql.fetch(f"SELECT t::text AS row FROM {name} t")]
    return "\n".join(texts)


@pytest.fixture
async def held(control, runner) -> Held:
    await control.create()
    held = await (await runner.register()).claim()
    assert (await held.start()).status_code == 200
    return held


async def leaks(control: Control, attempt_id: str) -> list[tuple[str, dict[str, int]]]:
    events = await control.events(attempt_id)
    return [
        (event["payload"]["source"], event["payload"]["kinds"])
        for event in events
        if event["event_type"] == "secret_masked"
    ]


async def test_message_of_a_heartbeat_is_masked(held, control, sql):
    answer = await held.beat(phase="executing", message=SAID)

    assert answer.status_code == 200
    assert (await control.list_of(held.attempt_id, "heartbeats"))[0]["message"] == MASKED
    assert [source for source, _ in await leaks(control, held.attempt_id)] == ["heartbeat"]
    assert CANARY not in await rows(sql)


async def test_messages_of_many_heartbeats_are_masked(held, control, sql):
    beats = [
        {
            "lease_id": held.id,
            "lease_token": held.token,
            "session_id": held.runner.session_id,
            "sequence": number,
            "message": SAID,
        }
        for number in (1, 2)
    ]

    answer = await held.runner.call("POST", "/v1/leases:heartbeat", json={"heartbeats": beats})

    assert [item["status"] for item in answer.json()["items"]] == [200, 200]
    assert len(await leaks(control, held.attempt_id)) == 1
    assert CANARY not in await rows(sql)


async def test_completion_is_masked(held, control, sql):
    result = {"exit_code": 1, "password": "hunter2", "seen": [SAID]}

    answer = await held.complete("failed", failure_message=SAID, result=result)

    assert answer.status_code == 200
    attempt = await control.get(held.attempt_id)
    assert attempt["failure_message"] == MASKED
    assert attempt["result"] == {"exit_code": 1, "password": "***", "seen": [MASKED]}
    [(source, kinds)] = await leaks(control, held.attempt_id)
    assert (source, sum(kinds.values())) == ("completion", 3)
    assert CANARY not in await rows(sql)


async def test_masked_completion_may_be_repeated(held):
    first = await held.complete("failed", failure_message=SAID)
    again = await held.complete("failed", failure_message=SAID)
    other = await held.complete("failed", failure_message=f"{SAID}x")

    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 409)


async def test_late_word_is_masked(held, control, sql):
    await end_lease(sql, held.id, "expired")

    answer = await held.complete("failed", failure_message=SAID)

    assert answer.status_code == 409
    events = {event["event_type"]: event for event in await control.events(held.attempt_id)}
    assert events["late_result"]["payload"]["failure_message"] == MASKED
    assert "secret_masked" in events
    assert CANARY not in await rows(sql)


async def test_heartbeat_of_an_ended_lease_tells_the_timeline_nothing(held, control, sql):
    await end_lease(sql, held.id, "expired")

    await held.beat(message=SAID)

    assert await leaks(control, held.attempt_id) == []


async def test_heartbeat_with_a_wrong_token_tells_the_timeline_nothing(held, control):
    held.token = "lt_" + "A" * 43

    answer = await held.beat(message=SAID)

    assert answer.status_code == 403
    assert await leaks(control, held.attempt_id) == []


async def test_timeline_is_told_once_a_lease_source_and_kind(held, control):
    for message in (SAID, SAID, "password=hunter2hunter2", SAID):
        await held.beat(message=message)

    assert len(await leaks(control, held.attempt_id)) == 2


async def test_reason_of_a_release_is_masked(control, runner, sql):
    await control.create()
    held = await (await runner.register()).claim()

    answer = await held.post("release", {"reason": SAID})

    assert answer.status_code == 200
    assert CANARY not in await rows(sql)
    assert MASKED in await rows(sql)


async def test_cut_comes_after_the_mask(held, control):
    """A secret across the limit of a message would otherwise be stored in part."""
    message = "x" * (4096 - 10) + " " + CANARY

    await held.beat(message=message)

    [beat] = await control.list_of(held.attempt_id, "heartbeats")
    assert beat["message"] == "x" * (4096 - 10) + " ***"


@pytest.mark.parametrize("many", [False, True])
async def test_reason_of_a_cancel_is_masked(many, control, sql):
    attempt = await control.create()
    what = f"operations/{attempt['operation_id']}" if many else f"attempts/{attempt['id']}"

    answer = await control.call("POST", f"/v1/{what}:cancel", json={"reason": SAID})

    assert answer.status_code == 200
    assert (await control.get(attempt["id"]))["cancel_reason"] == MASKED
    assert CANARY not in await rows(sql)


async def test_report_and_labels_of_a_runner_are_masked(runner, operator, sql):
    runner.profile["labels"] = {"team": CANARY, "rack": "r12"}
    await runner.register()
    report = {
        "session_id": runner.session_id,
        "sequence": 1,
        "status": "unhealthy",
        "capacity_total": 1,
        "last_error": SAID,
    }
    answer = await runner.call("PUT", f"/v1/runners/{runner.id}/status", json=report)

    assert answer.status_code == 200, answer.text
    shown = (await operator.call("GET", f"/v1/runners/{runner.id}")).json()["runner"]
    assert shown["labels"] == {"team": "***", "rack": "r12"}
    assert shown["last_error"] == MASKED
    assert CANARY not in await rows(sql)


@pytest.mark.parametrize(("field", "pointer"), [("id", "/runner_id"), ("zone", "/zone")])
async def test_runner_that_is_known_by_a_secret_is_refused(field, pointer, runner, sql):
    if field == "id":
        runner.id = CANARY
    else:
        runner.profile[field] = CANARY

    answer = await runner.try_register()

    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (422, "secret-in-request")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert CANARY not in await rows(sql)


SECRET_REQUESTS = {
    "idempotency_key": ({"idempotency_key": CANARY}, "/idempotency_key"),
    "requested_by_service": ({"requested_by_service": SAID}, "/requested_by_service"),
    "concurrency_key": ({"concurrency_key": f"host/{CANARY}"}, "/concurrency_key"),
    "zone": ({"placement": {"zone": CANARY}}, "/placement/zone"),
    "label": ({"placement": {"labels": {"team": CANARY}}}, "/placement/labels/team"),
    "label_name": ({"placement": {"labels": {CANARY: "team"}}}, "/placement/labels/0"),
    "spec": (
        {"job_spec_ref": {"env": [{"name": "DB_PASSWORD", "value": "tr0ub4dor&3"}]}},
        "/job_spec_ref/env/0/value",
    ),
    "spec_text": ({"job_spec_ref": {"command": f"curl -H 'X: {SAID}'"}}, "/job_spec_ref/command"),
}


@pytest.mark.parametrize("case", SECRET_REQUESTS)
async def test_attempt_with_a_secret_is_refused_with_its_place(case, control, sql):
    fields, pointer = SECRET_REQUESTS[case]

    answer = await control.try_create(**fields)

    problem = answer.json()
    assert (answer.status_code, problem["reason"]) == (422, "secret-in-request"), problem
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert CANARY not in answer.text + await rows(sql)


async def test_reference_to_a_secret_is_accepted(control):
    spec = {"password": {"secret_ref": "vault://kv/db#password"}, "user": "deploy"}

    attempt = await control.create(job_spec_ref=spec)

    assert attempt["job_spec_ref"] == spec


async def test_secret_in_one_of_many_attempts_costs_the_others_nothing(control):
    bad = new_attempt(job_spec_ref={"token": CANARY})

    answer = await control.call(
        "POST", "/v1/attempts:batch", json={"attempts": [new_attempt(), bad]}
    )

    assert [item["status"] for item in answer.json()["items"]] == [201, 422]


async def test_state_document_with_a_secret_is_refused(operator, sql):
    answer = await operator.call(
        "PUT",
        "/v1/state/cursor",
        json={"document": {"token": CANARY}},
        headers={"If-None-Match": "*"},
    )

    assert (answer.status_code, answer.json()["reason"]) == (422, "secret-in-request")
    assert CANARY not in await rows(sql)


async def test_what_was_masked_is_counted(held, services):
    def counted() -> float:
        [metric] = services.metrics.secrets_masked.collect()
        return sum(
            sample.value
            for sample in metric.samples
            if sample.name.endswith("_total") and sample.labels["source"] == "heartbeat"
        )

    before = counted()
    await held.beat(message=f"{SAID} and password=hunter2hunter2")

    assert counted() - before == 2
