"""Pushing one subscription's messages to its endpoint, as Pub/Sub does it."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from app.embedded.pubsub_flow import PushBackoff, PushTuning, PushWindow
from app.embedded.pubsub_ledger import Delivery
from app.embedded.pubsub_model import Subscription, rfc3339
from app.embedded.pubsub_queue import Pending, Push, PushQueue

ACKS = frozenset({102, 200, 201, 202, 204})
QUIET_SECONDS = 10.0  # after a line in the log that speaks of a refusal

_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate, br",
    "from": "noreply@google.com",
    "user-agent": "APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)",
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PushPorts:
    """What a pusher needs from outside.

    `post(url, headers, body)` gives the status of an answer, `mint(account, audience)` a token.
    `acked` is told of each message's first ack, `used_up` of one that was refused as often as its
    dead-letter policy allows, `changed` of every push.
    """

    post: Callable[[str, Mapping[str, str], bytes], Awaitable[int]]
    mint: Callable[[str, str], str]
    acked: Callable[[Pending], None]
    used_up: Callable[[Pending, Subscription], None]
    changed: Callable[[], None]


def wrapped(pending: Pending, subscription: Subscription) -> bytes:
    """The body of a push: the message under both spellings of its id and time."""
    message = pending.message
    published = rfc3339(message.published_at)
    fields: dict[str, Any] = {
        "attributes": dict(message.attributes),
        "data": b64encode(message.data).decode(),
        "messageId": message.message_id,
        "message_id": message.message_id,
        "orderingKey": message.ordering_key,
        "publishTime": published,
        "publish_time": published,
    }
    body: dict[str, Any] = {
        "message": {name: value for name, value in fields.items() if value},
        "subscription": subscription.name,
    }
    if subscription.dead_letter_topic is not None:
        body["deliveryAttempt"] = pending.nacks + 1
    return orjson.dumps(body)


class Pusher:
    """One subscription at work: `run` pushes until `finish` is called."""

    def __init__(
        self,
        subscription: Subscription,
        queue: PushQueue,
        tuning: PushTuning,
        rng: random.Random,
    ) -> None:
        self.subscription = subscription
        self.in_flight = 0
        self.last: Delivery | None = None
        self.window = PushWindow(tuning)
        self.backoff = PushBackoff(tuning)
        self._queue = queue
        self._rng = rng
        self._wake = asyncio.Event()
        self._finishing = False
        self._quiet_until = 0.0

    @property
    def backlog(self) -> int:
        """Pushes that wait."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether a push waits or is in flight."""
        return self.in_flight > 0 or bool(self._queue)

    def add(self, pending: Pending) -> None:
        """Accept a published message."""
        self._queue.add(pending)
        self._wake.set()

    def finish(self) -> None:
        """Begin no further push."""
        self._finishing = True
        self._wake.set()

    async def run(self, ports: PushPorts) -> None:
        """Push what is due, as many at once as the window allows, and wait for the next.

        Returns after `finish`, once the pushes in flight have ended; cancelling breaks them off.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as pushes:
            while not self._finishing:
                self._wake.clear()
                while (push := self._take(loop.time())) is not None:
                    self.in_flight += 1
                    pushes.create_task(self._push(push, ports))
                ports.changed()
                await self._until_wanted(loop.time())

    def _take(self, now: float) -> Push | None:
        if self.in_flight >= self.window.size or self.backoff.remaining(now):
            return None
        return self._queue.take(now)

    async def _until_wanted(self, now: float) -> None:
        """Wait for a change, for the end of a pause, or for the next delayed push."""
        wait = self.backoff.remaining(now) or None
        due = self._queue.next_due()
        if wait is None and due is not None and self.in_flight < self.window.size:
            wait = max(0.0, due - now)
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _push(self, push: Push, ports: PushPorts) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        attempt = push.pending.nacks + 1
        status, error = await self._post(push.pending, ports)
        delivery = Delivery(attempt, status, loop.time() - started, error)
        self.in_flight -= 1
        self._record(push.pending, delivery, loop.time())
        self._settle(push, acked=status in ACKS, now=loop.time(), ports=ports)
        self._wake.set()
        ports.changed()

    async def _post(self, pending: Pending, ports: PushPorts) -> tuple[int | None, str]:
        """Send one request; the status, or None and what went wrong."""
        to = self.subscription
        try:
            headers = dict(_HEADERS)
            if to.service_account:
                token = ports.mint(to.service_account, to.token_audience)
                headers["authorization"] = f"Bearer {token}"
            async with asyncio.timeout(to.ack_deadline_seconds):
                return await ports.post(to.push_endpoint, headers, wrapped(pending, to)), ""
        except TimeoutError:
            return None, f"no answer within the ack deadline of {to.ack_deadline_seconds:g} s"
        except Exception as error:  # noqa: BLE001  whatever it was, the message comes again
            return None, f"{type(error).__name__}: {error}"

    def _record(self, pending: Pending, delivery: Delivery, now: float) -> None:
        pending.entry.record(delivery)
        failed = delivery.status not in ACKS
        self.last = delivery
        if failed:
            self._complain(delivery, now)
            self.window.failed()
            self.backoff.nacked(now)
        else:
            self.window.acked(delivery.seconds)
            self.backoff.acked()

    def _complain(self, delivery: Delivery, now: float) -> None:
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            _log.warning(
                "push_refused",
                subscription=self.subscription.name,
                status=delivery.status,
                error=delivery.error,
            )

    def _settle(self, push: Push, *, acked: bool, now: float, ports: PushPorts) -> None:
        """Decide what a push's outcome means for its message."""
        pending = push.pending
        if pending.entry.settled or (push.repeat and not acked):
            self._queue.done(push)
        elif acked:
            ports.acked(pending)
            self._queue.done(push)
        else:
            self._refused(push, now, ports)

    def _refused(self, push: Push, now: float, ports: PushPorts) -> None:
        pending, to = push.pending, self.subscription
        pending.nacks += 1
        if to.dead_letter_topic is not None and pending.nacks >= to.max_delivery_attempts:
            ports.used_up(pending, to)
            self._queue.done(push)
            return
        delay = to.retry.delay(pending.nacks, self._rng.random()) if to.retry else 0.0
        self._queue.retry(push, now + delay)
