"""The wrapped form in which Pub/Sub (and Eventarc) push a message."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.domain import envelope as envelopes
from app.domain import jsontext
from app.domain.envelope import Envelope
from app.domain.errors import BodyNotJson, EnvelopeInvalid
from app.domain.keys import KeyRing

_MAX_NAME = 300
_PLAIN = re.compile(r"[A-Za-z0-9._~:/@-]{1,128}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One push delivery: everything but the message's content may be missing or strange."""

    subscription: str
    message_id: str
    """Empty unless it is a plain name: it is logged and stored."""
    published_at: datetime | None
    attributes: dict[str, str]
    data: bytes | None
    fault: str | None
    """Why there is no data, if there is none."""


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery that was read to the bottom."""

    delivery: Delivery
    envelope: Envelope | None
    fault: EnvelopeInvalid | None
    """Why there is no envelope, if there is none."""
    digests: tuple[str, ...]
    """What the message is known by, one for each server key, the current key's first."""


def read(body: bytes, keys: KeyRing) -> Received:
    """The delivery in `body` and the message in it. Long bodies are for a thread.

    EnvelopeInvalid if it is no wrapped message at all; what is wrong inside of one is told in the
    outcome, for such a message can be recorded.
    """
    delivery = parse_delivery(body)
    if delivery.data is None:
        return _unreadable(delivery, EnvelopeInvalid(delivery.fault), keys)
    try:
        envelope = envelopes.parse(delivery.data)
    except EnvelopeInvalid as error:
        return _unreadable(delivery, error, keys)
    return Received(delivery, envelope, None, envelope.digests(keys))


def _unreadable(delivery: Delivery, fault: EnvelopeInvalid, keys: KeyRing) -> Received:
    """Known by its bytes, or by its id when it has none."""
    content = delivery.data or delivery.message_id.encode()
    return Received(delivery, None, fault, (keys.mac_text("unreadable-message", content),))


def parse_delivery(body: bytes) -> Delivery:
    """The delivery in `body`. EnvelopeInvalid if it is not a wrapped message at all."""
    try:
        value = jsontext.parse(body)
    except BodyNotJson as error:
        raise EnvelopeInvalid(error.detail) from None
    message = value.get("message") if isinstance(value, dict) else None
    if not isinstance(message, dict):
        raise EnvelopeInvalid(
            "The body is not a wrapped Pub/Sub message; unwrapped delivery is not supported."
        )
    data, fault = _data(message.get("data"))
    attributes = message.get("attributes")
    return Delivery(
        subscription=_text(value.get("subscription")),
        message_id=_name(message.get("messageId")) or _name(message.get("message_id")),
        published_at=_moment(message.get("publishTime") or message.get("publish_time")),
        attributes={
            name: text
            for name, text in (attributes if isinstance(attributes, dict) else {}).items()
            if isinstance(text, str)
        },
        data=data,
        fault=fault,
    )


def _data(value: Any) -> tuple[bytes | None, str | None]:
    if value is None or value == "":
        return None, "The message has no data."
    if not isinstance(value, str):
        return None, "The message's data is not text."
    try:
        return base64.b64decode(value, validate=True), None
    except (binascii.Error, ValueError):
        return None, "The message's data is not base64."


def _text(value: Any) -> str:
    return jsontext.clean(value[:_MAX_NAME]) if isinstance(value, str) else ""


def _name(value: Any) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else ""


def _moment(value: Any) -> datetime | None:
    """RFC 3339 with any number of fraction digits; anything else is as good as none."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
