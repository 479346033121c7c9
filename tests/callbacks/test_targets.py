"""The other kinds of proof and target: Google's identity tokens, and Pub/Sub topics."""

import asyncio
import base64
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.callbacks.sender import Sender
from app.embedded.pubsub import LocalPubSub
from app.embedded.serving import LoopbackServer
from tests.callbacks.receiver import Receiver

TOPIC = "projects/demo/topics/execution-events"
AUDIENCE = "https://receiver.example"


class Google:
    """What Google's token endpoint does for a service account with a key file."""

    def __init__(self, issuer) -> None:
        self.issuer, self.asked = issuer, []
        self.broken = False
        self.server = LoopbackServer(
            Starlette(routes=[Route("/token", self._token, methods=["POST"])])
        )

    async def _token(self, request: Request) -> Response:
        form = (await request.body()).decode()
        assertion = form.split("assertion=")[1].split("&")[0]
        middle = assertion.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        self.asked.append(claims)
        if self.broken:
            return JSONResponse({"error": "invalid_grant"}, 400)
        audience = claims.get("target_audience")
        if audience:
            return JSONResponse({"id_token": self.issuer.mint("svc@demo", audience)})
        return JSONResponse(
            {"access_token": "access-1", "expires_in": 3600, "token_type": "Bearer"}
        )

    def key_file(self, path):
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        content = {
            "type": "service_account",
            "project_id": "demo",
            "private_key_id": "1",
            "private_key": pem.decode(),
            "client_email": "svc@demo.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.server.url}/token",
        }
        path.write_text(json.dumps(content))
        return path


@pytest.fixture
async def google(issuer, tmp_path, monkeypatch):
    made = Google(issuer[0])
    await made.server.start()
    file = made.key_file(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    yield made
    await made.server.stop()


async def test_an_identity_token_for_the_receivers_audience_is_sent_along_and_kept(
    callbacks, receiver, lives, google
):
    await callbacks.put(url=receiver.url, oidc_audience=AUDIENCE)
    await lives.created(5)

    await callbacks.drain(await callbacks.worker())

    tokens = {got.headers["authorization"] for got in receiver.requests}
    assert len(receiver.taken) == 5
    assert len(tokens) == 1
    claims = tokens.pop().split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["aud"] == AUDIENCE
    assert [one["target_audience"] for one in google.asked] == [AUDIENCE]


async def test_without_an_identity_nothing_is_sent(callbacks, receiver, lives, google):
    google.broken = True
    await callbacks.put(url=receiver.url, oidc_audience=AUDIENCE)
    await lives.created()

    await (await callbacks.worker()).live_once()

    assert receiver.requests == []
    assert (await callbacks.get())["last_result"] == "no_identity"


# --- Pub/Sub -------------------------------------------------------------------------------------


class Published:
    """The embedded Pub/Sub, and what it was asked to publish."""

    def __init__(self, folder) -> None:
        self.pubsub = LocalPubSub(lambda *_: "token", data_dir=folder)
        self.pubsub.create_topic(TOPIC)
        self.requests: list[tuple[dict[str, str], dict]] = []
        self.server = LoopbackServer(self)

    async def __call__(self, scope, receive, send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        headers = dict(request.headers)
        self.requests.append((headers, json.loads(body)))

        async def again():
            return {"type": "http.request", "body": body, "more_body": False}

        await self.pubsub.app(scope, again, send)


@pytest.fixture
async def published(callbacks, tmp_path):
    made = Published(tmp_path / "pubsub")
    await made.server.start()
    services = callbacks.services
    settings = services.settings.callbacks.model_copy(
        update={"pubsub_endpoint": made.server.url, "pubsub_identity": "none"}
    )
    object.__setattr__(services, "callbacks", Sender(settings, services.keys))
    yield made
    await made.server.stop()


async def test_a_topic_gets_one_message_an_event_ordered_by_attempt(callbacks, published, lives):
    await callbacks.put(topic=TOPIC, max_batch=100)
    attempt = await lives.one()

    await callbacks.drain(await callbacks.worker())

    [(_, body)] = published.requests
    messages = body["messages"]
    assert [one["attributes"]["type"] for one in messages] == [
        f"attempt.{one}" for one in ("created", "leased", "started", "succeeded")
    ]
    assert {one["orderingKey"] for one in messages} == {attempt}
    for number, one in enumerate(messages, 1):
        event = json.loads(base64.b64decode(one["data"]))
        assert one["attributes"]["id"] == event["id"]
        assert one["attributes"]["attempt_id"] == event["attempt_id"] == attempt
        assert one["attributes"]["event_number"] == str(event["event_number"]) == str(number)


async def test_what_was_published_reaches_a_push_subscription_of_the_topic(
    callbacks, published, lives
):
    end = await Receiver().start()
    published.pubsub.create_subscription(
        "projects/demo/subscriptions/all", TOPIC, end.url, "push@demo", "receiver", ordered=True
    )
    await published.pubsub.start()
    await callbacks.put(topic=TOPIC)
    await lives.one()
    await callbacks.drain(await callbacks.worker())

    for _ in range(500):
        if len(end.requests) == 4:
            break
        await asyncio.sleep(0.02)

    pushed = [json.loads(base64.b64decode(got.json["message"]["data"])) for got in end.requests]
    assert [one["event_number"] for one in pushed] == [1, 2, 3, 4]
    await published.pubsub.stop()
    await end.stop()


async def test_a_topic_that_is_not_there_is_tried_again_and_said(callbacks, published, lives):
    await callbacks.put(topic="projects/demo/topics/missing")
    await lives.created(2)

    await (await callbacks.worker()).live_once()

    standing = await callbacks.get()
    assert (standing["last_status"], standing["state"]) == (404, "failing")


async def test_google_is_asked_for_a_token_of_the_services_own_identity(
    callbacks, published, lives, google
):
    services = callbacks.services
    settings = services.callbacks.settings.model_copy(update={"pubsub_identity": "google"})
    object.__setattr__(services, "callbacks", Sender(settings, services.keys))
    await callbacks.put(topic=TOPIC)
    await lives.created(2)

    await callbacks.drain(await callbacks.worker())

    assert {headers["authorization"] for headers, _ in published.requests} == {"Bearer access-1"}
    assert [one["scope"] for one in google.asked] == ["https://www.googleapis.com/auth/pubsub"]
