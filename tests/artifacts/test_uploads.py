"""How bodies come into the store, and that nothing points at one that is not as announced."""

import asyncio
import hashlib
import os
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.auth.lease_tokens import hash_of
from app.commands.recordings import record_output
from app.domain.errors import ArtifactMissing
from app.domain.lifecycle import UploadMethod
from app.handlers import recordings as recording_handlers
from app.store import uploads
from app.store.leases import Key
from app.store.outputs import NewOutput
from tests.artifacts.conftest import send
from tests.artifacts.s3_proxy import error
from tests.driver import announced

BODY = b'{"changed": 3}\n'
MEBIBYTE = 1024 * 1024
IN_PARTS = {"OBJECTS__SINGLE_PUT_BYTES": 1024, "OBJECTS__PART_BYTES": 5 * MEBIBYTE}
WEAK = {"OBJECTS__CHECKSUM": "none", "LIMITS__MAX_ARTIFACT_BODY_BYTES": 2048}


def pieces(ticket: dict, body: bytes) -> list[bytes]:
    return [body[part["offset"] : part["offset"] + part["byte_size"]] for part in ticket["parts"]]


async def rows(sql, table: str) -> int:
    return await sql.fetchval(f"SELECT count(*) FROM {table}")


def refusal(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["reason"]


# --- one signed request ---------------------------------------------------------------------------


async def test_signed_upload_takes_exactly_the_announced_bytes(here, network, sql):
    held = await here.held()
    ticket = await held.ticket(BODY, content_type="application/json")

    other = await send(network, ticket["upload"], BODY[::-1])
    longer = await send(network, ticket["upload"], BODY + b"x")
    before = await held.output("plan", ticket["artifact_id"])
    right = await send(network, ticket["upload"], BODY)
    again = await send(network, ticket["upload"], BODY)
    after = await held.output("plan", ticket["artifact_id"])

    assert ticket["method"] == "single"
    assert other.status_code in {400, 403}
    assert longer.status_code in {400, 403}
    assert refusal(before) == (422, "artifact-missing")
    assert (right.status_code, again.status_code) == (200, 200)
    assert after.status_code == 201, after.text
    assert (await here.content(ticket["artifact_id"])).content == BODY
    assert await rows(sql, "artifact_refs") == 1


async def test_empty_body_is_a_body(here, network):
    held = await here.held()
    ticket = await held.ticket(b"")

    assert (await send(network, ticket["upload"], b"")).status_code == 200
    assert (await held.output("nothing", ticket["artifact_id"])).status_code == 201

    content = await here.content(ticket["artifact_id"])
    assert (content.status_code, content.content) == (200, b"")


async def test_repeated_request_renews_the_addresses(here, network):
    held = await here.held()
    request = announced(BODY)
    first = (await held.call("POST", "/artifacts", json=request)).json()

    again = (await held.call("POST", "/artifacts", json=request)).json()
    uploaded = await send(network, again["upload"], BODY)
    verified = await held.call("POST", f"/artifacts/{first['artifact_id']}:verify")
    later = (await held.call("POST", "/artifacts", json=request)).json()

    assert uploaded.status_code == 200
    assert (verified.status_code, verified.json()["verified"]) == (200, True)
    assert (later["verified"], later["upload"], later["content_path"]) == (True, None, None)


async def test_address_names_the_host_that_runners_reach(open_instance, objects, network):
    public = objects.endpoint_url.replace("127.0.0.1", "localhost")
    instance = await open_instance(OBJECTS__PUBLIC_ENDPOINT_URL=public)
    held = await instance.held()

    ticket = await held.ticket(BODY)

    assert ticket["upload"]["url"].startswith(f"{public}/")
    assert (await send(network, ticket["upload"], BODY)).status_code == 200
    assert (await held.output("plan", ticket["artifact_id"])).status_code == 201


async def test_store_that_keeps_no_digest_is_read_once(here, sql):
    """As one would that ignores the checksum header: the object is right or wrong, and untold."""
    held = await here.held()
    right, wrong = await held.ticket(BODY), await held.ticket(b"another body")
    for ticket, body in ((right, BODY), (wrong, b"another_body")):
        key = await sql.fetchval(
            "SELECT key FROM artifact_uploads WHERE id = $1", UUID(ticket["artifact_id"])
        )
        settings = here.services.settings.objects
        await here.services.objects.client.put_object(Bucket=settings.bucket, Key=key, Body=body)

    recorded = await held.output("right", right["artifact_id"])
    refused = await held.output("wrong", wrong["artifact_id"])

    assert recorded.status_code == 201
    assert refusal(refused) == (422, "artifact-mismatch")
    assert await rows(sql, "artifact_refs") == 1


# --- in parts -------------------------------------------------------------------------------------


async def test_parts_may_come_in_any_order_and_nothing_changes_them_afterwards(
    open_instance, network
):
    instance = await open_instance(**IN_PARTS)
    held, body = await instance.held(), os.urandom(11 * MEBIBYTE)
    ticket = await held.ticket(body)
    parts = list(zip(ticket["parts"], pieces(ticket, body), strict=True))

    for part, piece in reversed(parts[1:]):
        assert (await send(network, part["request"], piece)).status_code == 200
    early = await held.output("archive", ticket["artifact_id"])
    assert (await send(network, parts[0][0]["request"], parts[0][1])).status_code == 200
    recorded = await held.output("archive", ticket["artifact_id"], output_type="archive")
    late = await send(network, parts[0][0]["request"], parts[0][1])

    assert [part["byte_size"] for part in ticket["parts"]] == [
        5 * MEBIBYTE,
        5 * MEBIBYTE,
        1 * MEBIBYTE,
    ]
    assert ticket["method"] == "parts"
    assert ticket["content_path"] is None
    assert refusal(early) == (422, "artifact-missing")
    assert "2 of 3 parts" in early.json()["detail"]
    assert recorded.status_code == 201, recorded.text
    assert late.status_code == 404
    content = await instance.content(ticket["artifact_id"])
    assert hashlib.sha256(content.content).digest() == hashlib.sha256(body).digest()


async def test_parts_that_are_not_the_announced_body_are_refused_for_good(
    open_instance, network, sql
):
    instance = await open_instance(**IN_PARTS)
    held, body = await instance.held(), bytes(3000)
    ticket = await held.ticket(body)
    [part] = ticket["parts"]

    await send(network, part["request"], b"x" * 3000)
    first = await held.output("archive", ticket["artifact_id"])
    again = await held.output("archive", ticket["artifact_id"])
    renewed = await held.call("POST", f"/artifacts/{ticket['artifact_id']}:verify")

    for answer in (first, again, renewed):
        assert refusal(answer) == (422, "artifact-mismatch")
    assert await rows(sql, "artifact_refs") == 0
    assert await rows(sql, "runner_output_refs") == 0
    assert await sql.fetchval("SELECT closed_reason FROM artifact_uploads") == "mismatch"


async def test_part_of_another_size_ends_the_upload(open_instance, network, sql):
    instance = await open_instance(**IN_PARTS)
    held = await instance.held()
    ticket = await held.ticket(bytes(3000))
    store = instance.services.objects
    upload_id, key = await sql.fetchrow("SELECT upload_id, key FROM artifact_uploads")
    signed = await store.signer.sign_part(key, upload_id, 1, 10)
    await network.put(signed.url, content=bytes(10), headers=signed.headers)

    refused = await held.output("archive", ticket["artifact_id"])

    assert refusal(refused) == (422, "artifact-mismatch")
    assert await store.multipart.list_open(store.full_key("")) == []


async def test_large_body_is_hashed_while_the_sender_asks_again(
    open_instance, network, monkeypatch
):
    monkeypatch.setattr(recording_handlers, "_VERIFY_SECONDS", 0.05)
    instance = await open_instance(**IN_PARTS)
    held = await instance.held()
    ticket = await held.ticket(bytes(3000))
    await send(network, ticket["parts"][0]["request"], bytes(3000))
    hashing = instance.services.objects.hashing
    async with hashing._places, hashing._places:
        waiting = await held.output("archive", ticket["artifact_id"])

    monkeypatch.setattr(recording_handlers, "_VERIFY_SECONDS", 5.0)
    recorded = await held.output("archive", ticket["artifact_id"])

    assert refusal(waiting) == (503, "artifact-verifying")
    assert int(waiting.headers["retry-after"]) > 0
    assert recorded.status_code == 201, recorded.text


async def test_completion_told_as_an_error_within_a_200_is_none(
    open_instance, faulty, network, sql
):
    instance = await open_instance(OBJECTS__ENDPOINT_URL=faulty.url, **IN_PARTS)
    held = await instance.held()
    ticket = await held.ticket(bytes(3000))
    await send(network, ticket["parts"][0]["request"], bytes(3000))

    faulty.fault = _fails_to_complete
    refused = await held.output("archive", ticket["artifact_id"])
    rows_then = await rows(sql, "artifact_refs")
    faulty.fault = None
    recorded = await held.output("archive", ticket["artifact_id"])

    assert refusal(refused) == (503, "object-store-unavailable")
    assert rows_then == 0
    assert recorded.status_code == 201, recorded.text


async def _fails_to_complete(request, body):
    is_complete = request.method == "POST" and "uploadId" in request.query_params
    return error("InternalError", 200) if is_complete else None


# --- a store that verifies nothing ----------------------------------------------------------------


async def test_weak_store_takes_small_bodies_through_the_service_and_large_ones_in_parts(
    open_instance, network, sql
):
    instance = await open_instance(**WEAK)
    held = await instance.held()
    small, large = await held.ticket(BODY), await held.ticket(bytes(3000))

    sent = await held.send(small, BODY)
    by_content = await held.send(large, bytes(3000))
    await send(network, large["parts"][0]["request"], bytes(3000))

    assert (small["method"], small["upload"]) == ("service", None)
    assert (large["method"], len(large["parts"]), large["content_path"]) == ("parts", 1, None)
    assert sent.status_code == 200
    assert by_content.status_code == 413
    for name, ticket in (("small", small), ("large", large)):
        assert (await held.output(name, ticket["artifact_id"])).status_code == 201
    assert await rows(sql, "artifact_refs") == 2


async def test_weak_store_is_not_believed(open_instance, network, sql):
    instance = await open_instance(**WEAK)
    held = await instance.held()
    ticket = await held.ticket(bytes(3000))
    await send(network, ticket["parts"][0]["request"], b"x" * 3000)

    refused = await held.output("archive", ticket["artifact_id"])

    assert refusal(refused) == (422, "artifact-mismatch")
    assert await rows(sql, "artifact_refs") == 0


# --- what the operation has already ---------------------------------------------------------------


async def test_known_bytes_of_the_operation_need_no_upload(here, sql):
    operation = str(uuid4())
    first = await here.held(operation_id=operation)
    original = await first.upload(BODY)
    await first.output("plan", original)
    second = await here.held(operation_id=operation)

    ticket = await second.ticket(BODY, name="again")
    recorded = await second.output("plan", ticket["artifact_id"])

    assert (ticket["method"], ticket["verified"], ticket["upload"]) == ("known", True, None)
    assert recorded.status_code == 201, recorded.text
    keys = await sql.fetch("SELECT id, key, attempt_id FROM artifact_refs")
    assert len(keys) == 2
    assert len({row["key"] for row in keys}) == 1
    assert {str(row["attempt_id"]) for row in keys} == {first.attempt_id, second.attempt_id}
    assert (await here.content(ticket["artifact_id"])).content == BODY


@pytest.mark.parametrize("other", ["operation", "class", "unrecorded"])
async def test_bytes_that_are_not_known_there_are_uploaded(here, other):
    operation = str(uuid4())
    first = await here.held(operation_id=operation)
    original = await first.upload(BODY)
    if other != "unrecorded":
        await first.output("plan", original)
    second = await here.held(operation_id=str(uuid4()) if other == "operation" else operation)

    ticket = await second.ticket(BODY, retention_class="long" if other == "class" else "normal")

    assert ticket["method"] == "single"


async def test_known_bytes_that_go_meanwhile_are_uploaded_after_all(here, network, sql):
    operation = str(uuid4())
    first = await here.held(operation_id=operation)
    await first.output("plan", await first.upload(BODY))
    second = await here.held(operation_id=operation)
    request = announced(BODY)
    ticket = (await second.call("POST", "/artifacts", json=request)).json()
    await sql.execute("UPDATE artifact_refs SET state = 'removing'")

    refused = await second.output("plan", ticket["artifact_id"])
    renewed = (await second.call("POST", "/artifacts", json=request)).json()
    await send(network, renewed["upload"], BODY)
    recorded = await second.output("plan", ticket["artifact_id"])

    assert ticket["method"] == "known"
    assert refusal(refused) == (422, "artifact-missing")
    assert (renewed["artifact_id"], renewed["method"]) == (ticket["artifact_id"], "single")
    assert recorded.status_code == 201, recorded.text
    assert len(set(await sql.fetch("SELECT key FROM artifact_refs"))) == 2


async def test_object_that_somebody_deleted_is_not_known(here, sql):
    operation = str(uuid4())
    first = await here.held(operation_id=operation)
    await first.output("plan", await first.upload(BODY))
    key = await sql.fetchval("SELECT key FROM artifact_refs")
    assert await here.services.objects.delete([key]) == {}
    second = await here.held(operation_id=operation)

    assert (await second.ticket(BODY))["method"] == "single"


async def test_nothing_points_at_what_was_verified_under_another_key(here, sql):
    """A slow look at the known object ends after the ticket has got a key of its own."""
    operation = str(uuid4())
    first = await here.held(operation_id=operation)
    await first.output("plan", await first.upload(BODY))
    second = await here.held(operation_id=operation)
    ticket = await second.ticket(BODY)
    ticket_id, attempt_id = UUID(ticket["artifact_id"]), UUID(second.attempt_id)
    database = here.services.database
    seen = await database.run(lambda conn: uploads.find(conn, ticket_id, attempt_id))
    await database.run(
        lambda conn: uploads.give_own_key(conn, ticket_id, UploadMethod.SINGLE, None, "moved/")
    )

    await database.run(lambda conn: uploads.mark_verified(conn, seen))
    key = Key(UUID(second.id), hash_of(second.token))
    new = NewOutput(uuid4(), "plan", "json", ticket_id, None)
    outcome = await database.run(lambda conn: record_output(conn, key, timedelta(seconds=30), new))

    assert isinstance(outcome, ArtifactMissing)
    assert await rows(sql, "artifact_refs") == 1
    assert await rows(sql, "runner_output_refs") == 1


# --- limits, leases, races ------------------------------------------------------------------------


async def test_attempt_may_ask_for_so_many_artifacts(open_instance):
    instance = await open_instance(LIMITS__MAX_ARTIFACTS_PER_ATTEMPT=2)
    held = await instance.held()
    request = announced(BODY)
    await held.call("POST", "/artifacts", json=request)
    await held.ticket(BODY)

    third = await held.try_ticket(BODY)
    repeat = await held.call("POST", "/artifacts", json=request)

    assert refusal(third) == (413, "artifact-limit-reached")
    assert repeat.status_code == 200


async def test_body_over_the_limit_is_refused_before_it_is_read(open_instance):
    instance = await open_instance(LIMITS__MAX_ARTIFACT_BODY_BYTES=1024)
    held = await instance.held()
    ticket = await held.ticket(bytes(2000))

    answer = await held.send(ticket, bytes(2000))

    assert ticket["content_path"] is None
    assert refusal(answer) == (413, "body-too-large")


async def test_further_lease_goes_on_with_the_ticket_of_the_one_before(here):
    await here.control.create(job_type="verify.http")
    profile = {"runner_kind": "verification", "capabilities": ["verify.*"]}
    first = await (await here.runner(**profile)).start()
    ticket = await first.ticket(BODY)
    await first.send(ticket, BODY)
    assert (await first.post("release", {"reason": "going"})).status_code == 200
    second = await (await here.runner(**profile)).start()

    refused = await first.output("report", ticket["artifact_id"])
    recorded = await second.output("report", ticket["artifact_id"])

    assert second.attempt_id == first.attempt_id
    assert refusal(refused) == (409, "lease-released")
    assert recorded.status_code == 201, recorded.text


async def test_same_output_made_again_under_a_further_lease_is_the_same(here):
    await here.control.create(job_type="verify.http")
    profile = {"runner_kind": "verification", "capabilities": ["verify.*"]}
    first = await (await here.runner(**profile)).start()
    recorded = await first.output("report", await first.upload(BODY))
    await first.post("release", {"reason": "going"})
    second = await (await here.runner(**profile)).start()

    again = await second.output("report", await second.upload(BODY))

    assert (again.status_code, again.json()) == (200, recorded.json())


async def test_of_two_outputs_of_one_name_at_once_one_is_written(here, control, sql):
    for _ in range(10):
        held = await here.held()
        ids = [await held.upload(os.urandom(10)) for _ in range(3)]

        answers = await asyncio.gather(*(held.output("plan", artifact) for artifact in ids))

        assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
        assert len(await here.control.list_of(held.attempt_id, "outputs")) == 1
        made = await sql.fetchval(
            "SELECT count(*) FROM artifact_refs WHERE attempt_id = $1", UUID(held.attempt_id)
        )
        assert made == 1
        numbers = [e["event_number"] for e in await here.control.events(held.attempt_id)]
        assert numbers == list(range(1, 6))


async def test_one_ticket_named_by_many_at_once_is_one_artifact(here, sql):
    held = await here.held()
    artifact_id = await held.upload(BODY)

    answers = await asyncio.gather(
        *(held.output(f"copy-{number}", artifact_id) for number in range(4)),
        *(held.evidence(artifact_id=artifact_id) for _ in range(4)),
    )

    assert [answer.status_code for answer in answers] == [201] * 8
    assert await rows(sql, "artifact_refs") == 1
    types = await here.control.event_types(held.attempt_id)
    assert types.count("artifact_created") == 1
    assert types.count("output_recorded") == types.count("evidence_recorded") == 4


async def test_ticket_that_a_sweep_closes_first_points_at_nothing(here, sql, database_url):
    held = await here.held()
    artifact_id = await held.upload(BODY)
    sweeping = await asyncpg.connect(database_url)
    transaction = sweeping.transaction()
    await transaction.start()
    await sweeping.execute(
        "UPDATE artifact_uploads SET closed_at = now(), closed_reason = 'expired'"
    )

    answer = asyncio.create_task(held.output("plan", artifact_id))
    while not await sql.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    ):
        await asyncio.sleep(0.002)
    await transaction.commit()
    await sweeping.close()

    assert refusal(await answer) == (410, "artifact-gone")
    assert await rows(sql, "artifact_refs") == 0
    assert await rows(sql, "runner_output_refs") == 0


