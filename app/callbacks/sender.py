"""Targets: one a subscription, which takes events in order and says what became of them."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import httpx

from app.callbacks import guard, header_secrets, signing
from app.callbacks.exchange import Answer, Exchange
from app.callbacks.google import GoogleTokens, IdentityMissing
from app.callbacks.guard import GuardedBackend, Resolve
from app.callbacks.header_secrets import SecretMissing
from app.callbacks.pubsub import MAX_MESSAGES, Message, Publisher
from app.callbacks.signing import SecretVersion
from app.domain import receivers
from app.domain.addresses import Rules
from app.domain.callbacks import Result, Subscription, batch_id
from app.domain.feed import FeedEvent, dump
from app.domain.keys import KeyRetired, KeyRing
from app.settings import CallbackSettings

_USER_AGENT = "execution-plane-service"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request to a receiver."""

    webhook_id: str
    events: tuple[FeedEvent, ...]
    answer: Answer


class Sender:
    """Makes targets. What they share holds no connection, so none can hold up another."""

    def __init__(
        self, settings: CallbackSettings, keys: KeyRing, resolve: Resolve = guard.resolve
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.rules: Rules = settings.rules
        self._resolve = resolve
        self._tokens = GoogleTokens()
        self._tls: ssl.SSLContext | None = None

    def target(self, subscription: Subscription) -> Target:
        """The target of a subscription as it is now; close it in the end."""
        if subscription.topic is not None:
            return TopicTarget(self, subscription)
        return HttpsTarget(self, subscription)

    def exchange(self, rules: Rules) -> Exchange:
        """Connections of one target's own."""
        backend = GuardedBackend(rules, self._resolve)
        return Exchange(backend, self._trust(), self.settings.max_concurrency)

    def _trust(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
            if self.settings.ca_file is not None:
                self._tls.load_verify_locations(self.settings.ca_file)
        return self._tls

    @property
    def tokens(self) -> GoogleTokens:
        """Tokens of the service's own identity."""
        return self._tokens


class Target(ABC):
    """Where the events of one subscription go."""

    def __init__(self, sender: Sender, subscription: Subscription, rules: Rules) -> None:
        self._sender = sender
        self._subscription = subscription
        self._exchange = sender.exchange(rules)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._exchange.close()

    @property
    def max_batch(self) -> int:
        """How many events it takes at once; the same attempt's stay in order."""
        return self._subscription.max_batch

    @abstractmethod
    async def send(self, events: Sequence[FeedEvent]) -> Sent:
        """Send them in one request. It never raises: what went wrong is in the answer."""


class HttpsTarget(Target):
    """A receiver by Standard Webhooks."""

    def __init__(self, sender: Sender, subscription: Subscription) -> None:
        super().__init__(sender, subscription, sender.rules)

    async def send(self, events: Sequence[FeedEvent]) -> Sent:
        """One body an event, or `{"events": […]}` where more than one may come."""
        webhook_id, body = self._body(events)
        return Sent(webhook_id, tuple(events), await self.post(webhook_id, body))

    def _body(self, events: Sequence[FeedEvent]) -> tuple[str, bytes]:
        if self.max_batch == 1:
            [event] = events
            return str(event.id), dump(event)
        bodies = b",".join(dump(event) for event in events)
        return str(batch_id([event.id for event in events])), b'{"events":[' + bodies + b"]}"

    async def post(self, webhook_id: str, body: bytes) -> Answer:
        """Sign and send one body."""
        subscription = self._subscription
        url = subscription.url or ""
        try:
            receivers.read(url, self._sender.rules)
            headers = await self._headers(webhook_id, body)
        except ValueError:
            return Answer(Result.ADDRESS_REFUSED, detail="the URL is not allowed any more")
        except SecretMissing as missing:
            return Answer(Result.NO_SECRET, detail=str(missing))
        except KeyRetired:
            return Answer(Result.NO_SECRET, detail="the signing key was retired; rotate the secret")
        except IdentityMissing as error:
            return Answer(Result.NO_IDENTITY, detail=str(error))
        return await self._exchange.post(url, headers, body, subscription.timeout_seconds)

    async def _headers(self, webhook_id: str, body: bytes) -> dict[str, str]:
        sender, subscription = self._sender, self._subscription
        headers = header_secrets.resolve(sender.settings, subscription.headers)
        if subscription.oidc_audience is not None:
            token = await sender.tokens.identity_token(subscription.oidc_audience)
            headers["authorization"] = f"Bearer {token}"
        secrets = [
            signing.secret_of(sender.keys, subscription.id, one) for one in versions(subscription)
        ]
        return {
            **headers,
            "content-type": "application/json",
            "user-agent": _USER_AGENT,
            **signing.signed_headers(secrets, webhook_id, body),
        }


def versions(subscription: Subscription) -> list[SecretVersion]:
    """The secret's versions that are valid now, the newest first."""
    found = [SecretVersion(subscription.secret_version, subscription.secret_key_id)]
    if subscription.previous_key_id is not None:
        before = subscription.secret_version - 1
        found.append(SecretVersion(before, subscription.previous_key_id))
    return found


class TopicTarget(Target):
    """A Pub/Sub topic: one message an event, ordered by attempt."""

    def __init__(self, sender: Sender, subscription: Subscription) -> None:
        # Its address comes from the settings, not from a caller.
        super().__init__(sender, subscription, _ANYWHERE)
        settings = sender.settings
        tokens = sender.tokens if settings.pubsub_identity == "google" else None
        self._publisher = Publisher(settings.pubsub_endpoint, self._exchange, tokens)

    @property
    def max_batch(self) -> int:
        """At most what one publish request may hold."""
        return min(self._subscription.max_batch, MAX_MESSAGES)

    async def send(self, events: Sequence[FeedEvent]) -> Sent:
        """Publish them in one request; a batch is all in the topic or not at all."""
        topic = self._subscription.topic or ""
        messages = [_message(event) for event in events]
        answer = await self._publisher.publish(topic, messages, self._subscription.timeout_seconds)
        ids = [event.id for event in events]
        return Sent(str(ids[0] if len(ids) == 1 else batch_id(ids)), tuple(events), answer)


def _message(event: FeedEvent) -> Message:
    attributes = {
        "type": event.type,
        "id": str(event.id),
        "attempt_id": str(event.attempt_id),
        "event_number": str(event.event_number),
        "operation_id": str(event.operation_id),
        "job_type": event.job_type,
    }
    return Message(dump(event), attributes, str(event.attempt_id))


_ANYWHERE = Rules(networks=guard.ALL_NETWORKS)
