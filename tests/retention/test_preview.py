"""The preview says what the next run removes, and changes nothing."""

from datetime import timedelta

import pytest


@pytest.fixture
async def world(make_world):
    made = await make_world()
    await made.mark_bucket()
    return made


async def fill(world) -> None:
    first, second = await world.ended(b"a log\n"), await world.ended()
    past = world.clock.now - timedelta(days=1)
    for size in (10, 20):
        await world.artifact(first, body=b"x" * size, expires_at=past)
    await world.artifact(first, key="shared", body=b"x" * 5, expires_at=past)
    await world.artifact(second, key="shared", body=b"x" * 5, expires_at=past)
    await world.artifact(first, key="half", expires_at=past)
    later = world.clock.now + timedelta(days=9)
    await world.artifact(second, key="half", expires_at=later, retention_class="long")
    shown = await world.artifact(first, expires_at=past, retention_class="short")
    await world.evidence(first, artifact_ref_id=shown)
    await world.artifact(second, state="removing", body=b"x" * 7, expires_at=past)
    open_id = await world.create()
    await world.artifact(open_id, expires_at=past)
    await world.services.objects.put_once("stray", b"{}")
    await world.sql.execute(
        "UPDATE artifact_refs SET expires_at = $1 "
        "WHERE id IN (SELECT artifact_ref_id FROM raw_log_refs)",
        past,
    )


async def everything(world) -> list:
    tables = ("artifact_refs", "artifact_uploads", "raw_log_refs", "removed_partitions")
    return [await world.sql.fetch(f"SELECT * FROM {one} ORDER BY 1") for one in tables]


async def test_it_says_what_the_next_run_removes_and_how_much(world):
    await fill(world)
    before = await everything(world), await world.keys()

    shown = await world.preview()
    after = await everything(world), await world.keys()
    removed = await world.remove_expired()

    assert before == after
    expired = {(one["fate"], one["kind"], one["retention_class"]): one for one in shown["expired"]}
    going = expired["removed", "artifact", "normal"]
    assert (going["objects"], going["rows"], going["byte_size"]) == (4, 5, 10 + 20 + 5 + 7)
    assert expired["removed", "log", "normal"]["objects"] == 1
    assert {fate for fate, _, _ in expired} == {"removed", "shared", "evidence", "open"}
    assert removed == sum(one["rows"] for key, one in expired.items() if key[0] == "removed")
    assert (shown["obstacle"], shown["feed_epoch"]) == (None, 1)
    assert (await world.preview())["expired"] == []


async def test_it_names_partitions_and_whether_they_are_needed(world):
    old = await world.add_days(33, 32)
    await world.clock.stop()

    free = (await world.preview())["partitions"]
    await world.running()
    await world.sql.execute(
        "UPDATE execution_attempts SET leased_at = now() - interval '33 d' WHERE false"
    )

    assert [one["name"] for one in free] == old
    assert [one["needed"] for one in free] == [False, False]
    assert all(one["byte_size"] > 0 for one in free)


async def test_it_counts_rows_by_kind(world):
    await world.sql.execute(
        "INSERT INTO processed_messages SELECT 'd' || n, 'h', 'e', 'm', now() - interval '40 d' "
        "FROM generate_series(1, 12000) n"
    )

    rows = (await world.preview())["rows"]

    assert rows["processed_messages"] == 10_000
    assert {name for name, count in rows.items() if count} == {"processed_messages"}


async def test_it_names_orphans_and_what_stands_in_their_way(world):
    await world.services.objects.put_once("stray", b"{}" * 10)
    young = (await world.preview())["orphans"]
    await world.clock.stop()
    await world.clock.forward(2 * 86_400)
    objects = world.services.objects
    ours = (await world.preview())["orphans"], (await world.preview())["obstacle"]
    await objects.delete([objects.full_key("installation.json")])

    shown = await world.preview()

    assert (young["objects"], young["looked_at"]) == (0, 2)
    assert (ours[0]["objects"], ours[0]["byte_size"], ours[1]) == (1, 20, None)
    assert "no marker" in shown["obstacle"]
    assert shown["orphans"]["objects"] == 1


async def test_it_answers_without_the_store(make_world):
    world = await make_world(OBJECTS__ENDPOINT_URL="http://127.0.0.1:9")

    shown = await world.preview()

    assert shown["orphans"] is None
    assert "does not answer" in shown["obstacle"]


async def test_only_operators_see_it(world):
    answer = await world.control.call("POST", "/v1/retention:preview")

    assert answer.status_code == 403
