"""A claim reads what it hands out, however much waits that this runner cannot take."""

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from app.domain.placement import Demands
from app.store import claims, diagnoses, ends, floors, holds, leases, logs

MANY = 50_000
FEW_PAGES = 400


async def pages_read(connection, statement: str, *values: object) -> int:
    """Pages that a statement touches, cached or not; it is really run, and rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        plan = await connection.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, *values
        )
    finally:
        await transaction.rollback()
    root = json.loads(plan)[0]["Plan"]
    return root["Shared Hit Blocks"] + root["Shared Read Blocks"]


def lease_values(*classes: UUID) -> list[object]:
    wanted = 1
    return [
        list(classes),
        ["runner-1"],
        [wanted],
        [1],
        wanted + max(1, 64 // len(classes)),
        [uuid4()],
        ["hash"],
        "k1",
        [uuid4()],
        [uuid4()],
        timedelta(seconds=15),
        timedelta(seconds=600),
        *floors.begins(classes, {}),
    ]


def class_of(zone: str | None) -> UUID:
    return Demands("ssh", "ssh.command.run", zone, {}).class_id


async def claim_pages(queue, *classes: UUID) -> int:
    return await pages_read(queue.connection, claims._LEASE, *lease_values(*classes))


async def test_a_claim_reads_the_same_with_fifty_thousand_that_others_must_take(queue):
    await queue.fill(100)
    await queue.settle()
    small = await claim_pages(queue, class_of(None))

    await queue.fill(MANY, zone="elsewhere")
    await queue.settle()
    large = await claim_pages(queue, class_of(None))

    assert large < small + FEW_PAGES


async def test_a_claim_reads_the_same_behind_one_held_key(queue):
    await queue.fill(100)
    await queue.fill(MANY, key="one-host", claimable=False)
    await queue.settle()

    assert await claim_pages(queue, class_of(None)) < FEW_PAGES


async def test_a_look_reads_one_head_a_class(queue):
    zones = [f"zone-{n}" for n in range(50)]
    for zone in zones:
        await queue.fill(MANY // 500, zone=zone)
    await queue.settle()
    classes = [class_of(zone) for zone in zones]

    pages = await pages_read(
        queue.connection,
        claims._LOOK,
        *("ssh", ["runner-1"], [uuid4()], [uuid4()], classes),
        *floors.begins(classes, {}),
    )

    assert pages < 10 * len(zones)


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (ends._LIST_DUE, [200]),
        (ends._LIST_AT_LIMIT, [200]),
        (holds._MOVE_UP, [["one-host"]]),
        (holds._LIST_WAITED_FOR, ["", 100]),
        (leases._START, [[uuid4()], ["hash"], timedelta(30), timedelta(60)]),
        (diagnoses._DIAGNOSE, [[uuid4()]]),
        (logs._LOOK, [[uuid4()], ["hash"], timedelta(30), timedelta(120), ["stdout"]]),
    ],
    ids=["due", "at-limit", "move-up", "waited-for", "start", "diagnose", "log-look"],
)
async def test_what_is_asked_often_reads_little_however_long_the_queue(
    long_queue, statement, values
):
    assert await pages_read(long_queue.connection, statement, *values) < FEW_PAGES
