"""What goes when its time is over, in which order, and what keeps it."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from app.loops.remove_expired import RemoveExpired
from app.store import expiries

DAYS = {"short": 7, "normal": 90, "long": 400}


@pytest.fixture
async def world(make_world):
    made = await make_world()
    await made.mark_bucket()
    return made


async def test_each_class_goes_after_its_days_and_legal_hold_never(world):
    attempt_id = await world.ended()
    young = [
        await world.artifact(attempt_id, retention_class=name, days_old=days - 0.01)
        for name, days in DAYS.items()
    ]
    old = [
        await world.artifact(attempt_id, retention_class=name, days_old=days + 0.01)
        for name, days in DAYS.items()
    ]
    never = await world.artifact(attempt_id, retention_class="legal_hold", days_old=5000)

    removed = await world.remove_expired()

    assert removed == len(old)
    assert set(await world.artifacts()) == {*young, never}
    assert await world.keys() == {f"artifacts/{one}" for one in (*young, never)}


async def test_days_are_settings(make_world):
    world = await make_world(
        RETENTION__SHORT_DAYS=1, RETENTION__NORMAL_DAYS=2, RETENTION__LONG_DAYS=3
    )
    await world.mark_bucket()
    attempt_id = await world.ended()
    kept = await world.artifact(attempt_id, retention_class="long", days_old=2.9)
    await world.artifact(attempt_id, retention_class="long", days_old=3.1)

    assert await world.remove_expired() == 1
    assert list(await world.artifacts()) == [kept]


async def test_a_date_once_given_is_kept_whatever_the_settings_say_later(world, make_world):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, days_old=5)
    await world.remove_expired()
    other = await make_world(RETENTION__SHORT_DAYS=1, RETENTION__NORMAL_DAYS=2)

    assert await other.remove_expired() == 0
    assert artifact_id in await world.artifacts()


async def test_logs_have_the_class_of_the_setting_and_go_with_their_rows(make_world):
    world = await make_world(RETENTION__LOG_CLASS="short")
    await world.mark_bucket()
    attempt_id = await world.ended(b"one\n", b"two\n")
    await world.remove_expired()
    dated = await world.sql.fetch(
        "SELECT retention_class, expires_at - created_at AS d FROM artifact_refs"
    )
    await world.clock.stop()
    await world.clock.forward(7 * 86_400 + 60)

    assert {(row["retention_class"], row["d"]) for row in dated} == {("short", timedelta(days=7))}
    assert await world.remove_expired() > 0
    assert await world.keys() == set()
    assert await world.sql.fetchval("SELECT count(*) FROM raw_log_refs") == 0
    assert await world.control.status(attempt_id) == "succeeded"
    assert "succeeded" in await world.control.event_types(attempt_id)


async def test_a_log_goes_as_a_whole(world):
    attempt_id = await world.ended(b"a" * 65_536 + b"\n", b"two\n")
    await world.remove_expired()
    first = await world.sql.fetchval(
        "SELECT artifact_ref_id FROM raw_log_refs ORDER BY stream_offset LIMIT 1"
    )
    await _expire(world, first)

    assert await world.remove_expired() == 0
    assert await world.sql.fetchval("SELECT count(*) FROM artifact_refs WHERE state = 'ready'") >= 2
    assert (await world.control.read_log(attempt_id)).status_code == 200

    await world.sql.execute("UPDATE artifact_refs SET expires_at = now() - interval '1 h'")
    assert await world.remove_expired() >= 2


async def _expire(world, *artifact_ids: UUID, state: str = "ready") -> None:
    await world.sql.execute(
        "UPDATE artifact_refs SET expires_at = clock_now() - interval '1 s', state = $2 "
        "WHERE id = ANY($1)",
        list(artifact_ids),
        state,
    )


@pytest.mark.parametrize("status", ["queued", "leased", "running"])
async def test_what_belongs_to_an_open_attempt_stays_whatever_its_age(world, status):
    attempt_id = await world.create()
    if status != "queued":
        held = await (await world.runner()).claim()
        if status == "running":
            await held.start()
    artifact_id = await world.artifact(attempt_id, days_old=2000)

    await world.remove_expired()
    shown = [(one["fate"], one["objects"]) for one in (await world.preview())["expired"]]
    await world.sql.execute("UPDATE artifact_refs SET expires_at = clock_now() - interval '1 s'")
    due = [(one["fate"], one["objects"]) for one in (await world.preview())["expired"]]

    assert await world.artifacts() == {artifact_id: "ready"}
    # It is put off by a day, so that it does not stand in front of what may go.
    assert (shown, due) == ([], [("open", 1)])


async def test_what_may_not_go_yet_stands_in_nobodys_way(world):
    ended = await world.ended()
    open_id = await world.create()
    for _ in range(3):
        await world.artifact(open_id, days_old=500)
    going = await world.artifact(ended, days_old=100)

    removed = await world.remove_expired()

    assert removed == 1
    assert going not in await world.artifacts()


# --- evidence, outputs ----------------------------------------------------------------------------


@pytest.mark.parametrize("by_output", [False, True])
async def test_what_an_evidence_shows_stays_with_its_operation(world, by_output):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, days_old=5000)
    if by_output:
        output_id = await world.output(attempt_id, artifact_id)
        await world.evidence(attempt_id, output_ref_id=output_id)
    else:
        await world.evidence(attempt_id, artifact_ref_id=artifact_id)

    await world.remove_expired()
    await world.remove_expired()

    assert await world.artifacts() == {artifact_id: "ready"}
    assert len(await world.keys()) == 1


async def test_an_output_goes_with_its_artifact_and_the_timeline_stays(world):
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, days_old=100)
    await world.output(attempt_id, artifact_id)

    await world.remove_expired()

    assert await world.sql.fetchval("SELECT count(*) FROM runner_output_refs") == 0
    assert "succeeded" in await world.control.event_types(attempt_id)


# --- shared keys ----------------------------------------------------------------------------------


async def test_shared_object_goes_when_all_its_rows_have_expired(world):
    first, second = await world.ended(), await world.ended()
    await world.artifact(first, key="shared", days_old=100)
    younger = await world.artifact(second, key="shared", days_old=50)

    early = await world.remove_expired()
    await _expire(world, younger)
    expiry = await world.sql.fetchval("SELECT max(expires_at) FROM artifact_refs")
    waiting = await world.remove_expired()
    await world.sql.execute("UPDATE artifact_refs SET expires_at = clock_now() - interval '1 s'")
    late = await world.remove_expired()

    assert early == 0
    assert expiry > world.clock.now  # the first row waits for the second one's date
    assert (waiting, late) == (0, 2)
    assert await world.keys() == set()


@pytest.mark.parametrize("keeps", ["hold", "class", "open", "evidence", "undated"])
async def test_one_row_that_may_not_go_keeps_a_shared_object(world, keeps):
    first, second = await world.ended(), await world.ended()
    expired = await world.artifact(first, key="shared", days_old=100)
    more = {
        "hold": {"days_old": 100, "held_at": world.clock.now},
        "class": {"days_old": 5000, "retention_class": "legal_hold"},
        "open": {"days_old": 100},
        "evidence": {"days_old": 100},
        "undated": {"days_old": 0},
    }[keeps]
    if keeps == "open":
        second = await world.create()
    other = await world.artifact(second, key="shared", **more)
    if keeps == "evidence":
        await world.evidence(second, artifact_ref_id=other)

    await world.remove_expired()

    assert await world.keys() == {"shared"}
    assert await world.artifacts() == {expired: "ready", other: "ready"}


async def test_row_whose_object_another_row_needs_goes_without_it(world):
    """As the merging of log chunks leaves them, and a pass that died half-way."""
    first, second = await world.ended(), await world.ended()
    going = await world.artifact(first, key="shared", state="removing", days_old=1)
    staying = await world.artifact(second, key="shared", days_old=1)

    assert await world.remove_expired() == 1
    assert list(await world.artifacts()) == [staying]
    assert going not in await world.artifacts()
    assert await world.keys() == {"shared"}


async def test_key_with_a_row_that_somebody_holds_locked_is_left_for_later(world, fresh_database):
    first, second = await world.ended(), await world.ended()
    past = world.clock.now - timedelta(days=1)
    await world.artifact(first, key="shared", days_old=100, expires_at=past)
    locked = await world.artifact(second, key="shared", days_old=100, expires_at=past)
    other = await asyncpg.connect(fresh_database)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM artifact_refs WHERE id = $1 FOR SHARE", locked)

    early = await world.remove_expired()
    await transaction.rollback()
    await other.close()

    assert early == 0
    assert await world.keys() == {"shared"}
    assert await world.remove_expired() == 2


async def test_row_that_was_added_before_the_lock_is_seen_by_the_judgement(world):
    """Its transaction began after ours had looked: only the second statement's snapshot has it."""
    first, second = await world.ended(), await world.ended()
    past = world.clock.now - timedelta(days=1)
    await world.artifact(first, key="shared", days_old=100, expires_at=past)

    async with world.sql.transaction():
        locked = await expiries.lock_due(world.sql, 10)
    await world.artifact(second, key="shared", days_old=0)
    async with world.sql.transaction():
        marked, kept = await expiries.mark(world.sql, locked)

    assert (marked, kept) == (0, 1)


