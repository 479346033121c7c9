"""Every message has its effect exactly once, whatever happens to it and to the service."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from time import perf_counter

import httpx
import pytest

from tests.push.conftest import TOPIC, delivery, envelope

FAILING = 0.05
POISON = 0.02


@dataclass(frozen=True)
class Sent:
    """What was published: numbers that must be in the ledger once, and how many never can."""

    good: list[int]
    poison: int


async def publish(pubsub, count: int, seed: int = 1, to: str = "ledger.add") -> Sent:
    """Messages, of which 5 % fail now and then and 2 % can never succeed."""
    dice, good, poison = random.Random(seed), [], 0
    for number in range(count):
        if dice.random() < POISON:
            poison += 1
            content = dice.choice(
                [
                    b"not json",
                    json.dumps([number]).encode(),
                    json.dumps(envelope(data={"number": f"none {number}"})).encode(),
                    json.dumps(envelope("never.allowed", {"number": number})).encode(),
                    json.dumps(envelope(v=2)).encode(),
                ]
            )
            # A poisonous message is known by its content, so each is made different.
            await pubsub.publish(TOPIC, content + b" " * number)
            continue
        good.append(number)
        failure_rate = 0.5 if dice.random() < FAILING else 0
        data = {"number": number, "failure_rate": failure_rate}
        await pubsub.publish(TOPIC, json.dumps(envelope(to, data)).encode())
    return Sent(good, poison)


async def written(sql) -> Counter[int]:
    rows = await sql.fetch("SELECT number, count(*) AS lines FROM ledger GROUP BY number")
    return Counter({row["number"]: row["lines"] for row in rows})


async def nothing_is_in_flight(pubsub, sql) -> None:
    assert pubsub.ledger.unsettled() == []
    marks = "SELECT count(*) FROM message_failures WHERE working_process IS NOT NULL"
    locks = (
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE d.datname = current_database() AND l.locktype = 'advisory'"
    )
    assert await sql.fetchval(marks) == 0
    assert await sql.fetchval(locks) == 0


async def messages_survive(
    count: int, seconds: float, open_service, open_pubsub, sql, to: str = "ledger.add"
) -> None:
    """Duplicates, another order, failing handlers, poison, and a kill -9 in the middle."""
    service = await open_service(TELEMETRY__LOG_LEVEL="error")
    pubsub = await open_pubsub(service.endpoint, seed=7, duplicate_rate=0.1, reorder_rate=0.2)
    began = perf_counter()
    sent = await publish(pubsub, count, to=to)

    async with asyncio.timeout(seconds):
        while await sql.fetchval("SELECT count(*) FROM ledger") < count // 3:
            await asyncio.sleep(0.02)
    service.kill()
    at_the_kill = await sql.fetchval("SELECT count(*) FROM ledger")
    await service.start()
    await pubsub.drained(seconds)
    lasted = perf_counter() - began

    assert at_the_kill < len(sent.good)
    assert await written(sql) == Counter(sent.good)
    assert await sql.fetchval("SELECT count(*) FROM dead_letters") == sent.poison
    await nothing_is_in_flight(pubsub, sql)
    summary = pubsub.ledger.summary()
    assert summary.published == count
    print(f"{count} messages in {summary.deliveries} deliveries, {lasted:.1f} s")  # noqa: T201


@pytest.mark.parametrize("to", ["ledger.add", "ledger.note"])
async def test_messages_have_one_effect_each_through_a_kill(to, open_service, open_pubsub, own_sql):
    await messages_survive(600, 40, open_service, open_pubsub, own_sql, to)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("to", ["ledger.add", "ledger.note"])
async def test_ten_thousand_messages_have_one_effect_each_through_a_kill(
    to, open_service, open_pubsub, own_sql
):
    await messages_survive(10_000, 600, open_service, open_pubsub, own_sql, to)


async def test_same_message_ten_times_at_once_on_two_instances_has_one_effect(
    open_service, own_sql, push_token
):
    """One 204, the others 503 while it is at work; nobody beside them waits for it either."""
    at_work = 2.0
    services = await asyncio.gather(open_service(), open_service())
    body = delivery(envelope(data={"number": 7, "seconds": at_work}))
    headers = {"Authorization": f"Bearer {push_token}"}

    async with httpx.AsyncClient(headers=headers, timeout=20) as client:

        async def push(number: int, content) -> tuple[int, float]:
            began = perf_counter()
            answer = await client.post(services[number % 2].endpoint, json=content)
            return answer.status_code, perf_counter() - began

        for number in range(2):
            await push(number, delivery(envelope(data={"number": -1 - number})))
        same = [asyncio.create_task(push(number, body)) for number in range(10)]
        others = [push(number, delivery(envelope(data={"number": number}))) for number in range(6)]
        beside = await asyncio.gather(*others)
        answers = await asyncio.gather(*same)
        afterwards = [await push(number, body) for number in range(2)]

    statuses = Counter(status for status, _ in answers)
    assert statuses == {204: 1, 503: 9}
    assert max(seconds for status, seconds in answers if status == 503) < at_work
    assert {status for status, _ in beside} == {204}
    assert max(seconds for _, seconds in beside) < at_work
    assert [status for status, _ in afterwards] == [204, 204]
    assert (await written(own_sql))[7] == 1
    assert await own_sql.fetchval("SELECT count(*) FROM message_failures") == 0


async def test_instances_with_different_current_keys_exclude_each_other(
    open_service, own_sql, push_token
):
    """While a server key is being changed, one of them knows the message by another digest."""
    secrets = {
        "k1": "the first secret, long enough to be one",
        "k2": "the second one, just as long",
    }
    secrets["k2"] += " as it has to be"
    services = [
        await open_service(KEYS__CURRENT=current, KEYS__SECRETS=secrets) for current in secrets
    ]
    body = delivery(envelope(data={"number": 7, "seconds": 0.5}))
    headers = {"Authorization": f"Bearer {push_token}"}

    async with httpx.AsyncClient(headers=headers, timeout=20) as client:
        answers = await asyncio.gather(
            *(client.post(service.endpoint, json=body) for service in services for _ in range(3))
        )
        afterwards = [await client.post(service.endpoint, json=body) for service in services]

    assert Counter(answer.status_code for answer in answers) == {204: 1, 503: 5}
    assert [answer.status_code for answer in afterwards] == [204, 204]
    assert await written(own_sql) == {7: 1}
