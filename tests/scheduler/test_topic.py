"""From the outbox to the topic: over Google's REST, with the service's own identity."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from app.domain.errors import PublishFailed
from app.domain.schedules import fire_id
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION, TOPIC
from app.embedded.pubsub import LocalPubSub
from app.embedded.serving import LoopbackServer
from app.main import create_app
from app.settings import SchedulerSettings
from app.topics import Message, Publisher, _batches
from tests.scheduler.world import World, attempt_data

START = datetime(2027, 6, 1, 0, 30, tzinfo=UTC)
DUE = START + timedelta(minutes=30)


@asynccontextmanager
async def served(app) -> AsyncIterator[str]:
    server = LoopbackServer(app)
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def pubsub(issuer, services) -> AsyncIterator[LocalPubSub]:
    """A Pub/Sub whose subscription pushes to this service, as in production."""
    pubsub = LocalPubSub(issuer[0].mint)
    pubsub.create_topic(TOPIC)
    async with served(create_app(services)) as url:
        pubsub.create_subscription(
            SUBSCRIPTION, TOPIC, f"{url}/push/pubsub", ACCOUNTS["pubsub"], AUDIENCE
        )
        await pubsub.start()
        yield pubsub
        await pubsub.stop()


def publishing(world: World, url: str, **more: object) -> World:
    """The same world, whose schedules send to a topic."""
    given = {"topic": TOPIC, "pubsub_url": url, "pubsub_credentials": "none", **more}
    settings = SchedulerSettings(**given)
    services = replace(
        world.services,
        settings=world.services.settings.model_copy(update={"scheduler": settings}),
        publisher=Publisher(settings, world.services.http),
    )
    world.services = services
    return world


async def test_due_time_goes_over_the_topic_and_back_and_has_one_attempt(world, pubsub):
    async with served(pubsub.app) as url:
        publishing(world, url)
        await world.at(START)
        await world.put("hourly", data=attempt_data(job_spec_ref={"as_of": "{{due_at}}"}))
        await world.at(DUE)
        await world.fire()
        await world.send()
        [entry] = pubsub.ledger.of_envelope(str(fire_id("hourly", DUE)))
        while not entry.settled:
            await asyncio.sleep(0.01)

    [attempt] = await world.attempts()
    [fire] = await world.fires("hourly")
    assert attempt["idempotency_key"] == str(fire_id("hourly", DUE))
    assert json.loads(attempt["job_spec_ref"]) == {"as_of": "2027-06-01T01:00:00Z"}
    assert fire["sent_as"] == entry.message_id
    assert await world.sql.fetchval("SELECT count(*) FROM outbox") == 0


async def test_topic_that_is_not_there_keeps_the_message_and_tells_why(world, pubsub, operator):
    async with served(pubsub.app) as url:
        publishing(world, url, topic="projects/dev/topics/misspelt")
        await world.at(START)
        await world.put("hourly")
        await world.at(DUE)
        await world.fire()
        with pytest.raises(PublishFailed):
            await world.send()
        publishing(world, url)
        waiting = (await world.send()).done
        await world.at(DUE + timedelta(minutes=2))
        sent = (await world.send()).done

    assert (waiting, sent) == (0, 1)
    [fire] = await world.fires("hourly")
    assert fire["sent_at"] is not None


async def test_why_messages_wait_is_shown(world, pubsub, operator):
    publishing(world, "http://127.0.0.1:9")
    await world.at(START)
    await world.put("hourly")
    await world.at(DUE)
    await world.fire()
    with pytest.raises(PublishFailed):
        await world.send()

    shown = (await operator.call("GET", "/v1/scheduler")).json()["outbox"]
    assert shown["waiting"] == 1
    assert shown["last_reason"] == "The topic cannot be reached (ConnectError)."


# --- Google's side of it -------------------------------------------------------------------------


class Google:
    """Pub/Sub's publish method and the metadata server's tokens, as far as a client goes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict]] = []
        self.tokens = 0
        self.answer: Callable[[int], tuple[int, object]] = lambda count: (
            200,
            {"messageIds": [str(number) for number in range(count)]},
        )
        self.app = Starlette(
            routes=[
                Route("/v1/projects/{p}/topics/{topic}", self.publish, methods=["POST"]),
                Route("/token", self.token, methods=["POST"]),
            ]
        )

    async def publish(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.asked.append((request.headers.get("authorization", ""), body))
        status, content = self.answer(len(body["messages"]))
        return JSONResponse(content, status)

    async def token(self, _: Request) -> JSONResponse:
        self.tokens += 1
        return JSONResponse({"access_token": f"t{self.tokens}", "expires_in": 3600})


@pytest.fixture
async def google() -> AsyncIterator[Google]:
    made = Google()
    async with served(made.app) as made.url:
        yield made


@pytest.fixture
async def publisher(google, tmp_path, monkeypatch) -> AsyncIterator[Publisher]:
    """A publisher whose identity is a key file, as anywhere outside of Google's machines."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "client_email": "service@dev.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "private_key_id": "k",
        "project_id": "dev",
        "token_uri": f"{google.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    async with httpx.AsyncClient() as http:
        yield Publisher(SchedulerSettings(topic=TOPIC, pubsub_url=google.url), http)


async def test_messages_are_published_as_google_wants_them_with_one_token_for_all(
    google, publisher
):
    first = await publisher.publish(TOPIC, [Message(b"one", {"a": "b"}), Message(b"two")])
    await publisher.publish(TOPIC, [Message(b"three")])

    assert first == ["0", "1"]
    assert google.tokens == 1
    assert {authorization for authorization, _ in google.asked} == {"Bearer t1"}
    messages = google.asked[0][1]["messages"]
    assert base64.b64decode(messages[0]["data"]) == b"one"
    assert [one["attributes"] for one in messages] == [{"a": "b"}, {}]


async def test_token_that_is_refused_is_replaced(google, publisher):
    good = google.answer
    google.answer = lambda _: (401, {})
    with pytest.raises(PublishFailed, match="answered 401"):
        await publisher.publish(TOPIC, [Message(b"one")])
    google.answer = good

    await publisher.publish(TOPIC, [Message(b"one")])

    assert google.tokens == 2


@pytest.mark.parametrize(
    ("status", "content"),
    [(200, {}), (200, {"messageIds": []}), (200, {"messageIds": 1}), (200, []), (404, {})],
)
async def test_answer_that_does_not_say_so_is_no_success(google, publisher, status, content):
    google.answer = lambda _: (status, content)

    with pytest.raises(PublishFailed):
        await publisher.publish(TOPIC, [Message(b"one")])


async def test_identity_that_cannot_be_had_is_a_plain_failure(google, publisher, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/account.json")

    with pytest.raises(PublishFailed, match="own identity cannot be had"):
        await publisher.publish(TOPIC, [Message(b"one")])
    assert google.asked == []


def test_requests_stay_within_the_limits_of_pubsub():
    many = _batches([Message(b"x")] * 2500)
    large = _batches([Message(b"x" * 4_000_000)] * 3)

    assert [len(one) for one in many] == [1000, 1000, 500]
    assert [len(one) for one in large] == [1, 1, 1]
    assert _batches([]) == []
