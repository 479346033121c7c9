"""A Pub/Sub for the laptop and the tests: it publishes, and pushes signed HTTP requests.

It behaves as Google's push subscriptions do in what a push endpoint can notice: the request and
its token, which answers are acks, the ack deadline as the request's timeout, retries, backoff,
the window of parallel requests, ordering keys, dead letters, duplicates and reordering.

What it does not model:

- Google's constants of slow start and push backoff, which are not published: only their ranges
  and directions hold. There is one window, not one a region, and no load-balanced senders.
- 102 as a final answer: it is in the ack set, but HTTP clients go on waiting behind any 1xx.
- Pull, streaming pull, export subscriptions, unwrapped payloads, gRPC.
- Exactly-once delivery, filters, schemas, message transforms, compression.
- Retention and expiry (an undelivered message stays for ever), seek and snapshots.
- IAM, quotas and rates; who may publish or create is not asked. The per-key 1 MB/s limit.
- Updates of topics and subscriptions; deletion of topics.
- Trace headers. Duplicates of a message that was dead-lettered. A second dead-lettering.
- The number of earlier refusals after a restart, which begins at 0; topics and subscriptions are
  not kept either, they are created anew and then find their undelivered messages.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.embedded.pubsub_flow import PushTuning
from app.embedded.pubsub_journal import Journal
from app.embedded.pubsub_ledger import Ledger, LedgerEntry
from app.embedded.pubsub_model import (
    Draft,
    Message,
    PubSubRefused,
    RetryPolicy,
    Subscription,
    check_drafts,
    check_name,
    check_subscription,
    rfc3339,
)
from app.embedded.pubsub_push import Pusher, PushPorts
from app.embedded.pubsub_queue import Coins, Pending, PushQueue
from app.embedded.pubsub_rest import rest_app
from app.embedded.pubsub_sender import Sender

GRACE_SECONDS = 0.5  # for pushes in flight when their subscription stops


def _now() -> datetime:
    return datetime.now(UTC)


class LocalPubSub:
    """Topics, push subscriptions and a ledger of every message. See the module for its limits.

    `mint(account, audience)` gives the token of a push and is asked for each one. Push endpoints'
    certificates must come from `ca_file`, where given. With a `data_dir`, messages that are not
    yet acked or dead-lettered outlive the process. `ledger` answers what became of each message;
    it keeps `ledger_size` settled ones (None: all). Names are Google's full names.

    `duplicate_rate` and `reorder_rate` are probabilities per message, drawn from `seed`.

    Everything runs on one event loop: that of `start`. It is started once and stopped once;
    topics and subscriptions may be created, and messages published, before as well as after.
    """

    def __init__(
        self,
        mint: Callable[[str, str], str],
        ca_file: Path | None = None,
        seed: int = 0,
        *,
        duplicate_rate: float = 0.0,
        reorder_rate: float = 0.0,
        data_dir: Path | None = None,
        tuning: PushTuning | None = None,
        ledger_size: int | None = 10_000,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self.ledger = Ledger(ledger_size)
        self.app = rest_app(self)
        self._mint = mint
        self._ca_file = ca_file
        self._seed = seed
        self._coins = Coins(duplicate_rate, reorder_rate)
        self._tuning = tuning or PushTuning()
        self._clock = clock
        self._journal = Journal(data_dir) if data_dir is not None else None
        newest = self._journal.newest_id() if self._journal else 0
        self._ids = itertools.count(max(newest + 1, int(clock().timestamp() * 1_000_000)))
        self._topics: dict[str, list[Pusher]] = {}
        self._pushers: dict[str, Pusher] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sender: Sender | None = None
        self._ports: PushPorts | None = None
        self._changed = asyncio.Event()

    @property
    def topics(self) -> Sequence[str]:
        """The names of all topics."""
        return list(self._topics)

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """All subscriptions."""
        return [pusher.subscription for pusher in self._pushers.values()]

    def create_topic(self, name: str) -> None:
        """Create `projects/{p}/topics/{t}`; `PubSubRefused` (409) when it is already there."""
        check_name(name, "topics")
        if name in self._topics:
            raise PubSubRefused(409, f"topic {name} already exists")
        self._topics[name] = []

    def create_subscription(
        self,
        name: str,
        topic: str,
        push_endpoint: str,
        service_account: str,
        audience: str,
        ack_deadline_seconds: float = 10.0,
        retry_min_seconds: float | None = None,
        retry_max_seconds: float | None = None,
        dead_letter_topic: str | None = None,
        max_delivery_attempts: int = 5,
        *,
        ordered: bool = False,
    ) -> Subscription:
        """Create a push subscription `projects/{p}/subscriptions/{s}`.

        Without either retry delay a refused message comes again at once; with one of them the
        other has Google's default (10 s, 600 s). Delays and deadlines may be shorter than Google
        allows, for tests.
        """
        retry = None
        if retry_min_seconds is not None or retry_max_seconds is not None:
            longest = 600.0 if retry_max_seconds is None else retry_max_seconds
            shortest = min(10.0, longest) if retry_min_seconds is None else retry_min_seconds
            retry = RetryPolicy(shortest, longest)
        subscription = Subscription(
            name=name,
            topic=topic,
            push_endpoint=push_endpoint,
            service_account=service_account,
            audience=audience,
            ack_deadline_seconds=ack_deadline_seconds,
            retry=retry,
            dead_letter_topic=dead_letter_topic,
            max_delivery_attempts=max_delivery_attempts,
            ordered=ordered,
        )
        self.add_subscription(subscription)
        return subscription

    def add_subscription(self, subscription: Subscription) -> None:
        """Create a subscription; messages that an earlier process left to it are pushed first.

        `PubSubRefused`: 400 for a bad field, 404 for a topic that is not there, 409 for a taken
        name.
        """
        check_subscription(subscription)
        self.require_topic(subscription.topic)
        if subscription.dead_letter_topic is not None:
            self.require_topic(subscription.dead_letter_topic)
        if subscription.name in self._pushers:
            raise PubSubRefused(409, f"subscription {subscription.name} already exists")
        pusher = self._pusher(subscription)
        self._pushers[subscription.name] = pusher
        self._topics[subscription.topic].append(pusher)
        if self._journal is not None:
            for message in self._journal.undelivered(subscription.name):
                self._accept(pusher, message)
        if self._ports is not None:
            self._run(pusher, self._ports)

    def require_topic(self, name: str) -> None:
        """Refuse (404) a topic that is not there."""
        if name not in self._topics:
            raise PubSubRefused(404, f"topic {name} does not exist")

    def get_subscription(self, name: str) -> Subscription:
        """The subscription, or `PubSubRefused` (404)."""
        return self._require(name).subscription

    async def delete_subscription(self, name: str) -> None:
        """Stop its pushes and forget its messages."""
        pusher = self._require(name)
        del self._pushers[name]
        self._topics[pusher.subscription.topic].remove(pusher)
        await self._end([pusher])
        self.ledger.forget(name)
        if self._journal is not None:
            self._journal.remove_all(name)
        self._changed.set()

    async def publish(
        self,
        topic: str,
        data: bytes,
        attributes: Mapping[str, str] | None = None,
        ordering_key: str = "",
    ) -> str:
        """Publish one message and return its id. With a `data_dir` it is then on disk."""
        return self.publish_all(topic, [Draft(data, attributes or {}, ordering_key)])[0]

    def publish_all(self, topic: str, drafts: Sequence[Draft]) -> list[str]:
        """Publish messages in this order, all or none; their ids in the same order."""
        check_drafts(drafts)
        self.require_topic(topic)
        return self._publish(topic, drafts)

    async def start(self) -> None:
        """Begin to push."""
        self._sender = Sender(self._ca_file)
        self._ports = PushPorts(
            post=self._sender.post,
            mint=self._mint,
            acked=self._acked,
            used_up=self._used_up,
            changed=self._changed.set,
        )
        for pusher in self._pushers.values():
            self._run(pusher, self._ports)

    async def stop(self) -> None:
        """Stop: no new push begins, and those in flight get a moment before they are broken off.

        What is not acked by then remains in the journal. An unexpected error of a pusher is raised
        here, if nobody met it in `drained`.
        """
        try:
            await self._end(list(self._pushers.values()))
        finally:
            if self._sender is not None:
                await self._sender.aclose()
            if self._journal is not None:
                self._journal.close()

    async def drained(self, timeout_seconds: float) -> None:
        """Wait until no message waits or is in flight; `TimeoutError` says what still is."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while any(pusher.busy for pusher in self._pushers.values()):
                    self._raise_crashes()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            states = [self.state(name) for name in self._pushers]
            raise TimeoutError(f"not drained after {timeout_seconds:g} s: {states}") from None

    def state(self, name: str) -> dict[str, Any]:
        """How a subscription is doing, for people: backlog, window, pause, the last push."""
        pusher = self._require(name)
        last = pusher.last
        return {
            "subscription": name,
            "push_endpoint": pusher.subscription.push_endpoint,
            "backlog": pusher.backlog,
            "in_flight": pusher.in_flight,
            "window": pusher.window.size,
            "pause_seconds": pusher.backoff.pause_seconds,
            "last_status": last.status if last else None,
            "last_error": last.error if last else "",
            "last_seconds": round(last.seconds, 6) if last else None,
        }

    def _require(self, name: str) -> Pusher:
        pusher = self._pushers.get(name)
        if pusher is None:
            raise PubSubRefused(404, f"subscription {name} does not exist")
        return pusher

    def _pusher(self, subscription: Subscription) -> Pusher:
        # A generator of its own for the coins: delays, which depend on time, draw from another.
        seed = f"{self._seed}:{subscription.name}"
        coins = random.Random(seed)  # noqa: S311  repeatable, not secret
        jitter = random.Random(f"{seed}:jitter")  # noqa: S311
        queue = PushQueue(ordered=subscription.ordered, coins=self._coins, rng=coins)
        return Pusher(subscription, queue, self._tuning, jitter)

    def _publish(self, topic: str, drafts: Sequence[Draft]) -> list[str]:
        pushers = self._topics[topic]
        messages = [
            Message(
                message_id=str(next(self._ids)),
                topic=topic,
                data=draft.data,
                attributes=dict(draft.attributes),
                ordering_key=draft.ordering_key,
                published_at=self._clock(),
            )
            for draft in drafts
        ]
        if self._journal is not None:
            self._journal.add((p.subscription.name, m) for m in messages for p in pushers)
        for message in messages:
            for pusher in pushers:
                self._accept(pusher, message)
        return [message.message_id for message in messages]

    def _accept(self, pusher: Pusher, message: Message) -> None:
        entry = self.ledger.open(message, pusher.subscription.name)
        pusher.add(Pending(message, entry))

    def _acked(self, pending: Pending) -> None:
        self._settle(pending.entry)

    def _used_up(self, pending: Pending, subscription: Subscription) -> None:
        # First the copy: a kill between the two leaves two messages, never none.
        self._settle(pending.entry, self._dead_letter(pending, subscription))

    def _settle(self, entry: LedgerEntry, dead_letter_id: str | None = None) -> None:
        self.ledger.settle(entry, dead_letter_id)
        if self._journal is not None:
            self._journal.remove(entry.subscription, entry.message_id)

    def _dead_letter(self, pending: Pending, subscription: Subscription) -> str:
        """Publish a copy with Google's four attributes; the new message id."""
        message = pending.message
        project, short_name = check_name(subscription.name, "subscriptions")
        source = {
            "CloudPubSubDeadLetterSourceDeliveryCount": str(pending.nacks),
            "CloudPubSubDeadLetterSourceSubscription": short_name,
            "CloudPubSubDeadLetterSourceSubscriptionProject": project,
            "CloudPubSubDeadLetterSourceTopicPublishTime": rfc3339(message.published_at),
        }
        draft = Draft(message.data, {**message.attributes, **source}, message.ordering_key)
        return self._publish(str(subscription.dead_letter_topic), [draft])[0]

    def _run(self, pusher: Pusher, ports: PushPorts) -> None:
        task = asyncio.create_task(pusher.run(ports), name=f"push {pusher.subscription.name}")
        task.add_done_callback(lambda _: self._changed.set())
        self._running[pusher.subscription.name] = task

    def _raise_crashes(self) -> None:
        for task in self._running.values():
            if task.done():
                task.result()

    async def _end(self, pushers: Sequence[Pusher]) -> None:
        """Let pushes in flight end, then break off: a connect broken off may leak its socket."""
        for pusher in pushers:
            pusher.finish()
        names = [pusher.subscription.name for pusher in pushers]
        tasks = [self._running.pop(name) for name in names if name in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
