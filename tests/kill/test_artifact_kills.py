"""The service dies while artifacts are uploaded and recorded: every row has its object, once."""

import hashlib
from uuid import uuid4

import asyncpg
import httpx
import pytest

from app.commands import audit
from app.commands.audit_objects import audit_store
from app.settings import LeaseSettings, load
from tests.conftest import environment
from tests.driver import new_attempt
from tests.kill.test_kills import World
from tests.kill.world import Caller

BODY = b"what the work made\n"


@pytest.fixture
async def world(fresh_database, objects, issuer, tmp_path):
    made = World(fresh_database, objects, issuer, tmp_path)
    yield made
    await made.close()


async def begin(caller: Caller) -> tuple[str, dict[str, str]]:
    """A started lease: its path and its token."""
    runner, session = f"bot-{uuid4().hex[:8]}", str(uuid4())
    profile = {
        "session_id": session,
        "runner_kind": "ssh",
        "version": "1.0.0",
        "capabilities": ["ssh.command.run"],
    }
    await caller.call("PUT", f"/v1/runners/{runner}", json=profile)
    claim = {"session_id": session, "request_id": str(uuid4()), "wait_seconds": 5}
    answer = await caller.call("POST", f"/v1/runners/{runner}/leases:claim", json=claim)
    [claimed] = answer.json()["leases"]
    path = f"/v1/leases/{claimed['lease']['id']}"
    headers = {"Lease-Token": claimed["lease_token"]}
    assert (await caller.call("POST", f"{path}:start", headers=headers)).status_code == 200
    return path, headers


@pytest.mark.parametrize(
    "moment",
    [
        "artifact.ticket",
        "artifact.after_put",
        "artifact.after_verify",
        "output.after_head",
        "output.after_commit",
        "evidence.after_commit",
    ],
)
async def test_process_that_dies_while_something_is_recorded_leaves_no_half(world, moment):
    deadly = {moment: {"action": "kill", "times": 1}}
    prefix = {"OBJECTS__PREFIX": f"kill-{uuid4().hex}/"}
    first = await world.serve(
        TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=deadly, **prefix
    )
    await world.serve(**prefix)
    control, caller = world.caller("control-plane", first=1), world.caller("runner", first=1)
    created = await control.call("POST", "/v1/attempts", json=new_attempt())
    path, headers = await begin(caller)
    caller._next = 0  # from here on the one that dies

    through_service = moment == "artifact.after_put"
    ticket = await caller.call(
        "POST",
        f"{path}/artifacts",
        headers=headers,
        json={
            "request_id": str(uuid4()),
            "byte_size": len(BODY),
            "digest": f"sha256:{hashlib.sha256(BODY).hexdigest()}",
        },
    )
    told = ticket.json()
    if through_service:
        sent = await caller.call("PUT", told["content_path"], headers=headers, content=BODY)
    else:
        async with httpx.AsyncClient(timeout=15) as store:
            sent = await store.put(
                told["upload"]["url"], content=BODY, headers=told["upload"]["headers"]
            )
    assert sent.status_code == 200, sent.text
    output = {"name": "made", "output_type": "text", "artifact_id": told["artifact_id"]}
    recorded = await caller.call("POST", f"{path}/outputs", headers=headers, json=output)
    evidence = {
        "request_id": str(uuid4()),
        "evidence_type": "assertion",
        "status": "passed",
        "subject_ref": "what was made",
        "artifact_id": told["artifact_id"],
    }
    shown = await caller.call("POST", f"{path}/evidence", headers=headers, json=evidence)
    await caller.call("POST", f"{path}:complete", headers=headers, json={"outcome": "succeeded"})

    assert first.has_ended, "the moment was never reached"
    assert {recorded.status_code, shown.status_code} <= {200, 201}, (recorded.text, shown.text)
    content = await world.caller("control-plane", first=1).call(
        "GET", f"/v1/artifacts/{told['artifact_id']}/content"
    )
    assert content.content == BODY
    events = await control.call("GET", f"/v1/attempts/{created.json()['id']}/events")
    assert [event["event_type"] for event in events.json()["items"]] == [
        *("created", "leased", "started"),
        *("artifact_created", "output_recorded", "evidence_recorded", "succeeded"),
    ]
    await assert_nothing_is_broken(world, prefix)


async def assert_nothing_is_broken(world: World, more: dict[str, str]) -> None:
    settings = load(environment(world.database, world._objects, world._issuer, **more))
    connection = await asyncpg.connect(world.database)
    try:
        findings = await audit.run_checks(connection, audit.Terms.of(LeaseSettings()))
    finally:
        await connection.close()
    findings.append(await audit_store(settings, limit=20))
    broken = {one.check.name: one.violations for one in findings if one.violations}
    assert broken == {}
