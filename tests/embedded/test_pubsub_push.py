"""Pushes over real sockets to a real receiver: what it sees, and what its answer causes."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from base64 import b64decode
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from app.embedded.pubsub import LocalPubSub
from app.embedded.pubsub_flow import PushTuning
from app.embedded.pubsub_ledger import Ledger
from app.embedded.pubsub_model import PubSubRefused
from app.embedded.pubsub_push import ACKS

TOPIC = "projects/demo/topics/commands"
DEAD = "projects/demo/topics/dead"
SUBSCRIPTION = "projects/demo/subscriptions/push"
ACCOUNT = "push@demo.test"
# Refusals cost no time here; the arithmetic of pauses has tests of its own.
AT_ONCE = PushTuning(pause_min_seconds=0.0)
ONE_BY_ONE = PushTuning(window_max=1, pause_min_seconds=0.0)


@dataclass
class Received:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def push(self):
        return json.loads(self.body)

    @property
    def data(self) -> str:
        return b64decode(self.push["message"].get("data", "")).decode()


@dataclass
class Receiver:
    """A push endpoint. `answer(request)` gives a status, or the bytes to answer with."""

    answer: object
    url: str = ""
    received: list[Received] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0
    connections: set[asyncio.Task] = field(default_factory=set)

    @property
    def texts(self) -> list[str]:
        return [request.data for request in self.received]

    async def serve(self, reader, writer):
        self.connections.add(asyncio.current_task())
        try:
            while True:
                request = await read_request(reader)
                self.received.append(request)
                self.busy += 1
                self.most_busy = max(self.most_busy, self.busy)
                try:
                    answer = await self.answer(request)
                finally:
                    self.busy -= 1
                raw = answer if isinstance(answer, bytes) else b"HTTP/1.1 %d X\r\n" % answer
                if answer not in {102, 204} and not isinstance(answer, bytes):
                    raw += b"content-length: 0\r\n"
                writer.write(raw if isinstance(answer, bytes) else raw + b"\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    async def hang_up(self):
        for connection in self.connections:
            connection.cancel()
        await asyncio.gather(*self.connections)


async def read_request(reader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in head[1:] if line]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs)
    body = await reader.readexactly(int(headers["content-length"]))
    return Received(head[0].split(" ")[1], headers, body)


def always(status):
    async def answer(request):
        return status

    return answer


def in_turn(*statuses):
    """Each message gets these answers one after the other, and then the last one again."""
    seen = Counter()

    async def answer(request):
        message_id = request.push["message"]["messageId"]
        seen[message_id] += 1
        return statuses[min(seen[message_id], len(statuses)) - 1]

    return answer


@asynccontextmanager
async def receiving(answer, tls=None, port=0):
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, ssl=tls, backlog=512)
    scheme = "https" if tls else "http"
    receiver.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/push"
    try:
        yield receiver
    finally:
        server.close()
        await receiver.hang_up()
        await server.wait_closed()


def mint(account, audience):
    return f"{account}.{audience}.signature"


@asynccontextmanager
async def pushing(endpoint, *, started=True, subscription=None, **options):
    """A local Pub/Sub with one topic, its dead-letter topic, and one subscription."""
    pubsub = LocalPubSub(**{"mint": mint, "tuning": AT_ONCE, **options})
    pubsub.create_topic(TOPIC)
    pubsub.create_topic(DEAD)
    settings = {
        "service_account": ACCOUNT,
        "audience": "https://service.test",
        **(subscription or {}),
    }
    pubsub.create_subscription(SUBSCRIPTION, TOPIC, endpoint, **settings)
    try:
        if started:
            await pubsub.start()
        yield pubsub
    finally:
        await pubsub.stop()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def delivered(pubsub, message_id):
    """The statuses of a message's pushes."""
    (entry,) = pubsub.ledger.of(message_id)
    return [delivery.status for delivery in entry.deliveries]


# The request


