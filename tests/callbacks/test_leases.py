"""One worker a subscription: taken, kept, handed over, and left when it is lost."""

import asyncio
from datetime import timedelta
from uuid import uuid4

from app.loops.deliver_callbacks import DeliverCallbacks
from app.loops.forget_deliveries import ForgetDeliveries
from app.store import callback_leases

TTL = timedelta(seconds=15)


async def take(callbacks, holder=None):
    return await callbacks.services.database.run(
        lambda conn: callback_leases.take(conn, holder or uuid4(), TTL, 100)
    )


async def test_of_many_that_want_a_subscription_one_gets_it(callbacks, receiver):
    for number in range(10):
        await callbacks.put(f"s{number}", url=receiver.url)

    taken = await asyncio.gather(*(take(callbacks) for _ in range(8)))

    ids = [one.subscription_id for some in taken for one in some]
    assert len(ids) <= 10
    assert len(ids) == len(set(ids))
    rest = await take(callbacks)
    assert len(ids) + len(rest) == 10
    assert await take(callbacks) == []


async def test_a_lease_that_was_not_prolonged_is_taken_with_a_higher_term(callbacks, receiver, sql):
    await callbacks.put(url=receiver.url)
    [old] = await take(callbacks)
    await sql.execute("UPDATE callback_cursors SET lease_expires_at = clock_fact()")

    [new] = await take(callbacks)
    renewed, lost = await callbacks.services.database.run(
        lambda conn: callback_leases.renew(conn, old.holder, [old], TTL)
    )

    assert new.term == old.term + 1
    assert (renewed, lost) == (set(), {old.subscription_id})


async def test_a_prolonged_lease_stays(callbacks, receiver, sql):
    await callbacks.put(url=receiver.url)
    [held] = await take(callbacks)
    before = await sql.fetchval("SELECT lease_expires_at FROM callback_cursors")

    renewed, lost = await callbacks.services.database.run(
        lambda conn: callback_leases.renew(conn, held.holder, [held], TTL)
    )

    assert (renewed, lost) == ({held.subscription_id}, set())
    assert await sql.fetchval("SELECT lease_expires_at FROM callback_cursors") > before


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_process_that_stops_hands_over_at_once(callbacks, receiver, lives):
    await callbacks.put(url=receiver.url)
    one, other = DeliverCallbacks(), DeliverCallbacks()
    services = callbacks.services
    await one.run_once(services)
    await other.run_once(services)
    assert (len(one.served), len(other.served)) == (1, 0)
    first = await lives.one()
    await until(lambda: receiver.numbers(first) == [1, 2, 3, 4])

    await one.close(services)
    await other.run_once(services)
    second = await lives.one()
    await until(lambda: receiver.numbers(second) == [1, 2, 3, 4])

    await other.close(services)
    receiver.assert_in_order()


async def test_whoever_lost_its_lease_stops_its_worker(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    loop = DeliverCallbacks()
    services = callbacks.services
    await loop.run_once(services)
    stranger = uuid4()
    await sql.execute(
        "UPDATE callback_cursors SET holder = $1, term = term + 1, "
        "lease_expires_at = clock_fact() + interval '1 h'",
        stranger,
    )

    await loop.run_once(services)
    await lives.created()
    await asyncio.sleep(0.3)

    assert loop.served == {}
    assert receiver.requests == []
    assert await sql.fetchval("SELECT holder FROM callback_cursors") == stranger
    await loop.close(services)


async def test_a_resume_a_replay_and_a_removal_are_noticed_by_who_serves_it(
    callbacks, receiver, lives, delivering
):
    await callbacks.put(url=receiver.url)
    first = await lives.one()
    await until(lambda: receiver.numbers(first) == [1, 2, 3, 4])
    receiver.answering = lambda _: 410
    await lives.created()
    await until(lambda: receiver.requests[-1].status == 410)
    receiver.answering = lambda _: 200
    await asyncio.sleep(0.2)

    await callbacks.post("resume")
    await until(lambda: len(receiver.taken) == 5)
    await callbacks.post("replay", request_id=str(uuid4()), attempt_id=first)
    await until(lambda: receiver.numbers(first) == [1, 2, 3, 4, 1, 2, 3, 4])
    await callbacks.caller.call("DELETE", "/v1/callback-subscriptions/billing")
    await until(lambda: not delivering.served)


async def test_the_log_of_deliveries_is_forgotten_by_age(callbacks, receiver, lives, sql):
    await callbacks.put(url=receiver.url)
    await lives.created(3)
    await callbacks.drain(await callbacks.worker())
    await sql.execute(
        "UPDATE callback_deliveries SET sent_at = sent_at - interval '8 days' "
        "WHERE id IN (SELECT id FROM callback_deliveries LIMIT 2)"
    )

    done = await ForgetDeliveries().run_once(callbacks.services)

    assert done.done == 2
    assert len(await callbacks.deliveries()) == 1
