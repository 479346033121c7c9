"""Legal holds: set and lifted by operators, told on the timeline, stronger than any expiry."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from app.store import expiries
from tests.lifecycle.world import refusal


@pytest.fixture
async def world(make_world):
    made = await make_world()
    await made.mark_bucket()
    return made


def told(event: dict) -> tuple:
    payload = event["payload"]
    return event["event_type"], payload["by"], payload["reason"], payload["artifacts"]


async def test_held_artifact_stays_until_the_hold_is_lifted_and_then_its_class_counts(world):
    attempt_id = await world.ended()
    held = await world.artifact(attempt_id, days_old=100)
    other = await world.artifact(attempt_id, days_old=100)

    answer = await world.hold(f"artifacts/{held}")
    await world.remove_expired()
    kept = await world.artifacts()
    lifted = await world.hold(f"artifacts/{held}", held=False, reason="case closed")
    row = await world.sql.fetchrow(
        "SELECT held_at, held_by, held_reason, retention_class FROM artifact_refs"
    )
    await world.remove_expired()

    assert answer.status_code == lifted.status_code == 200
    assert (answer.json()["changed"], answer.json()["held"]) == (1, 1)
    assert kept == {held: "ready"}
    assert other not in kept
    assert tuple(row) == (None, None, None, "normal")
    assert await world.artifacts() == {}
    events = (await world.control.events(attempt_id))[-2:]
    account = events[0]["payload"]["by"]
    assert [told(event) for event in events] == [
        ("legal_hold_set", account, "case 17", 1),
        ("legal_hold_lifted", account, "case closed", 1),
    ]
    assert events[0]["payload"]["artifact_id"] == str(held)


async def test_all_that_an_attempt_has_is_held_with_one_event(world):
    attempt_id = await world.ended(b"one\n", b"two\n")
    for _ in range(2):
        await world.artifact(attempt_id, days_old=100)

    answer = await world.hold(f"attempts/{attempt_id}")
    await world.sql.execute("UPDATE artifact_refs SET expires_at = now() - interval '1 d'")
    await world.remove_expired()

    body = answer.json()
    assert (body["changed"], body["held"], body["removing"]) == (body["artifacts"],) * 2 + (0,)
    assert len(await world.artifacts()) == body["artifacts"] >= 3
    assert (await world.control.event_types(attempt_id))[-1] == "legal_hold_set"
    lifted = await world.hold(f"attempts/{attempt_id}", held=False)
    assert lifted.json()["changed"] == body["artifacts"]
    await world.remove_expired()
    assert (await world.artifacts(), await world.keys()) == ({}, set())


async def test_one_held_chunk_keeps_the_whole_log(world):
    attempt_id = await world.ended(b"a" * 65_536 + b"\n", b"two\n")
    await world.remove_expired()
    one = await world.sql.fetchval("SELECT artifact_ref_id FROM raw_log_refs LIMIT 1")
    await world.hold(f"artifacts/{one}")
    before = await world.artifacts()

    await world.sql.execute("UPDATE artifact_refs SET expires_at = now() - interval '1 d'")
    await world.remove_expired()

    assert await world.artifacts() == before
    assert (await world.control.read_log(attempt_id)).status_code == 200


async def test_repeats_change_nothing_and_write_no_event(world):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id)

    answers = [await world.hold(f"artifacts/{artifact_id}") for _ in range(2)]
    answers += [await world.hold(f"artifacts/{artifact_id}", held=False) for _ in range(2)]

    assert [one.json()["changed"] for one in answers] == [1, 0, 1, 0]
    assert [one.json()["held"] for one in answers] == [1, 1, 0, 0]
    types = await world.control.event_types(attempt_id)
    assert [one for one in types if one.startswith("legal")] == [
        "legal_hold_set",
        "legal_hold_lifted",
    ]


async def test_what_is_being_removed_cannot_be_held_any_more(world):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, state="removing")

    answer = await world.hold(f"artifacts/{artifact_id}")
    whole = await world.hold(f"attempts/{attempt_id}")

    assert refusal(answer)[:2] == (410, "artifact-gone")
    assert (whole.json()["changed"], whole.json()["removing"]) == (0, 1)
    assert "legal_hold_set" not in await world.control.event_types(attempt_id)


async def test_unknown_things_are_not_found(world):
    artifact, attempt = (
        await world.hold(f"artifacts/{uuid4()}"),
        await world.hold(f"attempts/{uuid4()}"),
    )

    assert refusal(artifact)[:2] == (404, "artifact-not-found")
    assert refusal(attempt)[:2] == (404, "attempt-not-found")


@pytest.mark.parametrize(
    "body", [{}, {"reason": ""}, {"reason": "x"}, {"reason": 3}, {"why": "so"}]
)
async def test_a_reason_is_required(world, body):
    path = f"/v1/artifacts/{uuid4()}:hold"

    answer = await world.operator.call("POST", path, json=body)

    assert refusal(answer)[:2] == (422, "request-invalid")


async def test_reason_is_masked_before_it_is_kept(world):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id)

    await world.hold(f"artifacts/{artifact_id}", reason="password=hunter2hunter2 was leaked")

    stored = await world.sql.fetchval("SELECT held_reason FROM artifact_refs")
    [event] = (await world.control.events(attempt_id))[-1:]
    assert "hunter2" not in stored
    assert "hunter2" not in str(event)


async def test_only_operators_hold(world):
    path = f"/v1/artifacts/{uuid4()}:hold"

    answer = await world.control.call("POST", path, json={"reason": "case 17"})

    assert refusal(answer)[:2] == (403, "forbidden")


# --- races ----------------------------------------------------------------------------------------


async def test_hold_that_came_first_is_seen_by_a_removal_that_waited(world, fresh_database):
    """Set, but not committed, when the removal looks: it skips the row, whatever comes of it."""
    attempt_id = await world.ended()
    past = world.clock.now - timedelta(days=1)
    artifact_id = await world.artifact(attempt_id, expires_at=past)
    other = await asyncpg.connect(fresh_database)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE artifact_refs SET held_at = now() WHERE id = $1", artifact_id)

    early = await world.remove_expired()
    await transaction.commit()
    await other.close()
    late = await world.remove_expired()

    assert (early, late) == (0, 0)
    assert await world.artifacts() == {artifact_id: "ready"}


async def test_hold_that_came_after_the_mark_is_refused_and_not_half_done(world, fresh_database):
    attempt_id = await world.ended()
    past = world.clock.now - timedelta(days=1)
    artifact_id = await world.artifact(attempt_id, expires_at=past)
    other = await asyncpg.connect(fresh_database)
    transaction = other.transaction()
    await transaction.start()
    await expiries.mark(other, await expiries.lock_due(other, 10))

    holding = asyncio.create_task(world.hold(f"artifacts/{artifact_id}"))
    while not await world.sql.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND datname = current_database()"
    ):
        await asyncio.sleep(0.01)
    await transaction.commit()
    await other.close()

    assert refusal(await holding)[:2] == (410, "artifact-gone")
    assert await world.remove_expired() == 1


async def test_hold_that_a_sibling_gets_between_lock_and_judgement_keeps_the_object(world):
    first, second = await world.ended(), await world.ended()
    past = world.clock.now - timedelta(days=1)
    await world.artifact(first, key="shared", expires_at=past)
    sibling = await world.artifact(second, key="shared", expires_at=past)
    async with world.sql.transaction():
        locked = await expiries.lock_due(world.sql, 10)
    await world.hold(f"artifacts/{sibling}")

    async with world.sql.transaction():
        marked, _ = await expiries.mark(world.sql, locked)

    assert marked == 0


async def test_a_held_row_is_not_removed_even_in_state_removing(world):
    """It cannot come to that; if it did, the hold would win."""
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, state="removing", held_at=world.clock.now)

    await world.remove_expired()
    async with world.sql.transaction():
        assert await expiries.remove(world.sql, [artifact_id]) == 0

    assert await world.artifacts() == {artifact_id: "removing"}
    assert len(await world.keys()) == 1