async def test_smallest_message_is_wrapped_as_google_wraps_it():
    clock = lambda: datetime(2021, 2, 26, 19, 13, 55, 749_000, tzinfo=UTC)  # noqa: E731

    async with receiving(always(204)) as receiver, pushing(receiver.url, clock=clock) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"Hello")
        await pubsub.drained(5)

    assert message_id.isdecimal()
    assert receiver.received[0].push == {
        "message": {
            "data": "SGVsbG8=",
            "messageId": message_id,
            "message_id": message_id,
            "publishTime": "2021-02-26T19:13:55.749Z",
            "publish_time": "2021-02-26T19:13:55.749Z",
        },
        "subscription": SUBSCRIPTION,
    }


async def test_message_with_everything_is_wrapped_as_google_wraps_it():
    clock = lambda: datetime(2021, 2, 26, 19, 13, 55, tzinfo=UTC)  # noqa: E731
    options = {"dead_letter_topic": DEAD, "ordered": True}

    async with (
        receiving(always(204)) as receiver,
        pushing(receiver.url, clock=clock, subscription=options) as pubsub,
    ):
        message_id = await pubsub.publish(TOPIC, b"\xff\x00", {"key": "välue"}, "line")
        await pubsub.drained(5)

    assert receiver.received[0].push == {
        "message": {
            "attributes": {"key": "välue"},
            "data": "/wA=",
            "messageId": message_id,
            "message_id": message_id,
            "orderingKey": "line",
            "publishTime": "2021-02-26T19:13:55.000Z",
            "publish_time": "2021-02-26T19:13:55.000Z",
        },
        "subscription": SUBSCRIPTION,
        "deliveryAttempt": 1,
    }


async def test_message_of_attributes_alone_has_no_data_field():
    async with receiving(always(204)) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"", {"only": "this"})
        await pubsub.drained(5)

    assert "data" not in receiver.received[0].push["message"]


async def test_push_has_the_headers_of_a_real_one():
    async with receiving(always(204)) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    request = receiver.received[0]
    assert request.path == "/push"
    assert request.headers.pop("host") in receiver.url
    assert int(request.headers.pop("content-length")) == len(request.body)
    assert request.headers == {
        "content-type": "application/json",
        "authorization": f"Bearer {ACCOUNT}.https://service.test.signature",
        "accept": "application/json",
        "accept-encoding": "gzip, deflate, br",
        "from": "noreply@google.com",
        "user-agent": ("APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)"),
    }


async def test_issuer_is_asked_for_each_push_and_its_reused_token_is_sent_each_time():
    asked, tokens = [], {}

    def reusing(account, audience):
        asked.append((account, audience))
        return tokens.setdefault((account, audience), f"token-{len(asked)}")

    async with (
        receiving(in_turn(503, 204)) as receiver,
        pushing(receiver.url, mint=reusing, subscription={"audience": ""}) as pubsub,
    ):
        await pubsub.publish(TOPIC, b"x")
        await pubsub.publish(TOPIC, b"y")
        await pubsub.drained(5)

    assert asked == [(ACCOUNT, receiver.url)] * 4
    sent = {request.headers["authorization"] for request in receiver.received}
    assert sent == {"Bearer token-1"}


async def test_subscription_without_an_account_sends_no_token():
    async with (
        receiving(always(204)) as receiver,
        pushing(receiver.url, subscription={"service_account": ""}) as pubsub,
    ):
        await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert "authorization" not in receiver.received[0].headers


async def test_failing_issuer_delays_a_message_and_loses_none():
    failures = [OSError("keys unreadable")]

    def failing_once(account, audience):
        if failures:
            raise failures.pop()
        return "token"

    async with receiving(always(204)) as receiver, pushing(receiver.url, mint=failing_once) as p:
        message_id = await p.publish(TOPIC, b"x")
        await p.drained(5)

    (entry,) = p.ledger.of(message_id)
    assert [d.error for d in entry.deliveries] == ["OSError: keys unreadable", ""]
    assert entry.acked


# Acks


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_answer_of_the_ack_set_settles_a_message(status):
    async with receiving(always(status)) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert delivered(pubsub, message_id) == [status]
    assert pubsub.ledger.unsettled() == []


