"""Objects that nothing points at: found, and removed only behind every brake."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from app.handlers.old_things import find_orphans
from app.loops import remove_orphans
from app.loops.abort_uploads import AbortUploads
from app.loops.forget_old import ForgetOld
from app.loops.mark_bucket import MarkBucket
from app.loops.remove_orphans import RemoveOrphans
from app.store import forgetting
from app.wiring import open_services

DAY = 86_400


@pytest.fixture
async def world(make_world):
    """Everything stored now is two days old by the time of `later`."""
    made = await make_world()
    await made.mark_bucket()
    await made.clock.stop()
    return made


async def put(world, *keys: str) -> None:
    for key in keys:
        await world.services.objects.put_once(key, b"{}")


async def remove(world, loop: RemoveOrphans | None = None) -> int:
    loop, removed = loop or RemoveOrphans(), 0
    while True:
        result = await world.run(loop)
        removed += result.done
        if not result.more:
            return removed


async def test_old_object_without_a_row_goes_and_a_young_one_stays(world):
    await put(world, "artifacts/a", "stray")
    early = await remove(world)
    await world.clock.forward(DAY + 60)

    late = await remove(world)

    assert (early, late) == (0, 2)
    assert await world.keys() == set()


async def test_object_with_a_row_stays_whatever_its_state(world):
    attempt_id = await world.ended(b"a log\n")
    await world.artifact(attempt_id)
    await world.artifact(attempt_id, state="removing")
    before = await world.keys()
    await world.clock.forward(400 * DAY)

    assert await remove(world) == 0
    assert await world.keys() == before


async def test_marker_and_foreign_prefixes_are_never_looked_at(world):
    objects = world.services.objects
    foreign = f"another-{uuid4().hex}/object"
    await objects.client.put_object(Bucket=objects.settings.bucket, Key=foreign, Body=b"x")
    await world.clock.forward(30 * DAY)

    assert await remove(world) == 0
    assert await objects.find(foreign, 10) == b"x"
    assert await objects.find(objects.full_key("installation.json"), 100) is not None


# --- logs and tickets -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["queued", "running", "ended"])
async def test_log_object_stays_as_long_as_its_attempt_may_write(world, status):
    """An upload whose row is still to come, of an attempt that runs for days."""
    held = await world.running() if status != "queued" else None
    attempt_id = held.attempt_id if held else await world.create()
    key = f"logs/{attempt_id}/1/stdout/0-x"
    await put(world, key)
    await world.clock.forward(3 * DAY)
    if status == "ended":
        await world.sql.execute(
            "UPDATE runner_leases SET expires_at = clock_now() + interval '1 m'"
        )
        assert (await held.complete()).status_code == 200

    early = await remove(world)
    await world.cancel(attempt_id)
    await world.sql.execute("UPDATE runner_leases SET expires_at = created_at")
    await world.clock.forward(600)
    await world.sweep()
    await world.clock.forward(DAY + 7200)
    late = await remove(world)

    assert (early, late) == (0, 1)


async def test_log_object_of_an_attempt_that_nobody_knows_goes(world):
    await put(world, f"logs/{uuid4()}/1/stdout/0-x", "logs/nonsense/1")
    await world.clock.forward(2 * DAY)

    assert await remove(world) == 2


async def test_open_ticket_keeps_its_object_until_a_day_after_its_lease(world):
    held = await world.running(timeout_seconds=7 * DAY)
    ticket_id = await world.ticket(held, "artifacts/t")
    await put(world, "artifacts/t")
    await world.clock.forward(3 * DAY)

    running = await remove(world)
    await world.sql.execute("UPDATE runner_leases SET expires_at = clock_now() + interval '1 m'")
    await held.complete()
    await world.clock.forward(DAY - 60)
    early = await remove(world)
    await world.clock.forward(120)
    late = await remove(world)

    assert (running, early, late) == (0, 0, 1)
    reason = await world.sql.fetchval(
        "SELECT closed_reason FROM artifact_uploads WHERE id = $1", ticket_id
    )
    assert reason == "expired"


@pytest.mark.parametrize("reason", ["expired", "mismatch"])
async def test_object_of_a_closed_ticket_goes(world, reason):
    held = await world.running()
    await world.ticket(held, "artifacts/t", closed_at=world.clock.now, closed_reason=reason)
    await put(world, "artifacts/t")
    await world.clock.forward(2 * DAY)

    assert await remove(world) == 1


async def test_object_recorded_while_its_ticket_was_being_closed_stays(world, fresh_database):
    held = await world.running()
    ticket_id = await world.ticket(held, "artifacts/t")
    await put(world, "artifacts/t")
    await held.complete()
    await world.clock.forward(2 * DAY)
    page = await world.services.objects.list_objects("")
    found = await find_orphans(world.services, page)
    await world.sql.execute(
        "UPDATE artifact_uploads SET closed_at = now(), closed_reason = 'recorded' WHERE id = $1",
        ticket_id,
    )
    await world.artifact(held.attempt_id, key="artifacts/t")

    assert len(found) == 1
    assert await remove_orphans._remove(world.services, found) == 0
    assert await world.keys() == {"artifacts/t"}


# --- brakes ---------------------------------------------------------------------------------------


async def test_empty_or_other_database_deletes_nothing(world, make_database, make_settings):
    """The service is pointed at a fresh database, and at the bucket of another one."""
    await world.artifact(await world.ended())
    before = await world.keys()
    prefix = world.services.settings.objects.prefix
    settings = make_settings(database=await make_database(), OBJECTS__PREFIX=prefix)
    async with open_services(settings) as stranger:
        await stranger.database.run(_move_time)
        await MarkBucket().run_once(stranger)
        assert (await RemoveOrphans().run_once(stranger)).done == 0
        assert (await AbortUploads().run_once(stranger)).done == 0

    assert await world.keys() == before


async def _move_time(conn) -> None:
    await conn.execute(
        "CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql STABLE "
        "AS 'SELECT now() + interval ''100 d'''"
    )


async def test_without_a_marker_nothing_goes(make_world):
    world = await make_world()
    await world.clock.stop()
    await put(world, "stray")
    await world.clock.forward(2 * DAY)

    assert await remove(world) == 0
    assert await world.keys() == {"stray"}


async def test_restored_database_deletes_nothing_until_an_operator_confirms(world):
    attempt_id = await world.ended()
    await world.artifact(attempt_id, days_old=100)
    await put(world, "stray")
    await world.clock.forward(2 * DAY)
    await world.sql.execute(
        "INSERT INTO feed_epochs (number, system_identifier, timeline, begun_at) "
        "VALUES (2, 'moved', 2, now())"
    )

    nothing = await remove(world) + await world.remove_expired()
    shown = await world.preview()
    wrong = await confirm(world, 1)
    still = await remove(world)
    right, again = await confirm(world, 2), await confirm(world, 2)
    removed = await remove(world), await world.remove_expired()

    assert (nothing, still) == (0, 0)
    assert "feed epoch 2" in shown["obstacle"]
    assert shown["orphans"]["objects"] == 1
    assert (wrong.status_code, wrong.json()["reason"]) == (409, "feed-epoch-mismatch")
    assert (right.status_code, again.status_code) == (200, 200)
    assert removed == (1, 1)


async def confirm(world, feed_epoch: object):
    return await world.operator.call(
        "POST", "/v1/retention:confirm", json={"feed_epoch": feed_epoch}
    )


@pytest.mark.parametrize("number", [0, -1, 2**31, "two", None, 1.5])
async def test_an_epoch_that_is_no_number_is_refused(world, number):
    assert (await confirm(world, number)).status_code == 422


async def test_a_walk_removes_at_most_a_hundred_and_says_so(world):
    await put(world, *(f"stray/{number:03}" for number in range(130)))
    await world.clock.forward(2 * DAY)
    loop = RemoveOrphans()

    first = await world.run(loop)
    left = len(await world.keys())
    second = await world.run(loop)

    assert (first.done, first.more, left) == (100, False, 30)
    assert second.done == 30


async def test_of_many_artifacts_a_walk_may_remove_one_percent(world):
    attempt_id = UUID(await world.ended())
    await world.sql.execute(
        "INSERT INTO artifact_refs (id, storage, bucket, key, content_type, digest, byte_size, "
        "retention_class, created_at, attempt_id, operation_id, state) SELECT gen_random_uuid(), "
        "'s3', 'b', 'k' || n, 't', 'sha256:' || repeat('0', 64), 1, 'normal', now(), $1, $1, "
        "'ready' FROM generate_series(1, 11500) n",
        attempt_id,
    )
    await world.sql.execute("ANALYZE artifact_refs")
    await put(world, *(f"stray/{number:03}" for number in range(130)))
    await world.clock.forward(2 * DAY)

    assert 114 <= (await world.run(RemoveOrphans())).done <= 116


async def test_a_bucket_of_many_pages_is_walked_page_by_page(world):
    held = await world.ended()
    for number in range(5):
        await world.artifact(held, key=f"kept/{number}")
    await put(world, *(f"stray/{number}" for number in range(5)))
    await world.clock.forward(2 * DAY)
    loop, passes = RemoveOrphans(), 0
    page = remove_orphans._PAGE
    try:
        remove_orphans._PAGE = 3
        while True:
            passes += 1
            if not (await world.run(loop)).more:
                break
    finally:
        remove_orphans._PAGE = page

    assert passes == 4
    assert await world.keys() == {f"kept/{number}" for number in range(5)}


# --- uploads in parts, tickets, sessions, runners ------------------------------------------------


async def test_half_uploads_are_given_up_after_a_day_unless_their_ticket_lives(world):
    multipart = world.services.objects.multipart
    full_key = world.services.objects.full_key
    held = await world.running(timeout_seconds=7 * DAY)
    stray = await multipart.begin(full_key("artifacts/stray"), "text/plain")
    live = await multipart.begin(full_key("artifacts/live"), "text/plain")
    lost = await multipart.begin(full_key("artifacts/live"), "text/plain")
    await world.ticket(held, "artifacts/live", method="parts", upload_id=live)
    loop = AbortUploads()
    early = await world.run(loop)
    await world.clock.forward(2 * DAY)

    late = await world.run(loop)
    again = await world.run(loop)

    assert (early.done, late.done, again.done) == (0, 2, 0)
    left = await multipart.list_open(world.services.settings.objects.prefix)
    assert [one.upload_id for one in left] == [live]
    assert not {stray, lost} & {one.upload_id for one in left}
    await multipart.abort(full_key("artifacts/live"), live)


async def test_tickets_are_closed_a_day_after_their_lease_and_their_rows_go_later(world):
    held, other = await world.running(), await world.running(timeout_seconds=7 * DAY)
    due, live = await world.ticket(held, "artifacts/a"), await world.ticket(other, "artifacts/b")
    await held.complete()
    await world.clock.forward(DAY + 60)
    await world.sql.execute(
        "UPDATE runner_leases SET expires_at = clock_now() WHERE status = 'active'"
    )

    await world.run(ForgetOld())
    closed = await world.sql.fetch("SELECT id FROM artifact_uploads WHERE closed_at IS NOT NULL")
    await world.clock.forward(31 * DAY)
    await world.run(ForgetOld())
    left = await world.sql.fetch("SELECT id FROM artifact_uploads")

    assert [row["id"] for row in closed] == [due]
    assert [row["id"] for row in left] == [live]


async def test_sessions_go_thirty_days_after_they_were_replaced(world):
    runner = await world.runner()
    for _ in range(2):
        runner = await world.restart(runner)
        await world.clock.forward(60)
    await world.clock.forward(30 * DAY - 200)
    await world.run(ForgetOld())
    before = await world.sql.fetchval("SELECT count(*) FROM runner_sessions")
    await world.clock.forward(400)
    await world.run(ForgetOld())

    assert before == 3
    left = await world.sql.fetch("SELECT session_id FROM runner_sessions")
    assert [str(row["session_id"]) for row in left] in ([runner.session_id], [])


async def test_silent_runner_goes_after_thirty_days_and_may_come_back(world):
    silent, busy = await world.runner(), await world.runner()
    await world.create(timeout_seconds=7 * DAY)
    held = await busy.claim()
    await held.start()
    await world.clock.forward(30 * DAY + 60)
    await world.sql.execute("UPDATE runner_leases SET expires_at = clock_now() + interval '1 h'")

    await world.run(ForgetOld())
    rows = await world.sql.fetch("SELECT id FROM runner_instances")
    leases = await world.control.list_of(held.attempt_id, "leases")
    back = await silent.try_register()

    assert [row["id"] for row in rows] == [busy.id]
    assert leases[0]["runner_instance_id"] == busy.id
    assert back.status_code == 200


async def test_runner_whose_last_lease_ended_lately_stays(world):
    runner = await world.runner()
    await world.create()
    held = await runner.start()
    await world.clock.forward(29 * DAY)
    await world.sql.execute("UPDATE runner_leases SET expires_at = clock_now() + interval '1 h'")
    await held.complete()
    await world.sql.execute(
        "UPDATE runner_instances SET last_seen_at = clock_now() - interval '40 d'"
    )
    await world.clock.forward(2 * DAY)

    await world.run(ForgetOld())

    assert await world.sql.fetchval("SELECT count(*) FROM runner_instances") == 1


async def test_claim_that_came_before_the_lock_is_seen_by_the_second_look(world):
    runner = await world.runner()
    await world.clock.forward(40 * DAY)
    locked = await world.sql.fetch(forgetting._LOCK_SILENT, timedelta(days=30), 10)
    await world.create()
    await runner.claim()
    await world.sql.execute(
        "UPDATE runner_instances SET last_seen_at = clock_now() - interval '40 d'"
    )

    removed = await world.sql.fetchval(
        forgetting._REMOVE_SILENT, timedelta(days=30), [row["id"] for row in locked]
    )

    assert (len(locked), removed) == (1, 0)
