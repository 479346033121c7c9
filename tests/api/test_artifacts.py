"""What a runner uploads, and what then points at it: the common ways, and the common mistakes."""

import hashlib
from uuid import uuid4

import pytest

from tests.driver import Held, announced

BODY = b'{"changed": 3}\n'


@pytest.fixture
async def held(control, runner) -> Held:
    await control.create()
    return await (await runner.register()).start()


async def test_output_points_at_what_was_uploaded_and_can_be_read_back(held, control):
    artifact_id = await held.upload(BODY, name="plan.json", content_type="application/json")

    recorded = await held.output("plan", artifact_id, schema_ref="plan/1")

    assert recorded.status_code == 201, recorded.text
    [output] = await control.list_of(held.attempt_id, "outputs")
    assert output == recorded.json()["output"]
    assert (output["name"], output["artifact_ref_id"]) == ("plan", artifact_id)
    assert output["digest"] == f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    content = await control.call("GET", f"/v1/artifacts/{artifact_id}/content")
    assert (content.status_code, content.content) == (200, BODY)
    assert content.headers["content-type"] == "application/json"
    assert content.headers["content-disposition"].startswith('attachment; filename="plan.json"')


async def test_first_recording_makes_the_artifact_and_tells_both(held, control, sql):
    artifact_id = await held.upload(BODY, name="plan.json")
    missing = await control.call("GET", f"/v1/artifacts/{artifact_id}")

    await held.output("plan", artifact_id)

    assert (missing.status_code, missing.json()["reason"]) == (404, "artifact-not-found")
    found = (await control.call("GET", f"/v1/artifacts/{artifact_id}")).json()
    assert (found["state"], found["byte_size"], found["name"]) == ("ready", len(BODY), "plan.json")
    events = (await control.events(held.attempt_id))[3:]
    assert [event["event_type"] for event in events] == ["artifact_created", "output_recorded"]
    assert events[0]["payload"]["artifact_id"] == artifact_id
    assert events[1]["payload"]["digest"] == found["digest"]
    assert await sql.fetchval("SELECT closed_reason FROM artifact_uploads") == "recorded"


async def test_the_same_output_again_is_answered_as_it_was_and_another_one_refused(held, control):
    first, other = await held.upload(BODY), await held.upload(b"other")
    recorded = await held.output("plan", first)

    again = await held.output("plan", first)
    different = await held.output("plan", other)
    other_type = await held.output("plan", first, output_type="text")

    assert (again.status_code, again.json()) == (200, recorded.json())
    assert again.headers["idempotent-replayed"] == "true"
    for refused in (different, other_type):
        assert (refused.status_code, refused.json()["reason"]) == (409, "output-conflict")
    assert len(await control.list_of(held.attempt_id, "outputs")) == 1
    assert (await control.event_types(held.attempt_id)).count("artifact_created") == 1


async def test_evidence_is_appended_once_a_request(held, control):
    artifact_id = await held.upload(BODY)
    output = (await held.output("plan", artifact_id)).json()["output"]
    request_id = str(uuid4())
    fields = {"request_id": request_id, "artifact_id": artifact_id, "output_id": output["id"]}

    first = await held.evidence(**fields)
    again = await held.evidence(**fields)
    reused = await held.evidence(**fields, status="failed")
    bare = await held.evidence(evidence_type="assertion", status="inconclusive")

    assert [answer.status_code for answer in (first, again, reused, bare)] == [201, 200, 409, 201]
    assert again.json() == first.json()
    assert reused.json()["reason"] == "request-id-reused"
    listed = await control.list_of(held.attempt_id, "evidence")
    assert [one["status"] for one in listed] == ["passed", "inconclusive"]
    assert (listed[0]["artifact_ref_id"], listed[0]["output_ref_id"]) == (
        artifact_id,
        output["id"],
    )
    events = await control.event_types(held.attempt_id)
    assert events[3:] == ["artifact_created", "output_recorded", *["evidence_recorded"] * 2]


async def test_body_of_another_size_or_digest_is_refused_and_the_ticket_stays_open(held, sql):
    ticket = await held.ticket(BODY)

    longer = await held.send(ticket, BODY + b"x")
    other = await held.send(ticket, BODY[::-1])
    nothing = await held.output("plan", ticket["artifact_id"])
    right = await held.send(ticket, BODY)

    for refused in (longer, other):
        assert (refused.status_code, refused.json()["reason"]) == (422, "artifact-mismatch")
    assert (nothing.status_code, nothing.json()["reason"]) == (422, "artifact-missing")
    assert await sql.fetchval("SELECT count(*) FROM artifact_refs") == 0
    assert (right.status_code, right.json()["verified"]) == (200, True)