@pytest.mark.parametrize(
    "status", [203, 205, 206, 301, 302, 307, 400, 401, 404, 413, 429, 500, 503]
)
async def test_any_other_answer_is_a_nack(status):
    async with receiving(in_turn(status, 204)) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert delivered(pubsub, message_id) == [status, 204]


async def test_processing_is_in_the_ack_set_but_an_http_client_waits_for_what_follows():
    raw = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"

    async with receiving(always(raw)) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert sorted(ACKS) == [102, 200, 201, 202, 204]
    assert delivered(pubsub, message_id) == [204]


async def test_redirect_is_not_followed():
    elsewhere = b"HTTP/1.1 307 X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"

    async with receiving(in_turn(elsewhere, 204)) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert [request.path for request in receiver.received] == ["/push", "/push"]


async def test_body_and_headers_of_an_answer_mean_nothing():
    odd = (
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nset-cookie: a=b\r\n"
        b"content-length: 8\r\n\r\nnot gzip"
    )

    async with receiving(always(odd)) as receiver, pushing(receiver.url) as pubsub:
        for _ in range(3):
            message_id = await pubsub.publish(TOPIC, b"x")
            await pubsub.drained(5)

    assert delivered(pubsub, message_id) == [200]
    assert all("cookie" not in request.headers for request in receiver.received)


@pytest.mark.parametrize("raw", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_connection_that_ends_without_an_answer_is_a_nack(raw):
    first = True

    async def answer(request):
        nonlocal first
        if not first:
            return 204
        first = False
        if raw:
            return raw + b"\0" * 200_000
        raise ConnectionResetError

    async with receiving(answer) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert delivered(pubsub, message_id) == [None, 204]


async def test_ack_deadline_passed_is_a_nack_although_the_receiver_still_works():
    running, go_on = [], asyncio.Event()

    async def answer(request):
        running.append(request)
        if len(running) == 1:
            await go_on.wait()
        return 204

    async with (
        receiving(answer) as receiver,
        pushing(receiver.url, subscription={"ack_deadline_seconds": 0.1}) as pubsub,
    ):
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)
        still_working = receiver.busy
        go_on.set()

    (entry,) = pubsub.ledger.of(message_id)
    assert still_working == 1
    assert delivered(pubsub, message_id) == [None, 204]
    assert "ack deadline of 0.1 s" in entry.deliveries[0].error
    assert entry.deliveries[0].seconds >= 0.1


# Retries


async def test_refused_message_comes_again_at_once_without_a_retry_policy():
    async with receiving(in_turn(503, 503, 503, 204)) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    (entry,) = pubsub.ledger.of(message_id)
    assert [delivery.attempt for delivery in entry.deliveries] == [1, 2, 3, 4]
    assert {request.push["message"]["messageId"] for request in receiver.received} == {message_id}


async def test_retry_policy_delays_one_message_and_no_other():
    arrivals = []

    async def answer(request):
        arrivals.append((request.data, asyncio.get_running_loop().time()))
        return 503 if len(arrivals) == 1 else 204

    policy = {"retry_min_seconds": 0.2, "retry_max_seconds": 0.2}
    async with receiving(answer) as receiver, pushing(receiver.url, subscription=policy) as pubsub:
        await pubsub.publish(TOPIC, b"refused")
        await until(lambda: arrivals)
        await pubsub.publish(TOPIC, b"other")
        await pubsub.drained(5)

    assert [text for text, _ in arrivals] == ["refused", "other", "refused"]
    assert arrivals[2][1] - arrivals[0][1] >= 0.19


