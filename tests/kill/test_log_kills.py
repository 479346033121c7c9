"""The service dies while it stores or merges a log: no row without its object, no byte lost."""

import asyncio
import base64
from itertools import pairwise
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from app.domain.masking import Masker
from app.objects.store import ObjectStore
from app.settings import load
from tests.conftest import environment
from tests.driver import new_attempt
from tests.kill.test_kills import World
from tests.kill.world import Caller

SECRET = "correct-horse-9"
CREDENTIAL = "ghp_" + "q7Rt2Xw9" * 5
LINES = [
    b"step %d: token=%s and %s\n" % (number, CREDENTIAL.encode(), SECRET.encode())
    for number in range(12)
]
MOMENTS = ("log.after_mask", "log.after_put", "log.after_rows", "log.after_commit")


@pytest.fixture
async def world(fresh_database, objects, issuer, tmp_path):
    """Two services over one fresh database; the first one is to die."""
    made = World(fresh_database, objects, issuer, tmp_path)
    made.prefix = f"killed-{uuid4().hex}/"
    made.store = await open_store(fresh_database, objects, issuer, made.prefix)
    yield made
    await made.store.stop()
    await made.close()


async def open_store(database, objects, issuer, prefix) -> ObjectStore:
    variables = environment(database, objects, issuer, OBJECTS__PREFIX=prefix)
    store = ObjectStore(load(variables).objects)
    await store.start()
    return store


def deadly(moment: str, times: int = 1) -> dict[str, Any]:
    points = {moment: {"action": "kill", "times": times}}
    return {"TESTING__ALLOW_FAILPOINTS": "true", "TESTING__FAILPOINTS": points}


async def begin(world) -> tuple[Caller, str, dict[str, str]]:
    """A started lease: its runner, path and proof."""
    control, runner = world.caller("control-plane", first=1), world.caller("runner", first=1)
    answer = await control.call("POST", "/v1/attempts", json=new_attempt())
    assert answer.status_code == 201
    session_id, runner_id = str(uuid4()), f"writer-{uuid4().hex[:6]}"
    profile = {
        "session_id": session_id,
        "runner_kind": "ssh",
        "version": "1.0.0",
        "capabilities": ["ssh.command.run"],
    }
    await runner.call("PUT", f"/v1/runners/{runner_id}", json=profile)
    claim = {"session_id": session_id, "request_id": str(uuid4()), "wait_seconds": 5}
    answer = await runner.call("POST", f"/v1/runners/{runner_id}/leases:claim", json=claim)
    [claimed] = answer.json()["leases"]
    path, proof = f"/v1/leases/{claimed['lease']['id']}", {"Lease-Token": claimed["lease_token"]}
    assert (await runner.call("POST", f"{path}:start", headers=proof)).status_code == 200
    return runner, path, proof


async def append(caller: Caller, path: str, proof: dict[str, str]) -> int:
    """Send all lines, obeying the answers; how many bytes were acknowledged."""
    text, at = b"".join(LINES), 0
    while at < len(text):
        end = text.index(b"\n", at) + 1
        body = {
            "offset": at,
            "mask": [SECRET],
            "data_base64": base64.b64encode(text[at:end]).decode(),
            "final": end == len(text),
        }
        answer = await caller.call("POST", f"{path}/logs/stdout", headers=proof, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["next_offset"] >= end
        at = answer.json()["next_offset"]
    return at


async def stored(world) -> tuple[bytes, list[asyncpg.Record]]:
    """The log as the rows and the bucket hold it; every row must have its object."""
    sql = await asyncpg.connect(world.database)
    try:
        rows = await sql.fetch(
            "SELECT r.*, f.key FROM raw_log_refs r JOIN artifact_refs f"
            " ON f.id = r.artifact_ref_id ORDER BY r.stream_offset"
        )
    finally:
        await sql.close()
    text = b""
    for row in rows:
        body = b"".join([piece async for piece in world.store.read(row["key"])])
        text += body[row["object_offset"] : row["object_offset"] + row["byte_size"]]
    for before, after in pairwise(rows):
        assert before["stream_offset"] + before["raw_size"] == after["stream_offset"]
    return text, rows


async def bucket(world) -> list[bytes]:
    """Every object under this test's prefix, with or without a row."""
    s3 = world.store.client
    listed = await s3.list_objects_v2(Bucket=world.store.settings.bucket, Prefix=world.prefix)
    keys = [entry["Key"] for entry in listed.get("Contents", [])]
    return [b"".join([piece async for piece in world.store.read(key)]) for key in keys]


def expected() -> bytes:
    return Masker().mask_bytes(b"".join(LINES), [SECRET.encode()]).data


@pytest.mark.parametrize("moment", MOMENTS)
async def test_no_acknowledged_byte_is_lost_and_nothing_unmasked_is_left(world, moment):
    service = await world.serve(OBJECTS__PREFIX=world.prefix, **deadly(moment))
    await world.serve(OBJECTS__PREFIX=world.prefix)
    _, path, proof = await begin(world)

    acknowledged = await append(world.caller("runner", first=0), path, proof)

    assert service.has_ended, "the moment was never reached"
    assert acknowledged == sum(map(len, LINES))
    text, rows = await stored(world)
    assert text == expected()
    assert len(rows) == len(LINES)
    for body in await bucket(world):
        assert SECRET.encode() not in body
        assert CREDENTIAL.encode() not in body
    assert SECRET not in service.log_text()
    assert CREDENTIAL not in service.log_text()


async def test_merge_that_dies_after_its_upload_is_done_again(world):
    """The new object is stored and no row knows of it; the old ones are still there."""
    await world.serve(OBJECTS__PREFIX=world.prefix, SERVER__PORT=0, LEASES__LOG_GRACE_SECONDS=0)
    await world.serve(OBJECTS__PREFIX=world.prefix, LEASES__LOG_GRACE_SECONDS=0)
    runner, path, proof = await begin(world)
    await append(runner, path, proof)
    body = {"outcome": "succeeded"}
    answer = await runner.call("POST", f"{path}:complete", headers=proof, json=body)
    assert answer.status_code == 200
    for service in world.services:
        await service.stop()
    before, rows = await stored(world)

    settings = {"OBJECTS__PREFIX": world.prefix, "LEASES__LOG_GRACE_SECONDS": 0}
    await unmerge(world)
    dying = await world.serve(**settings, **deadly("merge.after_put"))
    await until(lambda: asyncio.sleep(0, dying.has_ended))
    between, rows_between = await stored(world)
    await world.serve(**settings)
    await until(lambda: merged(world))

    after, rows_after = await stored(world)
    assert before == between == after == expected()
    assert [row["key"] for row in rows] == [row["key"] for row in rows_between]
    assert len({row["key"] for row in rows_after}) == 1
    assert len(rows_after) == len(LINES)


async def unmerge(world) -> None:
    """Nobody may have merged it before."""
    sql = await asyncpg.connect(world.database)
    kept = await sql.fetchval("SELECT count(DISTINCT artifact_ref_id) FROM raw_log_refs")
    await sql.close()
    assert kept == len(LINES)


async def merged(world) -> bool:
    sql = await asyncpg.connect(world.database)
    done = await sql.fetchval("SELECT bool_and(merged_at IS NOT NULL) FROM log_streams")
    await sql.close()
    return done


async def until(condition) -> None:
    async with asyncio.timeout(80):
        while not await condition():
            await asyncio.sleep(0.2)
