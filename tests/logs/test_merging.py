"""Merging small objects: readers see no gap and no double, and proofs stay what they are."""

import asyncio
import random
from uuid import UUID, uuid4

import pytest

from app.handlers import log_views
from app.loops import merge_logs
from app.loops.merge_logs import MergeLogs
from app.store.log_reads import View
from tests.lifecycle.world import World


@pytest.fixture
async def world(clock, services, control, make_runner, sql) -> World:
    return World(services, control, control, make_runner, sql)


async def chatty(world, count=40):
    """An ended attempt with many chunks in two streams."""
    held, dice = await world.running(), random.Random(9)
    at = {"stdout": 0, "stderr": 0}
    for number in range(count):
        stream = dice.choice(["stdout", "stderr"])
        data = b"%d of %s %s\n" % (number, stream.encode(), b"." * dice.randrange(50))
        await held.log(data, at[stream], stream)
        at[stream] += len(data)
    await held.complete()
    return held


async def pictures(logs, held):
    """Everything that readers can see."""
    texts = [await logs.text(held, stream) for stream in ("stdout", "stderr", "all")]
    return [*texts, await logs.search(held, "of"), await logs.text(held, "all", tail=7)]


async def objects_of(sql, state="ready"):
    return await sql.fetchval("SELECT count(*) FROM artifact_refs WHERE state = $1", state)


async def test_many_objects_become_one_a_stream_and_readers_see_no_difference(
    world, clock, logs, sql
):
    held = await chatty(world)
    before = await pictures(logs, held)
    refs = await world.control.list_of(held.attempt_id, "logs")
    await clock.forward(240)

    assert await logs.merge() == 2

    assert await pictures(logs, held) == before
    assert (await objects_of(sql), await objects_of(sql, "removing")) == (2, 40)
    after = await world.control.list_of(held.attempt_id, "logs")
    assert [_but_place(ref) for ref in after] == [_but_place(ref) for ref in refs]
    await logs.assert_rows_fit()
    assert await logs.merge() == 0


def _but_place(ref):
    return {name: value for name, value in ref.items() if name != "artifact_ref_id"}


async def test_nothing_is_merged_while_it_may_grow(world, clock, logs, sql):
    held = await world.running()
    await held.log(b"one\n", 0)
    await held.log(b"two\n", 4)

    await clock.forward(20)
    while_running = await logs.merge()
    await held.complete()
    await clock.forward(119)
    in_grace = await logs.merge()
    await clock.forward(1)
    after = await logs.merge()

    assert (while_running, in_grace, after) == (0, 0, 1)


@pytest.mark.parametrize("by", ["evidence", "output", "hold"])
async def test_object_that_somebody_names_stays(by, world, clock, logs, sql):
    held = await world.running()
    for number in range(5):
        await held.log(b"line %d\n" % number, 7 * number)
    await held.complete()
    refs = await world.control.list_of(held.attempt_id, "logs")
    named = UUID(refs[2]["artifact_ref_id"])
    await _name(sql, by, held, named)
    await clock.forward(240)

    await logs.merge()

    assert await sql.fetchval("SELECT state FROM artifact_refs WHERE id = $1", named) == "ready"
    assert await objects_of(sql) == 3
    assert await logs.text(held) == b"".join(b"line %d\n" % number for number in range(5))


async def _name(sql, by, held, artifact_id):
    attempt_id = UUID(held.attempt_id)
    if by == "evidence":
        await sql.execute(
            "INSERT INTO evidence_refs (id, attempt_id, evidence_type, status, subject_ref,"
            " artifact_ref_id, recorded_at, request_id)"
            " VALUES ($1, $2, 'log_excerpt', 'passed', 's', $3, now(), $4)",
            *(uuid4(), attempt_id, artifact_id, uuid4()),
        )
    elif by == "output":
        await sql.execute(
            "INSERT INTO runner_output_refs (id, attempt_id, name, output_type, artifact_ref_id,"
            " digest, created_at) SELECT $1, $2, 'log', 'text', id, digest, now()"
            " FROM artifact_refs WHERE id = $3",
            *(uuid4(), attempt_id, artifact_id),
        )
    else:
        await sql.execute(
            "UPDATE artifact_refs SET held_at = now(), held_by = 'x', held_reason = 'y'"
            " WHERE id = $1",
            artifact_id,
        )


async def test_evidence_that_comes_between_the_upload_and_the_swap_wins(
    world, clock, logs, sql, services, monkeypatch
):
    held = await chatty(world, 6)
    refs = await world.control.list_of(held.attempt_id, "logs")
    first = {ref["stream"]: UUID(ref["artifact_ref_id"]) for ref in reversed(refs)}
    await clock.forward(240)
    before = await pictures(logs, held)
    put = services.objects.put

    async def put_and_name(key, *args):
        await put(key, *args)
        await _name(sql, "evidence", held, first[key.split("/")[-2]])

    monkeypatch.setattr(services.objects, "put", put_and_name)
    await logs.merge()

    assert (await objects_of(sql), await objects_of(sql, "removing")) == (6, 0)
    assert await pictures(logs, held) == before


async def test_large_chunks_and_full_groups_stay_apart(world, clock, logs, sql, monkeypatch):
    monkeypatch.setattr(merge_logs, "SMALL_BYTES", 30)
    monkeypatch.setattr(merge_logs, "TARGET_BYTES", 50)
    held = await world.running()
    at = 0
    for size in (20, 20, 20, 40, 20, 10, 10, 20):
        await held.log(b"-" * (size - 1) + b"\n", at)
        at += size
    await held.complete()
    before = await logs.text(held)
    await clock.forward(240)

    await logs.merge()

    sizes = await sql.fetch(
        "SELECT byte_size FROM artifact_refs WHERE state = 'ready' ORDER BY byte_size"
    )
    assert [row["byte_size"] for row in sizes] == [20, 20, 40, 40, 40]
    assert await logs.text(held) == before


async def test_object_that_is_not_what_was_recorded_is_left_alone(world, clock, logs, sql):
    held = await chatty(world, 4)
    before = await logs.text(held)
    await sql.execute("UPDATE artifact_refs SET digest = 'sha256:' || repeat('0', 64)")
    await clock.forward(240)

    await logs.merge()

    assert await objects_of(sql, "removing") == 0
    assert await logs.text(held) == before


async def test_two_leaders_merge_once(world, clock, logs, services, sql):
    held = await chatty(world)
    before = await pictures(logs, held)
    await clock.forward(240)

    await asyncio.gather(*(MergeLogs().run_once(services) for _ in range(2)))

    assert await pictures(logs, held) == before
    assert await objects_of(sql) == 2
    await logs.assert_rows_fit()


async def test_reader_that_is_overtaken_by_a_merge_reads_on(world, clock, logs, services, sql):
    """Its old objects are gone while it reads: it looks the rest up anew."""
    held = await chatty(world)
    expected = await logs.text(held, "all")
    await clock.forward(240)
    view = View(UUID(held.attempt_id), None)
    layout = await log_views.lay_out(services, view)
    pieces = log_views.read(services, layout, 0, layout.total - 1)
    read = [await anext(pieces) for _ in range(10)]

    await logs.merge()
    gone = await sql.fetch("SELECT key FROM artifact_refs WHERE state = 'removing'")
    await services.objects.delete([row["key"] for row in gone])
    read += [piece async for piece in pieces]

    assert b"".join(read) == expected
