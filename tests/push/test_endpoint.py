"""The push endpoint as a stranger meets it: one route, bounded, alike to every bad token."""

import asyncio
import json

import httpx
import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.embedded.front_door import FrontDoor
from app.embedded.issuer import new_key
from app.embedded.serving import LoopbackServer
from app.handlers.registry import Context, Registry
from tests.push.conftest import delivery, envelope
from tests.push.service import Add

EVENTARC = "?__GCP_CloudEventsMode=CUSTOM_PUBSUB_projects%2Fp%2Ftopics%2Ft"


def holding(reached: asyncio.Event, go_on: asyncio.Event) -> Registry:
    """A handler that is at work until it is told to go on."""
    registry = Registry()

    @registry.handler("ledger.add", Add)
    async def add(context: Context, command: Add) -> None:
        reached.set()
        await go_on.wait()

    return registry


# --- one route ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/push/pubsub/", "/push//pubsub", "/push/PubSub", "/push"])
async def test_there_is_one_exact_route_and_no_redirect_to_it(path, pusher):
    answer = await pusher.call("POST", path, json=delivery(envelope()))

    assert (answer.status_code, answer.json()["reason"]) == (404, "not-found")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE"])
async def test_route_takes_posts_only(method, pusher):
    answer = await pusher.call(method, "/push/pubsub")

    assert answer.status_code == 405
    assert answer.headers["Allow"] == "POST"


async def test_delivery_by_eventarc_is_taken(open_instance, pusher_to, ledger):
    pusher = pusher_to(await open_instance())
    hints = {"ce-id": "7", "ce-type": "google.cloud.pubsub.topic.v1.messagePublished"}

    answer = await pusher.call(
        "POST", f"/push/pubsub{EVENTARC}", json=delivery(envelope()), headers=hints
    )

    assert answer.status_code == 204
    assert await ledger() == [1]


async def test_content_type_does_not_matter(open_instance, pusher_to, ledger):
    pusher = pusher_to(await open_instance())
    body = json.dumps(delivery(envelope())).encode()

    answer = await pusher.call(
        "POST", "/push/pubsub", content=body, headers={"Content-Type": "text/plain"}
    )

    assert answer.status_code == 204
    assert await ledger() == [1]


# --- no identity ----------------------------------------------------------------------------------


def bad_tokens(issuer) -> dict[str, list[str]]:
    good = issuer.mint(ACCOUNTS["pubsub"], AUDIENCE)
    claims = issuer.claims(ACCOUNTS["pubsub"], AUDIENCE)
    head, body, signature = good.split(".")
    return {
        "another key": [issuer.sign(claims, key=new_key())],
        "signature of another token": [f"{head}.{body}.{signature[::-1]}"],
        "stripped by the platform": [f"{head}.{body}.SIGNATURE_REMOVED_BY_GOOGLE"],
        "unknown key id": [issuer.sign(claims, kid="none")],
        "expired": [issuer.mint(ACCOUNTS["pubsub"], AUDIENCE, exp=1, iat=0)],
        "another audience": [issuer.mint(ACCOUNTS["pubsub"], "https://other.example")],
        "another issuer": [issuer.mint(ACCOUNTS["pubsub"], AUDIENCE, iss="https://evil.example")],
        "no token at all": ["x"],
        "two headers": [good, good],
        "endless": ["a" * 9000],
    }


async def test_every_bad_token_gets_the_same_answer(http, issuer):
    answers = set()
    for values in bad_tokens(issuer[0]).values():
        headers = [("Authorization", f"Bearer {value}") for value in values]
        answer = await http.post("/push/pubsub", json=delivery(envelope()), headers=headers)
        told = {k: v for k, v in answer.headers.items() if k != "request-id"}
        answers.add((answer.status_code, answer.content, tuple(sorted(told.items()))))

    [(status, content, told)] = answers
    assert (status, content) == (401, b"")
    assert dict(told)["www-authenticate"] == 'Bearer error="invalid_token"'


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, b"not json"),
        ({"Content-Encoding": "gzip"}, b"\x1f\x8b"),
        ({"Content-Length": "999999999"}, b"{"),
    ],
)
async def test_identity_is_asked_for_before_anything_else(headers, body, http):
    answer = await http.post("/push/pubsub", content=body, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


async def test_identity_comes_from_the_authorization_header_alone(http, push_token):
    others = {
        "X-Serverless-Authorization": f"Bearer {push_token}",
        "X-Goog-Authenticated-User-Email": f"accounts.google.com:{ACCOUNTS['pubsub']}",
        "X-Goog-IAP-JWT-Assertion": push_token,
        "User-Agent": "APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)",
    }

    answer = await http.post("/push/pubsub", json=delivery(envelope()), headers=others)

    assert answer.status_code == 401


async def test_token_whose_signature_the_platform_removed_does_not_pass_its_door(
    open_service, own_sql, push_token
):
    """Behind the door of Cloud Run a push passes, and a token from the other header does not."""

    async def verify(token: str) -> str | None:
        return ACCOUNTS["pubsub"] if token == push_token else None

    service = await open_service()
    door = FrontDoor(service.url, verify, [ACCOUNTS["pubsub"]])
    server = LoopbackServer(door)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url) as client:
        answers = [
            await client.post(
                "/push/pubsub", json=delivery(envelope()), headers={name: f"Bearer {push_token}"}
            )
            for name in ("Authorization", "X-Serverless-Authorization")
        ]
    await server.stop()
    await door.aclose()

    assert [answer.status_code for answer in answers] == [204, 401]


