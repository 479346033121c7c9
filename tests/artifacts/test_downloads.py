"""Bodies are read back as they were, or not at all."""

import base64
import hashlib
import os
from uuid import uuid4

import httpx
import pytest

MEBIBYTE = 1024 * 1024


async def recorded(instance, body: bytes, **fields):
    """A lease, and the id of an artifact of it that an output points at."""
    held = await instance.held()
    artifact_id = await held.upload(body, **fields)
    answer = await held.output("body", artifact_id, output_type="binary")
    assert answer.status_code == 201, answer.text
    return held, artifact_id


async def overwrite(instance, sql, body: bytes) -> None:
    """Change the one object behind the service's back."""
    await instance.services.objects.client.put_object(
        Bucket=instance.services.settings.objects.bucket,
        Key=await sql.fetchval("SELECT key FROM artifact_refs"),
        Body=body,
    )


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3 * MEBIBYTE])
async def test_body_comes_back_with_its_digest(here, size):
    body = os.urandom(size)
    _, artifact_id = await recorded(here, body, content_type="text/plain; charset=utf-8")

    content = await here.content(artifact_id)

    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    assert content.status_code == 200
    assert content.content == body
    assert content.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert content.headers["content-length"] == str(size)
    assert content.headers["content-type"] == "text/plain; charset=utf-8"


async def test_body_cannot_act_in_a_browser(here):
    name = 'x"; filename=evil.exe\r\nX-Evil: 1 ü.html'
    _, artifact_id = await recorded(here, b"<script>", content_type="text/html", name=name)

    headers = (await here.content(artifact_id)).headers

    disposition = headers["content-disposition"]
    assert disposition.startswith('attachment; filename="x__ filename_evil.exe__X-Evil_ 1 _.html"')
    assert "x-evil" not in headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("asked", "status", "found"),
    [
        ("bytes=0-0", 206, b"0"),
        ("bytes=3-", 206, b"3456789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=5-500", 206, b"56789"),
        ("bytes=10-", 416, None),
        ("bytes=4-2", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
async def test_ranges(here, asked, status, found):
    _, artifact_id = await recorded(here, b"0123456789")

    content = await here.content(artifact_id, headers={"Range": asked})

    assert content.status_code == status
    assert found is None or content.content == found


async def test_changed_byte_is_never_served_as_good(here, sql):
    _, artifact_id = await recorded(here, b"0123456789")
    await overwrite(here, sql, b"0123456788")

    content = await here.content(artifact_id)

    assert (content.status_code, content.json()["reason"]) == (502, "digest-mismatch")


async def test_changed_byte_of_a_large_body_breaks_off_before_its_end(here, sql):
    body = bytes(3 * MEBIBYTE)
    _, artifact_id = await recorded(here, body)
    await overwrite(here, sql, b"\x01" + body[1:])
    received = 0

    with pytest.raises(RuntimeError, match="already started"):  # the server drops the connection
        async with here.http.stream(
            "GET", f"/v1/artifacts/{artifact_id}/content", headers=here.control.headers
        ) as answer:
            async for piece in answer.aiter_bytes():
                received += len(piece)

    assert received < len(body)


async def test_body_of_another_length_is_not_served(here, sql):
    _, artifact_id = await recorded(here, b"0123456789")
    await overwrite(here, sql, b"0123456789!")

    for headers in ({}, {"Range": "bytes=0-3"}):
        content = await here.content(artifact_id, headers=headers)
        assert (content.status_code, content.json()["reason"]) == (502, "digest-mismatch")


async def test_body_that_is_gone_is_gone(here, sql):
    _, artifact_id = await recorded(here, b"0123456789")
    key = await sql.fetchval("SELECT key FROM artifact_refs")

    await sql.execute("UPDATE artifact_refs SET state = 'removing'")
    removing = await here.content(artifact_id)
    await sql.execute("UPDATE artifact_refs SET state = 'ready'")
    await here.services.objects.delete([key])
    lost = await here.content(artifact_id)
    unknown = await here.content(str(uuid4()))

    assert (removing.status_code, removing.json()["reason"]) == (410, "artifact-gone")
    assert (lost.status_code, lost.json()["reason"]) == (410, "artifact-gone")
    assert "lost" in lost.json()["detail"]
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "artifact-not-found")


async def test_store_itself_can_be_read_from(open_instance):
    instance = await open_instance(OBJECTS__DOWNLOADS="redirect")
    _, artifact_id = await recorded(instance, b"0123456789", name="digits", content_type="text/css")

    answer = await instance.content(artifact_id)
    async with httpx.AsyncClient() as network:
        body = await network.get(answer.headers["location"])
        part = await network.get(answer.headers["location"], headers={"Range": "bytes=2-3"})

    assert answer.status_code == 307
    assert answer.headers["repr-digest"].startswith("sha-256=:")
    assert body.content == b"0123456789"
    assert body.headers["content-type"] == "text/css"
    assert body.headers["content-disposition"].startswith('attachment; filename="digits"')
    assert (part.status_code, part.content) == (206, b"23")


async def test_runner_reads_what_its_operation_has_and_nothing_else(here):
    operation = str(uuid4())
    planner = await here.held(operation_id=operation)
    plan = await planner.upload(b"the plan")
    await planner.output("plan", plan)
    applier = await here.held(operation_id=operation)
    stranger = await here.held()

    read = await applier.call("GET", f"/artifacts/{plan}/content")
    foreign = await stranger.call("GET", f"/artifacts/{plan}/content")
    await applier.complete()
    ended = await applier.call("GET", f"/artifacts/{plan}/content")
    by_role = await applier.runner.call("GET", f"/v1/artifacts/{plan}/content")

    assert (read.status_code, read.content) == (200, b"the plan")
    assert (foreign.status_code, foreign.json()["reason"]) == (404, "artifact-not-found")
    assert (ended.status_code, ended.json()["reason"]) == (409, "attempt-ended")
    assert by_role.status_code == 403