async def test_refusals_stop_the_whole_subscription_for_a_while():
    async def answer(request):
        return 503 if request.data == "poison" and len(receiver.received) == 1 else 204

    tuning = PushTuning(tolerated_nacks=0, pause_min_seconds=0.2)
    async with receiving(answer) as receiver, pushing(receiver.url, tuning=tuning) as pubsub:
        await pubsub.publish(TOPIC, b"poison")
        await until(lambda: pubsub.state(SUBSCRIPTION)["last_status"] == 503)
        good = await pubsub.publish(TOPIC, b"good")
        stopped = pubsub.state(SUBSCRIPTION)
        await pubsub.drained(5)

    assert (stopped["pause_seconds"], stopped["in_flight"], stopped["backlog"]) == (0.2, 0, 2)
    assert delivered(pubsub, good) == [204]


async def test_endpoint_that_is_not_there_yet_gets_its_messages_once_it_is():
    async with receiving(always(204)) as gone:
        pass
    port = int(gone.url.rsplit(":", 1)[1].split("/")[0])

    tuning = PushTuning(pause_min_seconds=0.01, pause_max_seconds=0.05)
    async with pushing(gone.url, tuning=tuning) as pubsub:
        await pubsub.publish(TOPIC, b"x")
        await until(lambda: pubsub.ledger.summary().deliveries >= 3)
        state = pubsub.state(SUBSCRIPTION)
        async with receiving(always(204), port=port) as receiver:
            await pubsub.drained(5)
            await pubsub.stop()

    assert state["last_status"] is None
    assert "ConnectError" in state["last_error"]
    assert state["pause_seconds"] > 0
    assert receiver.texts == ["x"]


async def test_waiting_for_the_end_says_what_has_not_ended():
    async with receiving(always(503)) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"x")

        with pytest.raises(TimeoutError, match=SUBSCRIPTION):
            await pubsub.drained(0.05)


# Window


async def test_no_more_requests_are_in_flight_than_the_window_allows():
    go_on = asyncio.Event()

    async def answer(request):
        await go_on.wait()
        return 204

    tuning = PushTuning(window_start=4, window_max=16)
    async with receiving(answer) as receiver, pushing(receiver.url, tuning=tuning) as pubsub:
        for _ in range(100):
            await pubsub.publish(TOPIC, b"x")
        await until(lambda: receiver.busy == 4)
        at_start = pubsub.state(SUBSCRIPTION)["in_flight"]
        go_on.set()
        await pubsub.drained(5)
        at_end = pubsub.state(SUBSCRIPTION)["window"]

    assert (at_start, at_end) == (4, 16)
    assert receiver.most_busy <= 16


async def test_window_grows_with_acks_and_is_halved_by_a_refusal():
    async with receiving(in_turn(204)) as receiver, pushing(receiver.url) as pubsub:
        for _ in range(12):
            await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)
        grown = pubsub.state(SUBSCRIPTION)["window"]
        receiver.answer = in_turn(503, 204)
        await pubsub.publish(TOPIC, b"y")
        await pubsub.drained(5)

    assert grown == 16
    assert pubsub.state(SUBSCRIPTION)["window"] == 9


# Dead letters


async def test_message_refused_too_often_goes_to_the_dead_letter_topic():
    options = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    async with (
        receiving(always(503)) as receiver,
        receiving(always(204)) as morgue,
        pushing(receiver.url, subscription=options) as pubsub,
    ):
        pubsub.create_subscription(
            "projects/demo/subscriptions/morgue", DEAD, morgue.url, ACCOUNT, "aud"
        )
        message_id = await pubsub.publish(TOPIC, b"poison", {"mine": "kept"})
        await pubsub.drained(5)

    (entry,) = pubsub.ledger.of(message_id)
    first, copy = receiver.received[0].push, morgue.received[0].push
    assert [request.push["deliveryAttempt"] for request in receiver.received] == [1, 2, 3, 4, 5]
    assert entry.dead_lettered
    assert not entry.acked
    assert copy["message"]["messageId"] == entry.dead_letter_id != message_id
    assert "deliveryAttempt" not in copy
    assert copy["message"]["data"] == first["message"]["data"]
    assert copy["message"]["attributes"] == {
        "mine": "kept",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "push",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "demo",
        "CloudPubSubDeadLetterSourceTopicPublishTime": first["message"]["publishTime"],
    }


