"""The auditor of callbacks: silent about honest deliveries, and not about any fault."""

from uuid import uuid4

import pytest

from app.commands import audit
from app.store import audit_callbacks

OF_EVENT = (
    "attempt_id = '{good}' AND event_number = 2 AND subscription_id = "
    "(SELECT id FROM callback_subscriptions WHERE name = 'billing')"
)

FAULTS = {
    "callback-delivered": [
        f"DELETE FROM callback_deliveries WHERE {OF_EVENT}",
        f"UPDATE callback_deliveries SET result = 'refused' WHERE {OF_EVENT}",
        "DELETE FROM callback_parked",
        "UPDATE callback_parked SET event_number = event_number + 1",
        "UPDATE callback_cursors SET feed_xid = '9000000000000'",
    ],
    "callback-order": [
        f"UPDATE callback_deliveries SET sent_at = sent_at - interval '1 h' WHERE {OF_EVENT}",
        f"UPDATE callback_deliveries SET sent_at = sent_at + interval '1 h' WHERE {OF_EVENT}",
    ],
    "callback-parked": [
        "UPDATE callback_parked SET event_number = 77",
        "UPDATE callback_parked SET attempt_id = gen_random_uuid()",
        "UPDATE callback_cursors SET feed_epoch = 0",
    ],
    "callback-invented": [
        f"UPDATE callback_deliveries SET event_ids = ARRAY[gen_random_uuid()] WHERE {OF_EVENT}",
        f"UPDATE callback_deliveries SET event_number = 50 WHERE {OF_EVENT}",
    ],
    "callback-goes-on": [
        (
            "UPDATE callback_cursors SET feed_epoch = 0, since_at = '2020-01-01', "
            "last_success_at = '2020-01-01', last_failure_at = NULL, created_from = '2020-01-01'"
        ),
    ],
}
EACH = [(name, number) for name, faults in FAULTS.items() for number in range(len(faults))]


@pytest.fixture
async def deliveries(callbacks, receiver, lives, sql) -> dict[str, str]:
    """Refusals, a replay, batches and a parked attempt."""
    await callbacks.put(url=receiver.url)
    before = await lives.one()
    worker = await callbacks.worker()
    await callbacks.drain(worker)
    bad, good = await lives.one(), await lives.one()
    receiver.answering = lambda got: (
        400 if got.json["attempt_id"] == bad and got.json["event_number"] > 1 else 200
    )
    await callbacks.drain(worker)
    await callbacks.post("replay", request_id=str(uuid4()), attempt_id=before)
    await callbacks.repair(worker)
    await callbacks.post("test")
    await sql.execute(
        "UPDATE service_ticks SET last_tick_at = clock_fact(), outage_ended_at = NULL"
    )
    await callbacks.put("batches", url=receiver.url, start="oldest", max_batch=3)
    receiver.answering = lambda _: 200
    await callbacks.drain(await callbacks.worker())
    await lives.created()
    return {"bad": bad, "good": good}


async def broken(callbacks) -> set[str]:
    terms = audit.Terms.of(callbacks.services.settings.leases)
    found = await audit.run_checks(callbacks.sql, terms, checks=audit_callbacks.CHECKS)
    return {finding.check.name for finding in found if finding.violations}


async def test_nothing_is_said_about_honest_deliveries(callbacks, deliveries):
    assert await broken(callbacks) == set()


async def test_every_fault_that_somebody_plants_is_found(callbacks, deliveries):
    assert set(FAULTS) == {check.name for check in audit_callbacks.CHECKS}
    missed = []
    for name, number in EACH:
        fault = callbacks.sql.transaction()
        await fault.start()
        if name == "callback-goes-on":
            await callbacks.sql.execute(
                "UPDATE attempt_events SET created_at = created_at - interval '2 min'"
            )
            await callbacks.sql.execute("UPDATE service_ticks SET last_tick_at = clock_fact()")
        planted = await callbacks.sql.execute(FAULTS[name][number].format(**deliveries))
        assert not planted.endswith(" 0"), (name, number)
        if name not in await broken(callbacks):
            missed.append((name, FAULTS[name][number]))
        await fault.rollback()

    assert missed == []