# --- limits ---------------------------------------------------------------------------------------


async def test_more_deliveries_than_may_be_in_flight_come_back_at_once(
    open_instance, pusher_to, sql
):
    reached, go_on = asyncio.Event(), asyncio.Event()
    http = await open_instance(holding(reached, go_on), PUSH__MAX_IN_FLIGHT=2)
    pusher = pusher_to(http)

    busy = [asyncio.create_task(pusher.push("ledger.add", {"number": n})) for n in range(2)]
    await reached.wait()
    async with asyncio.timeout(20):
        refused = await pusher.push("ledger.add", {"number": 3})
    go_on.set()

    assert (refused.status_code, refused.content) == (503, b"")
    assert [answer.status_code for answer in await asyncio.gather(*busy)] == [204, 204]
    assert (await pusher.push("ledger.add", {"number": 3})).status_code == 204
    assert await sql.fetchval("SELECT count(*) FROM message_failures") == 0


async def test_more_bytes_than_may_be_in_flight_come_back_unread(open_instance, pusher_to):
    reached, go_on = asyncio.Event(), asyncio.Event()
    http = await open_instance(
        holding(reached, go_on),
        PUSH__MAX_IN_FLIGHT_BYTES=1024 * 1024,
        SERVER__MAX_BODY_BYTES=1024 * 1024,
    )
    pusher = pusher_to(http)
    read = 0

    async def pieces():
        nonlocal read
        for _ in range(16):
            read += 65_536
            yield b" " * 65_536

    busy = asyncio.create_task(pusher.push("ledger.add", {"number": 1}))
    await reached.wait()
    refused = await pusher.call("POST", "/push/pubsub", content=pieces())
    go_on.set()

    assert refused.status_code == 503
    assert read <= 65_536
    assert (await busy).status_code == 204


async def test_handler_and_all_around_it_have_one_time_budget(open_instance, pusher_to, sql):
    http = await open_instance(
        holding(asyncio.Event(), asyncio.Event()), PUSH__HANDLER_TIMEOUT_SECONDS=0.3
    )
    began = asyncio.get_running_loop().time()

    answer = await pusher_to(http).push("ledger.add", {"number": 1})

    assert answer.status_code == 503
    assert asyncio.get_running_loop().time() - began < 5
    assert await sql.fetchval("SELECT failures FROM message_failures") == 1


async def test_body_that_does_not_arrive_in_time_is_not_the_messages_fault(
    open_instance, pusher_to, sql
):
    http = await open_instance(PUSH__HANDLER_TIMEOUT_SECONDS=0.2)

    async def never_ending():
        yield b"{"
        await asyncio.Event().wait()

    answer = await pusher_to(http).call("POST", "/push/pubsub", content=never_ending())

    assert answer.status_code == 503
    assert await sql.fetchval("SELECT count(*) FROM message_failures") == 0


async def test_stopping_instance_takes_no_message_any_more(open_instance, pusher_to, ledger):
    http = await open_instance()
    http._transport.app.state.draining.set()

    answer = await pusher_to(http).push("ledger.add", {"number": 1})

    assert answer.status_code == 503
    assert await ledger() == []


# --- ambiguity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"v": 1, "to": "ledger.add", "to": "ledger.add", "id": %s, "data": {"number": 1}}',
        '{"v": 1, "to": "ledger.add", "id": %s, "data": {"number": 1, "number": 2}}',
        '{"v": 1, "to": "ledger.add", "id": %s, "data": {"number": NaN}}',
        '{"v": 1, "to": "ledger.add", "id": %s, "data": {"number": -Infinity}}',
        '{"v": 1, "to": "ledger.add", "id": %s, "data": {"number": 1e131071}}',
    ],
)
async def test_envelope_that_can_be_read_in_two_ways_is_recorded(
    text, open_instance, pusher_to, ledger, sql
):
    pusher = pusher_to(await open_instance())

    answer = await pusher.push_bytes((text % f'"{envelope()["id"]}"').encode())

    assert answer.status_code == 204
    assert await sql.fetchval("SELECT reason FROM dead_letters") == "envelope-invalid"
    assert await ledger() == []


async def test_wrapper_that_can_be_read_in_two_ways_is_refused(pusher):
    body = json.dumps(delivery(envelope()))
    doubled = body[:-1] + f', "subscription": "{SUBSCRIPTION}"}}'

    answer = await pusher.call("POST", "/push/pubsub", content=doubled.encode())

    assert answer.status_code == 400


async def test_large_message_is_taken_without_holding_up_others(open_instance, pusher_to, ledger):
    """Ten megabytes of data, as large as Pub/Sub's messages can be."""
    http = await open_instance()
    pusher = pusher_to(http)
    large = asyncio.create_task(
        pusher.push_envelope(envelope(padding=["x" * 1000] * 9_900), messageId="1")
    )
    small = [await pusher.push("ledger.add", {"number": number}) for number in range(2, 5)]

    assert [answer.status_code for answer in [await large, *small]] == [204] * 4
    assert await ledger() == [1, 2, 3, 4]
