"""The REST edge: Google's shapes in both directions, and its limits."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from contextlib import asynccontextmanager

import httpx
import pytest

from app.embedded.pubsub import LocalPubSub

TOPIC = "projects/demo/topics/commands"
SUBSCRIPTION = "projects/demo/subscriptions/push"
FULL = {
    "topic": TOPIC,
    "pushConfig": {
        "pushEndpoint": "https://service.test/push",
        "oidcToken": {"serviceAccountEmail": "push@demo.test", "audience": "https://service.test"},
    },
    "ackDeadlineSeconds": 20,
    "retryPolicy": {"minimumBackoff": "10s", "maximumBackoff": "300.5s"},
    "deadLetterPolicy": {
        "deadLetterTopic": "projects/demo/topics/dead",
        "maxDeliveryAttempts": 7,
    },
    "enableMessageOrdering": True,
}


def token(account: str, audience: str) -> str:
    return f"token of {account} for {audience}"


@asynccontextmanager
async def client_of(pubsub: LocalPubSub):
    transport = httpx.ASGITransport(app=pubsub.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://pubsub.test") as client:
        yield client


@pytest.fixture
def pubsub():
    pubsub = LocalPubSub(token)
    pubsub.create_topic(TOPIC)
    pubsub.create_topic("projects/demo/topics/dead")
    return pubsub


@pytest.fixture
async def rest(pubsub):
    async with client_of(pubsub) as client:
        yield client


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


async def test_topics_are_created_shown_and_listed(rest):
    created = await rest.put("/v1/projects/demo/topics/events")

    shown = await rest.get("/v1/projects/demo/topics/events")
    listed = await rest.get("/v1/projects/demo/topics")
    others = await rest.get("/v1/projects/other/topics")

    assert created.json() == shown.json() == {"name": "projects/demo/topics/events"}
    assert {"name": "projects/demo/topics/events"} in listed.json()["topics"]
    assert others.json() == {"topics": []}


async def test_subscription_comes_back_as_it_was_given(rest):
    created = await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)

    shown = await rest.get(f"/v1/{SUBSCRIPTION}")
    listed = await rest.get("/v1/projects/demo/subscriptions")

    assert created.status_code == 200
    assert shown.json() == {**FULL, "name": SUBSCRIPTION, "state": "ACTIVE"}
    assert listed.json() == {"subscriptions": [shown.json()]}


async def test_subscription_without_options_has_googles_defaults(rest, pubsub):
    body = {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://service.test/push"}}

    created = await rest.put(f"/v1/{SUBSCRIPTION}", json=body)

    assert created.json() == {
        **body,
        "name": SUBSCRIPTION,
        "ackDeadlineSeconds": 10,
        "state": "ACTIVE",
    }
    assert pubsub.get_subscription(SUBSCRIPTION).retry is None


async def test_audience_is_the_endpoint_where_none_is_given(rest):
    push = {
        "pushEndpoint": "https://service.test/push?a=b",
        "oidcToken": {"serviceAccountEmail": "push@demo.test"},
    }

    created = await rest.put(f"/v1/{SUBSCRIPTION}", json={"topic": TOPIC, "pushConfig": push})

    assert created.json()["pushConfig"]["oidcToken"]["audience"] == "https://service.test/push?a=b"


async def test_snake_case_names_are_accepted_too(rest):
    body = {"topic": TOPIC, "push_config": {"push_endpoint": "https://service.test/push"}}

    created = await rest.put(f"/v1/{SUBSCRIPTION}", json=body)

    assert created.json()["pushConfig"] == {"pushEndpoint": "https://service.test/push"}


async def test_deleted_subscription_is_gone(rest):
    await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)

    deleted = await rest.delete(f"/v1/{SUBSCRIPTION}")

    assert (deleted.status_code, deleted.json()) == (200, {})
    assert (await rest.get(f"/v1/{SUBSCRIPTION}")).status_code == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ackDeadlineSeconds": 9}, "10 to 600"),
        ({"ackDeadlineSeconds": 601}, "at most 600"),
        ({"retryPolicy": {"minimumBackoff": "10"}}, "seconds with an s"),
        ({"retryPolicy": {"minimumBackoff": "601s", "maximumBackoff": "601s"}}, "600 s"),
        ({"retryPolicy": {"minimumBackoff": "20s", "maximumBackoff": "10s"}}, "minimumBackoff"),
        ({"deadLetterPolicy": {"deadLetterTopic": TOPIC, "maxDeliveryAttempts": 4}}, "5 to 100"),
        ({"deadLetterPolicy": {"deadLetterTopic": TOPIC, "maxDeliveryAttempts": 101}}, "100"),
        ({"pushConfig": {"pushEndpoint": ""}}, "pull is not modelled"),
        ({"filter": 'attributes.a = "b"'}, "not modelled"),
        ({"enableExactlyOnceDelivery": True}, "enableExactlyOnceDelivery"),
        ({"pushConfig": {"pushEndpoint": "https://s.test", "noWrapper": {}}}, "not modelled"),
        ({"topic": "commands"}, "no name"),
    ],
)
async def test_subscription_that_google_or_this_double_cannot_do_is_refused(rest, change, words):
    answer = await rest.put(f"/v1/{SUBSCRIPTION}", json={**FULL, **change})

    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert answer.json()["error"]["code"] == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "status"),
    [
        ("PUT", f"/v1/{TOPIC}", None, 409, "ALREADY_EXISTS"),
        ("PUT", "/v1/projects/demo/topics/goog-x", None, 400, "INVALID_ARGUMENT"),
        ("PUT", "/v1/projects/demo/topics/ab", None, 400, "INVALID_ARGUMENT"),
        ("GET", "/v1/projects/demo/topics/missing", None, 404, "NOT_FOUND"),
        ("GET", "/v1/projects/demo/subscriptions/missing", None, 404, "NOT_FOUND"),
        ("DELETE", "/v1/projects/demo/subscriptions/missing", None, 404, "NOT_FOUND"),
        ("GET", f"/debug/subscriptions/{SUBSCRIPTION}", None, 404, "NOT_FOUND"),
        ("GET", "/v1/elsewhere", None, 404, "NOT_FOUND"),
        ("PATCH", f"/v1/{TOPIC}", None, 405, "METHOD_NOT_ALLOWED"),
        (
            "POST",
            "/v1/projects/demo/topics/missing:publish",
            {"messages": [{"data": "YQ=="}]},
            404,
            "NOT_FOUND",
        ),
        (
            "PUT",
            f"/v1/{SUBSCRIPTION}",
            {**FULL, "topic": "projects/demo/topics/missing"},
            404,
            "NOT_FOUND",
        ),
        (
            "PUT",
            f"/v1/{SUBSCRIPTION}",
            {**FULL, "deadLetterPolicy": {"deadLetterTopic": "projects/demo/topics/missing"}},
            404,
            "NOT_FOUND",
        ),
    ],
)
async def test_refusals_have_googles_shape(rest, *, method, path, body, code, status):
    answer = await rest.request(method, path, json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["status"]) == (code, code, status)
    assert error["message"]


async def test_subscription_name_can_be_taken_once(rest):
    await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)

    again = await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)

    assert again.json()["error"]["status"] == "ALREADY_EXISTS"


async def test_publish_answers_with_one_decimal_id_a_message_in_order(rest, pubsub):
    await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)
    messages = [
        {"data": encoded(b'{"id": "first"}'), "attributes": {"a": "b"}, "orderingKey": "k"},
        {"data": encoded(b'{"id": "second"}')},
        {"attributes": {"only": "attributes"}},
    ]

    answer = await rest.post(f"/v1/{TOPIC}:publish", json={"messages": messages})

    ids = answer.json()["messageIds"]
    assert len(set(ids)) == 3
    assert ids == sorted(ids, key=int)
    assert [entry.message_id for entry in pubsub.ledger] == ids
    assert [entry.envelope_id for entry in pubsub.ledger] == ["first", "second", None]


@pytest.mark.parametrize(
    "data",
    [
        b64encode(b"\xfb\xff?").decode(),
        urlsafe_b64encode(b"\xfb\xff?").decode(),
        b64encode(b"a").decode().rstrip("="),
    ],
)
async def test_both_alphabets_of_base64_are_accepted_with_or_without_padding(rest, data):
    answer = await rest.post(f"/v1/{TOPIC}:publish", json={"messages": [{"data": data}]})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "1 to 1000"),
        ([{"data": "YQ=="}] * 1001, "1 to 1000"),
        ([{}], "messages[0]"),
        ([{"data": "YQ=="}, {"data": ""}], "messages[1]"),
        ([{"data": "a*b="}], "not base64"),
        ([{"data": "YQ==", "attributes": {f"k{i}": "" for i in range(101)}}], "100 attributes"),
        ([{"attributes": {"": "x"}}], "key"),
        ([{"attributes": {"k" * 257: "x"}}], "256 bytes"),
        ([{"attributes": {"k": "ä" * 513}}], "1024 bytes"),
        ([{"attributes": {"k": 1}}], "messages.0.attributes.k"),
        ([{"data": "YQ==", "orderingKey": "k" * 1025}], "ordering key"),
        ([{"data": encoded(bytes(5_000_001))}] * 2, "10000000 bytes"),
    ],
)
async def test_publish_over_a_limit_is_refused_as_a_whole(rest, pubsub, messages, words):
    await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)

    answer = await rest.post(f"/v1/{TOPIC}:publish", json={"messages": messages})

    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert words in answer.json()["error"]["message"]
    assert list(pubsub.ledger) == []


async def test_largest_message_that_google_allows_is_accepted(rest):
    attributes = {f"{i:03}".ljust(256, "k"): "v" * 1024 for i in range(100)}
    message = {"data": encoded(bytes(10_000_000)), "attributes": attributes}

    answer = await rest.post(f"/v1/{TOPIC}:publish", json={"messages": [message]})

    assert answer.status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"messages": "x"}'])
async def test_publish_that_is_no_request_is_refused(rest, body):
    answer = await rest.post(f"/v1/{TOPIC}:publish", content=body)

    assert answer.json()["error"]["code"] == 400


async def test_endless_request_is_refused(rest):
    async def endless():
        while True:
            yield bytes(1024 * 1024)

    answer = await rest.post(f"/v1/{TOPIC}:publish", content=endless())

    assert answer.json()["error"]["code"] == 413


async def test_debug_page_shows_what_waits(rest, pubsub):
    await rest.put(f"/v1/{SUBSCRIPTION}", json=FULL)
    await pubsub.publish(TOPIC, b"one")
    await pubsub.publish(TOPIC, b"two", ordering_key="k")
    await pubsub.publish(TOPIC, b"three", ordering_key="k")

    one = (await rest.get(f"/debug/subscriptions/{SUBSCRIPTION}")).json()
    every = (await rest.get("/debug/subscriptions")).json()

    assert one["backlog"] == 3
    assert (one["in_flight"], one["window"], one["last_status"]) == (0, 4, None)
    assert every == {"subscriptions": [one]}