async def test_missed_deadlines_and_dead_connections_count_as_attempts():
    async def answer(request):
        if request.push["deliveryAttempt"] == 1:
            await asyncio.Event().wait()
        raise ConnectionResetError

    options = {
        "dead_letter_topic": DEAD,
        "max_delivery_attempts": 2,
        "ack_deadline_seconds": 0.05,
    }
    async with receiving(answer) as receiver, pushing(receiver.url, subscription=options) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    assert delivered(pubsub, message_id) == [None, None]
    assert pubsub.ledger.summary().dead_lettered == 1


# Ordering keys


async def test_one_message_of_an_ordering_key_is_out_at_a_time():
    busy, most_busy = Counter(), Counter()

    async def answer(request):
        key = request.push["message"]["orderingKey"]
        busy[key] += 1
        most_busy[key] = max(most_busy[key], busy[key])
        await asyncio.sleep(0)
        busy[key] -= 1
        return 204

    async with (
        receiving(answer) as receiver,
        pushing(receiver.url, started=False, subscription={"ordered": True}) as pubsub,
    ):
        for number in range(60):
            await pubsub.publish(TOPIC, str(number).encode(), ordering_key=f"key-{number % 3}")
        await pubsub.start()
        await pubsub.drained(5)

    assert most_busy == {"key-0": 1, "key-1": 1, "key-2": 1}
    for key in range(3):
        mine = [int(text) for text in receiver.texts if int(text) % 3 == key]
        assert mine == sorted(mine)
        assert len(mine) == 20


async def test_refused_message_holds_back_its_ordering_key_and_no_other():
    refuse = True

    async def answer(request):
        return 503 if refuse and request.data == "a1" else 204

    async with (
        receiving(answer) as receiver,
        pushing(receiver.url, subscription={"ordered": True}) as pubsub,
    ):
        for text, key in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("c", "")]:
            await pubsub.publish(TOPIC, text.encode(), ordering_key=key)
        await until(lambda: {"b1", "b2", "c"} <= set(receiver.texts))
        before = list(receiver.texts)
        refuse = False
        await pubsub.drained(5)

    assert "a2" not in before
    assert receiver.texts[-1] == "a2"


async def test_dead_lettered_message_lets_its_ordering_key_go_on():
    async def answer(request):
        return 503 if request.data == "poison" else 204

    options = {"ordered": True, "dead_letter_topic": DEAD, "max_delivery_attempts": 3}
    async with receiving(answer) as receiver, pushing(receiver.url, subscription=options) as pubsub:
        await pubsub.publish(TOPIC, b"poison", ordering_key="k")
        await pubsub.publish(TOPIC, b"next", ordering_key="k")
        await pubsub.drained(5)

    assert receiver.texts == ["poison"] * 3 + ["next"]


async def test_ordering_key_means_nothing_to_a_subscription_that_is_not_ordered():
    go_on = asyncio.Event()

    async def answer(request):
        await go_on.wait()
        return 204

    async with receiving(answer) as receiver, pushing(receiver.url) as pubsub:
        for _ in range(3):
            await pubsub.publish(TOPIC, b"x", ordering_key="k")
        await until(lambda: receiver.busy == 3)
        go_on.set()
        await pubsub.drained(5)

    assert receiver.received[0].push["message"]["orderingKey"] == "k"


# Duplicates and reordering


async def arrivals(**options):
    """The texts of 100 messages, in the order in which they arrive one by one."""
    ordered = options.pop("ordered", False)
    async with (
        receiving(always(204)) as receiver,
        pushing(
            receiver.url,
            started=False,
            tuning=ONE_BY_ONE,
            subscription={"ordered": ordered},
            **options,
        ) as pubsub,
    ):
        for number in range(100):
            await pubsub.publish(TOPIC, str(number).encode(), ordering_key="k" * ordered)
        await pubsub.start()
        await pubsub.drained(20)
    assert pubsub.ledger.summary().acked == 100
    return [int(text) for text in receiver.texts]


async def test_without_coins_messages_arrive_once_and_in_order():
    assert await arrivals() == list(range(100))


