"""What is forgotten of messages, and when."""

from app.domain.ids import new_id
from app.loops.forget_messages import ForgetMessages
from app.loops.supervisor import loops_of


async def test_rows_go_when_their_time_is_over_and_not_before(services, sql):
    for days in (31, 33):
        await sql.execute(
            "INSERT INTO processed_messages VALUES "
            "($1, 'h', 'e', 'm', now() - $2 * interval '1 d')",
            f"done {days}",
            days,
        )
        await sql.execute(
            "INSERT INTO message_failures (message_digest, handler, last_failed_at) "
            "VALUES ($1, 'h', now() - $2 * interval '1 d')",
            f"failed {days}",
            days,
        )
        await sql.execute(
            "INSERT INTO message_failures (message_digest, handler, working_process, "
            "working_since) VALUES ($1, 'h', $3, now() - $2 * interval '1 d')",
            f"marked {days}",
            days,
            new_id(),
        )
    for days in (89, 91):
        await sql.execute(
            "INSERT INTO dead_letters (id, message_digest, reason, detail, subscription, "
            "message_id, payload_bytes, redrivable, first_at, last_at) VALUES "
            "($1, $2, 'r', 'd', 's', 'm', 0, false, now() - interval '200 d', "
            "now() - $3 * interval '1 d')",
            new_id(),
            f"dead {days}",
            days,
        )

    result = await ForgetMessages().run_once(services)

    left = await sql.fetch(
        "SELECT message_digest AS d FROM processed_messages UNION ALL "
        "SELECT message_digest FROM message_failures UNION ALL "
        "SELECT message_digest FROM dead_letters"
    )
    assert sorted(row["d"] for row in left) == ["dead 89", "done 31", "failed 31", "marked 31"]
    assert (result.done, result.more) == (4, False)


def test_the_leader_forgets():
    assert "forget_messages" in {
        loop.name for loop in loops_of("scheduler", None) if loop.leader_only
    }


async def test_message_that_is_done_leaves_no_trace_of_its_failures(
    open_instance, pusher_to, ledger, sql
):
    http = await open_instance(PUSH__FAILURES_BEFORE_DEAD_LETTER=100)
    identifier = "00000000-0000-0000-0000-000000000001"
    pusher = pusher_to(http)
    await pusher.push("unknown.handler", {"number": 1})
    await sql.execute("TRUNCATE dead_letters")
    failing = {"number": 1, "failure_rate": 0.5}

    statuses = []
    while 204 not in statuses:
        answer = await pusher.push("ledger.add", failing, id=identifier)
        statuses.append(answer.status_code)

    assert set(statuses) <= {503, 204}
    assert await ledger() == [1]
    assert await sql.fetchval("SELECT count(*) FROM message_failures") == 0
