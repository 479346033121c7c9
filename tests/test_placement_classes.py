"""Placement classes: interned by whoever needs one, removed when nothing open names them."""

import asyncio

import asyncpg

from app.loops.forget_classes import ForgetClasses


async def age_classes(sql):
    await sql.execute("UPDATE placement_classes SET created_at = now() - interval '2 days'")


async def classes(sql):
    return await sql.fetchval("SELECT count(*) FROM placement_classes")


async def test_a_class_that_only_ended_attempts_had_is_removed(control, runner, sql, services):
    await control.create(placement={"zone": "a"})
    await control.create(placement={"zone": "b"})
    await runner.register(zone="a")
    held = await runner.start()
    await held.complete()
    await age_classes(sql)

    result = await ForgetClasses().run_once(services)

    assert (result.done, await classes(sql)) == (1, 1)


async def test_a_young_class_stays(control, runner, sql, services):
    await control.create()
    await runner.register()
    await (await runner.start()).complete()

    assert (await ForgetClasses().run_once(services)).done == 0


async def test_a_claim_finds_an_attempt_whose_class_was_removed_and_made_again(
    control, runner, sql, services
):
    await control.create()
    await runner.register()
    await (await runner.start()).complete()
    await age_classes(sql)
    await ForgetClasses().run_once(services)

    again = await control.create()

    assert (await runner.claim()).attempt_id == again["id"]


async def test_creations_and_removals_side_by_side_lose_no_attempt(control, runner, sql, services):
    await runner.register(capacity_total=100)

    async def remove():
        for _ in range(30):
            await age_classes(sql)
            await ForgetClasses().run_once(services)

    async def create():
        for _ in range(10):
            attempt = await control.create(timeout_seconds=5)
            await control.call("POST", f"/v1/attempts/{attempt['id']}:cancel", json={})

    await asyncio.gather(remove(), create(), create(), create())
    last = await control.create()

    assert [held.attempt_id for held in await runner.claim_all(max_leases=100)] == [last["id"]]


async def test_a_creation_that_meets_a_removed_class_makes_it_anew(control, runner, sql, services):
    """The removal commits between the creation's look at the class and its end."""
    await control.create()
    await runner.register()
    await (await runner.start()).complete()
    await age_classes(sql)
    other = await asyncpg.connect(services.settings.database.url.get_secret_value())
    transaction = other.transaction()
    await transaction.start()
    await other.execute("DELETE FROM placement_classes")

    creating = asyncio.create_task(control.create())
    while not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
        await asyncio.sleep(0.01)
    await transaction.commit()
    await other.close()

    attempt = await creating
    assert (await runner.claim()).attempt_id == attempt["id"]