async def test_duplicates_are_the_same_message_sent_again():
    texts = await arrivals(duplicate_rate=0.3, seed=7)

    times = Counter(texts)
    assert set(times) == set(range(100))
    assert set(times.values()) == {1, 2}
    assert 15 < len(texts) - 100 < 45


async def test_every_message_can_come_twice():
    texts = await arrivals(duplicate_rate=1.0)

    assert set(Counter(texts).values()) == {2}


async def test_reordered_messages_are_overtaken_and_none_is_lost():
    texts = await arrivals(reorder_rate=0.3, seed=7)

    assert texts != sorted(texts)
    assert sorted(texts) == list(range(100))


async def test_seed_repeats_duplicates_and_order_exactly():
    coins = {"duplicate_rate": 0.3, "reorder_rate": 0.3}

    first = await arrivals(seed=1, **coins)
    again = await arrivals(seed=1, **coins)
    other = await arrivals(seed=2, **coins)

    assert first == again != other


async def test_repeated_message_of_an_ordering_key_brings_its_followers_again():
    texts = await arrivals(duplicate_rate=0.3, reorder_rate=1.0, ordered=True, seed=3)

    assert set(texts) == set(range(100))
    steps = {after - before for before, after in pairwise(texts)}
    assert steps <= {1, 0, -1, -2, -3}
    assert min(steps) < 0


# Restart


async def test_messages_without_an_ack_outlive_a_restart(tmp_path):
    async def answer(request):
        return 503 if request.data == "refused" else 204

    async with receiving(answer) as receiver, pushing(receiver.url, data_dir=tmp_path) as before:
        acked = await before.publish(TOPIC, b"acked")
        refused = await before.publish(TOPIC, b"refused", {"a": "b"}, "k")
        await until(lambda: len(before.ledger.unsettled()) == 1)
    async with (
        receiving(always(204)) as receiver,
        pushing(receiver.url, data_dir=tmp_path) as after,
    ):
        await after.drained(5)
    async with pushing(receiver.url, data_dir=tmp_path) as third:
        assert list(third.ledger) == []

    (push,) = [request.push for request in receiver.received]
    (entry,) = before.ledger.of(refused)
    assert push["message"]["messageId"] == refused != acked
    assert push["message"]["attributes"] == {"a": "b"}
    assert push["message"]["orderingKey"] == "k"
    assert after.ledger.of(refused)[0].published_at == entry.published_at