async def test_ticket_of_the_same_request_is_the_same(held):
    request = announced(BODY, name="a")
    first = await held.call("POST", "/artifacts", json=request)
    again = await held.call("POST", "/artifacts", json=request)
    reused = await held.call("POST", "/artifacts", json={**request, "byte_size": 1})

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["artifact_id"] == first.json()["artifact_id"]
    assert (reused.status_code, reused.json()["reason"]) == (409, "request-id-reused")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"digest": "sha256:abc"}, "/digest"),
        ({"digest": "md5:" + "0" * 64}, "/digest"),
        ({"byte_size": -1}, "/byte_size"),
        ({"byte_size": 1.5}, "/byte_size"),
        ({"content_type": "text/plain\r\nX-Evil: 1"}, "/content_type"),
        ({"content_type": "nonsense"}, "/content_type"),
        ({"name": ""}, "/name"),
        ({"name": "n" * 201}, "/name"),
        ({"retention_class": "forever"}, "/retention_class"),
        ({"request_id": "1"}, "/request_id"),
        ({"key": "somewhere/else"}, "/key"),
    ],
)
async def test_ticket_of_wrong_form_is_refused_with_a_pointer(held, fields, pointer):
    answer = await held.try_ticket(BODY, **fields)

    assert answer.status_code == 422, answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


async def test_too_large_is_refused_before_anything_is_made(held, services, sql):
    limit = services.settings.limits.max_artifact_bytes

    answer = await held.try_ticket(BODY, byte_size=limit + 1)

    assert (answer.status_code, answer.json()["limit_bytes"]) == (413, limit)
    assert await sql.fetchval("SELECT count(*) FROM artifact_uploads") == 0


async def test_recording_needs_the_lease_its_token_and_an_artifact_of_the_attempt(
    held, control, make_runner
):
    artifact_id = await held.upload(BODY)
    await control.create()
    other = await (await make_runner().register()).start()

    foreign = await other.output("plan", artifact_id)
    unknown = await held.output("plan", str(uuid4()))
    no_output = await held.evidence(output_id=str(uuid4()))
    held.token, token = "wrong", held.token
    no_token = await held.output("plan", artifact_id)
    held.token = token
    await held.complete()
    ended = await held.output("plan", artifact_id)

    assert (foreign.status_code, foreign.json()["reason"]) == (404, "artifact-not-found")
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "artifact-not-found")
    assert (no_output.status_code, no_output.json()["reason"]) == (404, "output-not-found")
    assert (no_token.status_code, no_token.json()["reason"]) == (403, "lease-token-invalid")
    assert (ended.status_code, ended.json()["reason"]) == (409, "attempt-ended")
    assert ended.json()["action"] == "stop"


async def test_range_of_an_artifact(held, control):
    artifact_id = await held.upload(b"0123456789")
    await held.output("digits", artifact_id)
    path = f"/v1/artifacts/{artifact_id}/content"

    part = await control.call("GET", path, headers={"Range": "bytes=2-4"})
    beyond = await control.call("GET", path, headers={"Range": "bytes=10-"})

    assert (part.status_code, part.content) == (206, b"234")
    assert part.headers["content-range"] == "bytes 2-4/10"
    assert part.headers["repr-digest"].startswith("sha-256=:")
    assert beyond.status_code == 416


async def test_secrets_in_names_are_masked_wherever_they_are_kept(held, control, sql):
    secret = "AKIA" + "Z7QJ4XN2PLM5RT3V"
    artifact_id = await held.upload(BODY, name=f"{secret}.txt")

    output = await held.output(f"key {secret}", artifact_id, schema_ref=f"s/{secret}")
    evidence = await held.evidence(subject_ref=f"host with {secret}")

    assert output.json()["output"]["name"] == "key ***"
    assert evidence.json()["evidence"]["subject_ref"] == "host with ***"
    assert (await held.output(f"key {secret}", artifact_id, schema_ref=f"s/{secret}")).is_success
    tables = ("artifact_uploads", "artifact_refs", "runner_output_refs", "evidence_refs")
    for table in (*tables, "attempt_events"):
        rows = await sql.fetch(f"SELECT t::text FROM {table} t")
        assert rows
        assert not any(secret in row["t"] for row in rows), table
    assert (await control.event_types(held.attempt_id)).count("secret_masked") == 3
