"""The wrapped form in which Pub/Sub (and Eventarc) push a message."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.domain import jsontext
from app.domain.errors import BodyNotJson, EnvelopeInvalid

_MAX_NAME = 300


@dataclass(frozen=True, slots=True)
class Delivery:
    """One push delivery: everything but the message's content may be missing or strange."""

    subscription: str
    message_id: str
    published_at: datetime | None
    attributes: dict[str, str]
    data: bytes | None
    fault: str | None
    """Why there is no data, if there is none."""


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
        message_id=_text(message.get("messageId") or message.get("message_id")),
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


def _moment(value: Any) -> datetime | None:
    """RFC 3339 with any number of fraction digits; anything else is as good as none."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
