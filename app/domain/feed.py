"""The feed: the place of an event in it, the cursor that a reader keeps, and the one body.

The order is (epoch, xid, attempt_id, event_number). An epoch is one life of the database's
transaction ids: a restore into a new cluster begins another one.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from app.domain.errors import FeedCursorInvalid
from app.domain.lifecycle import EventType

SKEW = timedelta(hours=2)
"""By how much the order of the feed and that of the clock may differ, at most."""

TYPE_PREFIX = "attempt."
EVENT_OF_TYPE = {f"{TYPE_PREFIX}{one.value}": one for one in EventType}
"""Every event type of the feed, such as `attempt.succeeded`, with that of the timeline."""

_FORM = struct.Struct(">BIQ16sIq")  # version, epoch, xid, attempt, event number, microseconds
_CHECK = struct.Struct(">I")
_VERSION = 1
_MAX_NUMBER = 2**31 - 1
_MAX_XID = 2**63 - 1
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """Everything up to and with this place was read. Compares by the place alone."""

    epoch: int
    xid: int
    attempt_id: UUID
    event_number: int
    created_from: datetime = field(compare=False)
    """Nothing that comes after this place was created before this moment."""

    def encode(self) -> str:
        """An opaque text that is safe in a URL and in a header."""
        form = _FORM.pack(
            _VERSION,
            self.epoch,
            self.xid,
            self.attempt_id.bytes,
            self.event_number,
            (self.created_from - _UNIX) // timedelta(microseconds=1),
        )
        return base64.urlsafe_b64encode(form + _CHECK.pack(zlib.crc32(form))).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """The cursor that `encode` made this text of. Raises FeedCursorInvalid for any other."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            form, check = raw[: _FORM.size], raw[_FORM.size :]
            version, epoch, xid, attempt, number, moment = _FORM.unpack(form)
            created_from = _UNIX + timedelta(microseconds=moment)
        except (binascii.Error, struct.error, ValueError, OverflowError):
            raise FeedCursorInvalid from None
        cursor = cls(epoch, xid, UUID(bytes=attempt), number, created_from)
        good = version == _VERSION and check == _CHECK.pack(zlib.crc32(form))
        if not good or cursor.encode() != text or not cursor._is_possible():
            raise FeedCursorInvalid
        return cursor

    def _is_possible(self) -> bool:
        return (
            1 <= self.epoch <= _MAX_NUMBER
            and self.xid <= _MAX_XID
            and self.event_number <= _MAX_NUMBER
            and _UNIX <= self.created_from <= _LAST
        )


def start_of_epoch(epoch: int, created_from: datetime) -> Cursor:
    """The place before the first event of an epoch."""
    return Cursor(epoch, 0, UUID(int=0), 0, created_from)


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event as readers and receivers get it, with its place and what filters ask for."""

    id: UUID
    """Stable: the same in every reading and delivery."""
    type: str
    """Such as `attempt.succeeded`."""
    timestamp: datetime
    attempt_id: UUID
    event_number: int
    data: str
    """A JSON object, as text."""
    operation_id: UUID
    job_type: str
    cursor: Cursor
    """Where it stands: a reader that has it goes on from here."""


def body(event: FeedEvent) -> dict[str, Any]:
    """The one body of an event, everywhere; the same bytes each time by `dump`."""
    return {
        "id": str(event.id),
        "type": event.type,
        "timestamp": event.timestamp.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "attempt_id": str(event.attempt_id),
        "event_number": event.event_number,
        "data": orjson.Fragment(event.data),
    }


def dump(event: FeedEvent) -> bytes:
    """The body as JSON on one line."""
    return orjson.dumps(body(event))
