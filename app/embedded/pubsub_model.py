"""The things of the local Pub/Sub: topics, subscriptions, messages, and Google's limits on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

MAX_MESSAGES = 1000
MAX_DATA_BYTES = 10_000_000
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
MAX_SECONDS = 600  # of an ack deadline and of a retry delay
MAX_DELIVERY_ATTEMPTS = 100

_NAME = re.compile(
    r"projects/(?P<project>[^/\s]{1,128})/(?P<kind>topics|subscriptions)/"
    r"(?P<id>(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254})"
)
_STATUSES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    413: "INVALID_ARGUMENT",
}


class PubSubRefused(Exception):
    """A request that the local Pub/Sub does not accept; `code` is the HTTP status it gets."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> str:
        """Google's word for the code."""
        return _STATUSES.get(self.code, "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a publisher sends: a message without an id and a time."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A published message. `message_id` is unique in the topic and the same in each delivery."""

    message_id: str
    topic: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    published_at: datetime


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential delay between two deliveries of the same message, in seconds."""

    minimum_seconds: float = 10.0
    maximum_seconds: float = 600.0

    def delay(self, nacks: int, jitter: float) -> float:
        """The wait after the `nacks`-th refusal; `jitter` in [0, 1) takes off up to a fifth."""
        doubled = self.minimum_seconds * 2.0 ** min(nacks - 1, 64)
        return max(self.minimum_seconds, min(self.maximum_seconds, doubled) * (1 - 0.2 * jitter))


@dataclass(frozen=True, slots=True)
class Subscription:
    """A push subscription. `retry` is None for "again at once"; no account means no token."""

    name: str
    topic: str
    push_endpoint: str
    service_account: str = ""
    audience: str = ""
    ack_deadline_seconds: float = 10.0
    retry: RetryPolicy | None = None
    dead_letter_topic: str | None = None
    max_delivery_attempts: int = 5
    ordered: bool = False

    @property
    def token_audience(self) -> str:
        """The `aud` of its tokens: the endpoint's address where none was set."""
        return self.audience or self.push_endpoint


def check_name(name: str, kind: Literal["topics", "subscriptions"]) -> tuple[str, str]:
    """Split `projects/{project}/{kind}/{id}` into project and id, or refuse the name."""
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] != kind:
        raise PubSubRefused(
            400,
            f"{name[:300]!r} is no name: expected projects/<project>/{kind}/<id>, the id 3 to 255 "
            "characters, beginning with a letter and not with goog",
        )
    return match["project"], match["id"]


def check_subscription(subscription: Subscription) -> None:
    """Refuse a subscription that Google would refuse, shorter deadlines and delays excepted.

    A test needs those, so the lower bounds are checked at the REST edge only.
    """
    check_name(subscription.name, "subscriptions")
    check_name(subscription.topic, "topics")
    if not subscription.push_endpoint.startswith(("https://", "http://")):
        raise PubSubRefused(
            400, "pushConfig.pushEndpoint must be an http(s) address; pull is not modelled here"
        )
    if not 0 < subscription.ack_deadline_seconds <= MAX_SECONDS:
        raise PubSubRefused(400, f"ackDeadlineSeconds must be at most {MAX_SECONDS}")
    if not 1 <= subscription.max_delivery_attempts <= MAX_DELIVERY_ATTEMPTS:
        raise PubSubRefused(400, f"maxDeliveryAttempts must be at most {MAX_DELIVERY_ATTEMPTS}")
    if subscription.retry is not None:
        _check_retry(subscription.retry)


def _check_retry(policy: RetryPolicy) -> None:
    if not 0 <= policy.minimum_seconds <= policy.maximum_seconds <= MAX_SECONDS:
        raise PubSubRefused(
            400, "retryPolicy needs 0 s <= minimumBackoff <= maximumBackoff <= 600 s"
        )


def check_drafts(drafts: Sequence[Draft]) -> None:
    """Refuse a publish request as a whole if it, or one message of it, breaks a limit."""
    if not 1 <= len(drafts) <= MAX_MESSAGES:
        raise PubSubRefused(400, f"a publish request carries 1 to {MAX_MESSAGES} messages")
    if sum(len(draft.data) for draft in drafts) > MAX_DATA_BYTES:
        raise PubSubRefused(400, f"the data of a publish request exceeds {MAX_DATA_BYTES} bytes")
    for number, draft in enumerate(drafts):
        problem = _problem_of(draft)
        if problem:
            raise PubSubRefused(400, f"messages[{number}]: {problem}")


def _problem_of(draft: Draft) -> str | None:
    if not draft.data and not draft.attributes:
        return "a message needs data or at least one attribute"
    if len(draft.attributes) > MAX_ATTRIBUTES:
        return f"more than {MAX_ATTRIBUTES} attributes"
    if len(draft.ordering_key.encode()) > MAX_ORDERING_KEY_BYTES:
        return f"the ordering key exceeds {MAX_ORDERING_KEY_BYTES} bytes"
    for key, value in draft.attributes.items():
        if not 1 <= len(key.encode()) <= MAX_ATTRIBUTE_KEY_BYTES:
            return f"an attribute's key must have 1 to {MAX_ATTRIBUTE_KEY_BYTES} bytes"
        if len(value.encode()) > MAX_ATTRIBUTE_VALUE_BYTES:
            return f"an attribute's value exceeds {MAX_ATTRIBUTE_VALUE_BYTES} bytes"
    return None


def rfc3339(moment: datetime) -> str:
    """The moment as Pub/Sub writes it: UTC with milliseconds and a Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