async def test_published_messages_outlive_a_kill(tmp_path):
    script = f"""
import asyncio, os
from pathlib import Path
from app.embedded.pubsub import LocalPubSub

pubsub = LocalPubSub(lambda account, audience: "", data_dir=Path({str(tmp_path)!r}))
pubsub.create_topic({TOPIC!r})
pubsub.create_subscription({SUBSCRIPTION!r}, {TOPIC!r}, "http://127.0.0.1:9/", "", "")
for text in (b"one", b"two"):
    print(asyncio.run(pubsub.publish({TOPIC!r}, text)), flush=True)
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    async with (
        receiving(always(204)) as receiver,
        pushing(receiver.url, data_dir=tmp_path, tuning=ONE_BY_ONE) as pubsub,
    ):
        new = await pubsub.publish(TOPIC, b"three")
        await pubsub.drained(5)

    ids = [request.push["message"]["messageId"] for request in receiver.received]
    assert killed.returncode == -9
    assert ids == [*killed.stdout.split(), new]
    assert receiver.texts == ["one", "two", "three"]


async def test_message_ids_go_on_upwards_when_the_clock_went_back(tmp_path):
    clock = lambda: datetime(2030, 1, 1, tzinfo=UTC)  # noqa: E731
    earlier = lambda: datetime(2020, 1, 1, tzinfo=UTC)  # noqa: E731

    async with pushing("http://127.0.0.1:9/", started=False, data_dir=tmp_path, clock=clock) as p:
        first = await p.publish(TOPIC, b"x")
    async with pushing("http://127.0.0.1:9/", started=False, data_dir=tmp_path, clock=earlier) as p:
        second = await p.publish(TOPIC, b"x")

    assert int(second) > int(first)


async def test_dead_letters_outlive_a_restart(tmp_path):
    options = {"dead_letter_topic": DEAD, "max_delivery_attempts": 1}
    morgue_name = "projects/demo/subscriptions/morgue"
    async with (
        receiving(always(503)) as receiver,
        pushing(receiver.url, data_dir=tmp_path, subscription=options) as before,
    ):
        before.create_subscription(morgue_name, DEAD, receiver.url, "", "")
        await before.publish(TOPIC, b"poison")
        await until(lambda: before.ledger.summary().dead_lettered == 1)
    async with (
        receiving(always(204)) as morgue,
        pushing(morgue.url, data_dir=tmp_path, subscription=options) as after,
    ):
        after.create_subscription(morgue_name, DEAD, morgue.url, "", "")
        await after.drained(5)

    assert morgue.texts == ["poison"]
    assert morgue.received[0].push["subscription"] == morgue_name


async def test_push_in_flight_may_end_when_the_pubsub_stops():
    go_on = asyncio.Event()

    async def answer(request):
        await go_on.wait()
        return 204

    async with receiving(answer) as receiver, pushing(receiver.url) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await until(lambda: receiver.busy)
        stopping = asyncio.create_task(pubsub.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping

    assert delivered(pubsub, message_id) == [204]


async def test_receiver_that_hangs_does_not_keep_the_pubsub_from_stopping():
    async def answer(request):
        await asyncio.Event().wait()

    async with receiving(answer) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"x")
        await until(lambda: receiver.busy)
        await pubsub.stop()

    assert len(pubsub.ledger.unsettled()) == 1


async def test_deleted_subscription_is_pushed_to_no_more(tmp_path):
    async with receiving(always(503)) as receiver, pushing(receiver.url, data_dir=tmp_path) as p:
        await p.publish(TOPIC, b"x")
        await until(lambda: receiver.received)
        await p.delete_subscription(SUBSCRIPTION)
        await p.drained(5)
        seen = len(receiver.received)
        p.create_subscription(SUBSCRIPTION, TOPIC, receiver.url, "", "")
        await p.drained(5)

    assert len(receiver.received) == seen
    assert p.ledger.unsettled() == []


async def test_subscription_may_be_deleted_while_its_last_attempt_is_in_flight():
    go_on = asyncio.Event()

    async def answer(request):
        await go_on.wait()
        return 503

    options = {"dead_letter_topic": DEAD, "max_delivery_attempts": 1}
    async with receiving(answer) as receiver, pushing(receiver.url, subscription=options) as pubsub:
        message_id = await pubsub.publish(TOPIC, b"x")
        await until(lambda: receiver.busy)
        deleting = asyncio.create_task(pubsub.delete_subscription(SUBSCRIPTION))
        await asyncio.sleep(0)
        go_on.set()
        await deleting

    (entry,) = pubsub.ledger.of(message_id)
    assert entry.dead_lettered


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A CA file, and a server context with a certificate of that CA for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = certificate("test CA", ca_key, "test CA", ca_key, is_ca=True)
    leaf = certificate("127.0.0.1", key, "test CA", ca_key, is_ca=False)
    pem, encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "ca.pem").write_bytes(ca.public_bytes(pem))
    (directory / "leaf.pem").write_bytes(leaf.public_bytes(pem))
    (directory / "leaf.key").write_bytes(
        key.private_bytes(pem, encoding, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "leaf.pem", directory / "leaf.key")
    return directory / "ca.pem", context


def certificate(subject, key, issuer, issuer_key, *, is_ca):
    def name(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        address = x509.IPAddress(ip_address(subject))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


async def test_push_goes_to_an_endpoint_whose_certificate_the_ca_signed(authority):
    ca_file, context = authority

    async with (
        receiving(always(204), tls=context) as receiver,
        pushing(receiver.url, ca_file=ca_file) as pubsub,
    ):
        await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)
        await pubsub.stop()

    assert receiver.url.startswith("https://")
    assert receiver.texts == ["x"]


async def test_push_is_not_sent_to_an_endpoint_with_a_strange_certificate(authority):
    _, context = authority

    async with receiving(always(204), tls=context) as receiver, pushing(receiver.url) as pubsub:
        await pubsub.publish(TOPIC, b"secret")
        await until(lambda: pubsub.state(SUBSCRIPTION)["last_error"])
        state = pubsub.state(SUBSCRIPTION)
        await pubsub.stop()

    assert "CERTIFICATE_VERIFY_FAILED" in state["last_error"]
    assert receiver.received == []


# Ledger


async def test_ledger_shows_that_under_every_fault_nothing_is_lost(tmp_path):
    numbers = defaultdict(int)

    async def flaky(request):
        text = request.data
        numbers[text] += 1
        if int(json.loads(text)["id"]) % 50 == 0:
            return 400
        return 503 if numbers[text] == 1 and request.body[-5] % 5 == 0 else 204

    options = {"dead_letter_topic": DEAD, "max_delivery_attempts": 3}
    async with (
        receiving(flaky) as receiver,
        pushing(
            receiver.url,
            subscription=options,
            duplicate_rate=0.2,
            reorder_rate=0.2,
            data_dir=tmp_path,
        ) as pubsub,
    ):
        for number in range(500):
            await pubsub.publish(TOPIC, json.dumps({"id": str(number)}).encode())
        await pubsub.drained(30)

    summary = pubsub.ledger.summary()
    assert (summary.published, summary.unsettled) == (500, 0)
    assert (summary.acked, summary.dead_lettered) == (490, 10)
    assert summary.deliveries == len(receiver.received) > 550
    (entry,) = pubsub.ledger.of_envelope("1")
    assert entry.acked


async def test_ledger_keeps_the_newest_settled_messages_and_all_totals():
    async with (
        receiving(always(204)) as receiver,
        pushing(receiver.url, tuning=ONE_BY_ONE, ledger_size=3) as pubsub,
    ):
        ids = [await pubsub.publish(TOPIC, b"x") for _ in range(10)]
        await pubsub.drained(5)

    assert [entry.message_id for entry in pubsub.ledger] == ids[-3:]
    assert pubsub.ledger.summary().published == 10
    assert pubsub.ledger.summary().deliveries == 10


async def test_ledger_never_forgets_what_is_not_settled():
    async with pushing("http://127.0.0.1:9/", started=False, ledger_size=3) as pubsub:
        for _ in range(10):
            await pubsub.publish(TOPIC, b"x")

    assert len(pubsub.ledger.unsettled()) == 10


def test_empty_ledger_has_lost_nothing():
    assert Ledger().unsettled() == []
    assert Ledger().summary().unsettled == 0


async def test_message_goes_to_each_subscription_of_its_topic():
    async with receiving(in_turn(503, 204, 204)) as receiver, pushing(receiver.url) as pubsub:
        pubsub.create_subscription(
            "projects/demo/subscriptions/other", TOPIC, receiver.url, ACCOUNT, "aud"
        )
        message_id = await pubsub.publish(TOPIC, b"x")
        await pubsub.drained(5)

    entries = pubsub.ledger.of(message_id)
    assert {entry.subscription.rsplit("/", 1)[1] for entry in entries} == {"push", "other"}
    assert all(entry.acked for entry in entries)


async def test_message_to_a_topic_without_a_subscription_is_lost_as_google_loses_it():
    async with pushing("http://127.0.0.1:9/", started=False) as pubsub:
        message_id = await pubsub.publish(DEAD, b"x")

    assert pubsub.ledger.of(message_id) == []


async def test_message_to_a_topic_that_is_not_there_is_refused():
    async with pushing("http://127.0.0.1:9/", started=False) as pubsub:
        with pytest.raises(PubSubRefused, match="does not exist"):
            await pubsub.publish("projects/demo/topics/missing", b"x")
