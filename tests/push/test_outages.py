"""What the service leans on is away, slow or lying: no message pays for it, and no runner."""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import perf_counter
from uuid import uuid4

import asyncpg
import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.issuer import Fault
from app.embedded.postgres import EmbeddedPostgres
from app.store import migrate
from tests.push.conftest import TOPIC, delivery, envelope
from tests.push.service import LEDGER
from tests.store.sweeps import end_due, lapse

# The first failure that would be counted as a message's own buries it.
STRICT = {
    "PUSH__FAILURES_BEFORE_DEAD_LETTER": 1,
    "PUSH__FAILURE_SECONDS_BEFORE_DEAD_LETTER": 0,
}


# --- the database ---------------------------------------------------------------------------------


@pytest.fixture
async def own_postgres(tmp_path):
    server = EmbeddedPostgres(tmp_path / "own", options={"fsync": "off", "shared_buffers": "32MB"})
    await server.start()
    await asyncio.to_thread(migrate.upgrade, server.dsn)
    yield server
    await server.stop()


async def on(server: EmbeddedPostgres, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def good_messages_outlive(
    seconds: float, per_second: float, own_postgres, open_service, open_pubsub
) -> None:
    await on(own_postgres, LEDGER)
    service = await open_service(database=own_postgres.dsn, TELEMETRY__LOG_LEVEL="error", **STRICT)
    pubsub = await open_pubsub(service.endpoint, duplicate_rate=0.1)
    published: list[int] = []

    async def stream() -> None:
        while True:
            data = {"number": len(published)}
            await pubsub.publish(TOPIC, json.dumps(envelope(data=data)).encode())
            published.append(len(published))
            await asyncio.sleep(1 / per_second)

    streaming = asyncio.create_task(stream())
    await asyncio.sleep(1)
    await own_postgres.stop()
    before = len(published)
    await asyncio.sleep(seconds)
    await own_postgres.start()
    after = len(published)
    await asyncio.sleep(1)
    streaming.cancel()
    with suppress(asyncio.CancelledError):
        await streaming
    await pubsub.drained(60 + seconds / 4)

    rows = await on(own_postgres, "SELECT number FROM ledger")
    assert after - before >= seconds * per_second / 4
    assert Counter(row["number"] for row in rows) == Counter(published)
    assert await on(own_postgres, "SELECT reason FROM dead_letters") == []
    assert pubsub.ledger.unsettled() == []


async def test_messages_that_meet_no_database_have_one_effect_each_afterwards(
    own_postgres, open_service, open_pubsub
):
    await good_messages_outlive(10, 50, own_postgres, open_service, open_pubsub)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_minutes_without_the_database_cost_no_message(
    own_postgres, open_service, open_pubsub
):
    await good_messages_outlive(600, 20, own_postgres, open_service, open_pubsub)


# --- a backlog ------------------------------------------------------------------------------------


async def test_backlog_of_old_beats_keeps_no_dead_runner_alive(
    pusher, runner, control, services, sql
):
    await control.create()
    held = await (await runner.register()).start()
    expires = "SELECT expires_at FROM runner_leases"
    before = await sql.fetchval(expires)

    async def beat(sequence: int, age: timedelta) -> int:
        data = {
            "lease_id": held.id,
            "lease_token": held.token,
            "session_id": runner.session_id,
            "sequence": sequence,
        }
        published = (datetime.now(UTC) - age).isoformat()
        return (await pusher.push("lease.heartbeat", data, publishTime=published)).status_code

    backlog = [await beat(1 + n, timedelta(minutes=10, seconds=-n)) for n in range(50)]
    unchanged = await sql.fetchval(expires)
    await lapse(sql, held.id)
    late = [await beat(51 + n, timedelta(minutes=9)) for n in range(10)]
    lapsed = await sql.fetchval(expires)
    async with sql.transaction():
        assert await end_due(sql, services, held) == 1
    after_the_end = await beat(100, timedelta())

    assert set(backlog) | set(late) == {204}
    assert unchanged == before
    assert lapsed < datetime.now(UTC)
    assert after_the_end == 204
    assert await control.status(held.attempt_id) == "lost"


# --- the issuer -----------------------------------------------------------------------------------


class Sender:
    """Pushes good messages, each with a token of its own, and times them."""

    def __init__(self, client: httpx.AsyncClient, endpoint: str, issuer) -> None:
        self._client = client
        self._endpoint = endpoint
        self._issuer = issuer
        self.slowest = 0.0

    async def push(self, token: str | None = None) -> int:
        began = perf_counter()
        # A claim that varies makes each token one that was never seen before.
        token = token or self._issuer.mint(ACCOUNTS["pubsub"], AUDIENCE, jti=uuid4().hex)
        answer = await self._client.post(
            self._endpoint,
            json=delivery(envelope(data={"number": 1})),
            headers={"Authorization": f"Bearer {token}"},
        )
        self.slowest = max(self.slowest, perf_counter() - began)
        return answer.status_code


async def test_warm_service_goes_on_whatever_its_issuer_does(open_service, own_sql, own_issuer):
    source, _ = own_issuer
    source.max_age_seconds = source.age_seconds + 1  # fetched again as often as can be
    service = await open_service(by=own_issuer, IDENTITY__CERTIFICATE_REFRESH_COOLDOWN_SECONDS=0.5)
    async with httpx.AsyncClient(timeout=20) as client:
        sender = Sender(client, service.endpoint, source)
        assert await sender.push() == 204
        statuses: dict[str, set[int]] = {}
        for fault in Fault:
            source.fault = fault
            await asyncio.sleep(1.1)  # the keys that it has are stale now
            statuses[fault] = {await sender.push() for _ in range(15)}
        slowest = sender.slowest

        source.fault = None
        source.rotate(keep_previous=False)
        source.rotate(keep_previous=False)  # to a key that was not published at the last fetch
        async with asyncio.timeout(30):
            while await sender.push() != 204:
                await asyncio.sleep(0.05)

    assert statuses == {fault: {204} for fault in Fault}
    assert slowest < 3  # a fetch of keys may take five seconds, and nobody waits for it


@pytest.mark.parametrize(
    "tokens", [200, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_unknown_keys_make_the_issuer_work_once(tokens, open_service, own_sql, own_issuer):
    source, _ = own_issuer
    service = await open_service(by=own_issuer, TELEMETRY__LOG_LEVEL="error")
    async with httpx.AsyncClient(timeout=20) as client:
        sender = Sender(client, service.endpoint, source)
        assert await sender.push() == 204
        fetched = sum(source.requests.values())
        claims = source.claims(ACCOUNTS["pubsub"], AUDIENCE)

        statuses = Counter(
            [await sender.push(source.sign(claims, kid=uuid4().hex)) for _ in range(tokens)]
        )

    assert statuses == {401: tokens}
    assert sum(source.requests.values()) - fetched <= 1