async def test_evidence_may_show_a_piece_of_the_log(here):
    held = await here.held()
    assert (await held.log(b"it failed here\n", 0, final=True)).status_code == 200
    [chunk] = await here.control.list_of(held.attempt_id, "logs")

    answer = await held.evidence(
        evidence_type="log_excerpt", artifact_id=chunk["artifact_ref_id"], status="failed"
    )

    assert answer.status_code == 201, answer.text


async def test_output_that_fails_costs_nothing_else(here, sql):
    held = await here.held()
    await held.log(b"line\n", 0, final=True)
    good = await held.upload(BODY)
    missing = await held.ticket(b"never sent")

    assert (await held.output("good", good)).status_code == 201
    assert (await held.output("bad", missing["artifact_id"])).status_code == 422
    completed = await held.complete("failed", failure_message="half of it")

    assert completed.status_code == 200
    listed = await here.control.call("GET", f"/v1/attempts/{held.attempt_id}/outputs")
    assert [one["name"] for one in listed.json()["items"]] == ["good"]
    assert listed.json()["attempt_status"] == "failed"
    assert (await here.control.read_log(held.attempt_id)).content == b"line\n"


async def test_store_that_is_away_refuses_and_records_once_later(open_instance, faulty, sql):
    instance = await open_instance(OBJECTS__ENDPOINT_URL=faulty.url)
    held = await instance.held()
    artifact_id = await held.upload(BODY)
    ticket = await held.ticket(b"second")

    async def lost_after(request, body):
        """The write is done, and its answer is lost on the way."""
        await faulty.forward(request, body)
        return _down()

    faulty.fault = _answering_down
    refused = await held.send(ticket, b"second")
    recorded = await held.output("plan", artifact_id)  # verified before: needs no store
    faulty.fault = lost_after
    lost = await held.send(ticket, b"second")
    faulty.fault = None
    sent = await held.send(ticket, b"second")

    assert refusal(refused) == (503, "object-store-unavailable")
    assert recorded.status_code == 201
    assert lost.status_code == 503
    assert sent.status_code == 200
    assert await rows(sql, "artifact_refs") == 1


def _down():
    return error("ServiceUnavailable", 503)


async def _answering_down(request, body):
    return _down()


async def test_pages_of_outputs_and_evidence(here):
    held = await here.held()
    artifact_id = await held.upload(BODY)
    for number in range(5):
        await held.output(f"output-{number}", artifact_id)
        await held.evidence(subject_ref=f"subject-{number}")

    for what, field in (("outputs", "name"), ("evidence", "subject_ref")):
        found, token = [], None
        while True:
            query = {"page_size": 2} | ({"page_token": token} if token else {})
            page = await here.control.call(
                "GET", f"/v1/attempts/{held.attempt_id}/{what}", params=query
            )
            found += [item[field] for item in page.json()["items"]]
            token = page.json()["next_page_token"]
            if token is None:
                break
        assert [name.rpartition("-")[2] for name in found] == ["0", "1", "2", "3", "4"]
    unknown = await here.control.call("GET", f"/v1/attempts/{uuid4()}/outputs")
    assert unknown.status_code == 404
