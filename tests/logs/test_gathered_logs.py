"""Records of log chunks that come together: each as if it had come alone."""

import asyncio

import pytest

from app.store import gathering
from tests.gathered import together


@pytest.fixture
async def fleet(control, make_runner):
    """Started leases, of a runner each."""
    held = []
    for _ in range(4):
        runner = await make_runner().register()
        await control.create()
        held.append(await runner.start())
    return held


async def test_records_are_answered_by_position_and_one_refused_hurts_no_neighbour(
    fleet, logs, services, sql
):
    """A gap, a wrong token and an ended lease are found out before; here they come after a look."""
    first, behind, ended, last = fleet
    gathered = services.gathered

    async def overtaken():
        """Another upload at the same offset was quicker."""
        return await behind.log(b"slow\n", 0)

    gathered.append._tasks.update({object() for _ in range(gathering.PARALLEL)})
    tasks = [
        asyncio.create_task(each)
        for each in (first.log(b"one\n", 0), overtaken(), ended.log(b"x\n", 0), last.log(b"4\n", 0))
    ]
    async with asyncio.timeout(20):
        while len(gathered.append._waiting) < 4:
            await asyncio.sleep(0.001)
    await sql.execute(
        "INSERT INTO log_streams (attempt_id, lease_number, stream, next_offset, raw_size, "
        "stored_size, line_count, final, created_at, updated_at) "
        "VALUES ($1, 1, 'stdout', 6, 6, 6, 1, false, now(), now())",
        behind.attempt_id,
    )
    await sql.execute(
        "UPDATE runner_leases SET status = 'released', released_at = now() - interval '1 h' "
        "WHERE id = $1",
        ended.id,
    )
    gathered.append._tasks.clear()
    gathered.append._begin()
    answers = await asyncio.gather(*tasks)

    assert [answer.status_code for answer in answers] == [200, 200, 409, 200]
    assert [answer.json().get("next_offset") for answer in answers] == [4, 6, None, 2]
    assert await logs.text(first) == b"one\n"
    assert await logs.text(last) == b"4\n"
    assert await sql.fetchval("SELECT count(*) FROM raw_log_refs") == 2


async def test_streams_of_one_lease_follow_each_other(fleet, logs, services):
    """Their records touch one row, which a statement changes only once."""
    answers, sizes = await together(
        services.gathered.append,
        [
            fleet[0].log(b"out\n", 0),
            fleet[0].log(b"err\n", 0, "stderr"),
            fleet[1].log(b"other\n", 0),
        ],
    )

    assert [answer.status_code for answer in answers] == [200] * 3
    assert sizes == [2, 1]
    assert await logs.text(fleet[0]) == b"out\n"
    assert await logs.text(fleet[0], "stderr") == b"err\n"
    await logs.assert_rows_fit()


async def test_chunks_with_an_event_are_not_in_one_transaction_with_those_without(
    fleet, logs, services, control
):
    """The former lock attempts before leases; the latter must hold no lease by then."""
    secret = b"password=hunter2-canary\n"
    answers, sizes = await together(
        services.gathered.append,
        [
            fleet[0].log(b"plain\n", 0, final=True),
            fleet[1].log(secret, 0, final=True),
            fleet[2].log(b"plain\n", 0, final=True),
            fleet[3].log(secret, 0, final=True),
        ],
    )

    assert [answer.status_code for answer in answers] == [200] * 4
    assert sizes == [2, 2]
    for held, told in zip(fleet, (False, True, False, True), strict=True):
        assert ("secret_masked" in await control.event_types(held.attempt_id)) is told
    await logs.assert_rows_fit()


async def test_store_is_not_called_while_a_transaction_is_open(fleet, services, monkeypatch):
    busy: list[int] = []
    put = services.objects.put

    async def seen(*given):
        busy.append(services.database.in_use)
        await put(*given)
        busy.append(services.database.in_use)

    monkeypatch.setattr(services.objects, "put", seen)
    answer = await fleet[0].log(b"line\n", 0)

    assert answer.status_code == 200
    assert busy == [0, 0]


async def test_looks_that_come_together_are_one_statement(fleet, services):
    answers, sizes = await together(
        services.gathered.look_at_log, [held.log(b"line\n", 0) for held in fleet]
    )

    assert [answer.status_code for answer in answers] == [200] * 4
    assert sizes == [4]