# --- the store ------------------------------------------------------------------------------------


async def test_nothing_to_do_asks_the_store_nothing(make_world):
    world = await make_world(OBJECTS__ENDPOINT_URL="http://127.0.0.1:9")

    assert await world.remove_expired() == 0


async def test_a_store_that_is_away_loses_nothing_and_later_all_goes(world, make_world):
    away = await make_world(OBJECTS__ENDPOINT_URL="http://127.0.0.1:9")
    attempt_id = await world.ended()
    artifact_id = await world.artifact(attempt_id, days_old=100)

    with pytest.raises(Exception, match="object store"):
        await away.run(RemoveExpired())

    assert await world.artifacts() == {artifact_id: "removing"}
    assert await world.remove_expired() == 1
    assert (await world.artifacts(), await world.keys()) == ({}, set())


async def test_two_who_remove_at_once_remove_all_once(world, make_world):
    attempt_id = await world.ended()
    for _ in range(40):
        await world.artifact(attempt_id, days_old=100, body=uuid4().bytes)
    other = await make_world(OBJECTS__PREFIX=world.services.settings.objects.prefix)

    await asyncio.gather(world.remove_expired(), other.remove_expired())

    assert (await world.artifacts(), await world.keys()) == ({}, set())


async def test_bucket_of_another_setting_is_left_alone(world):
    attempt_id = await world.ended()
    foreign = await world.artifact(attempt_id, days_old=100, bucket="another")

    await world.remove_expired()

    assert await world.artifacts() == {foreign: "removing"}
    assert len(await world.keys()) == 1
