"""What became of every published message, so that a test can ask whether one was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import orjson

from app.embedded.pubsub_model import Message

KEPT_DELIVERIES = 100  # of one message; more are counted only


@dataclass(frozen=True, slots=True)
class Delivery:
    """One push. `status` is None where no answer came, and `error` then says why."""

    attempt: int
    status: int | None
    seconds: float
    error: str = ""


@dataclass(slots=True)
class LedgerEntry:
    """One message on one subscription. It is settled once it was acked or dead-lettered."""

    message_id: str
    topic: str
    subscription: str
    envelope_id: str | None
    published_at: datetime
    deliveries: deque[Delivery] = field(default_factory=lambda: deque(maxlen=KEPT_DELIVERIES))
    delivery_count: int = 0
    acked: bool = False
    dead_letter_id: str | None = None

    @property
    def dead_lettered(self) -> bool:
        """Whether it was forwarded to the dead-letter topic."""
        return self.dead_letter_id is not None

    @property
    def settled(self) -> bool:
        """Whether nothing more has to happen to it."""
        return self.acked or self.dead_lettered

    def record(self, delivery: Delivery) -> None:
        """Add a push; only the newest are kept, all are counted."""
        self.deliveries.append(delivery)
        self.delivery_count += 1


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Totals since the start, over entries that were dropped from the ledger as well.

    `published` counts a message once for each subscription; one published to a topic without a
    subscription is lost and not counted.
    """

    published: int = 0
    acked: int = 0
    dead_lettered: int = 0
    deliveries: int = 0

    @property
    def unsettled(self) -> int:
        """Messages still to be acked or dead-lettered."""
        return self.published - self.acked - self.dead_lettered


class Ledger:
    """Entries by message and subscription, oldest first.

    At most `keep` settled entries are kept (None: all of them); unsettled ones always are.
    """

    def __init__(self, keep: int | None = 10_000) -> None:
        self._keep = keep
        self._entries: dict[tuple[str, str], LedgerEntry] = {}
        self._settled: deque[tuple[str, str]] = deque()
        self._dropped = LedgerSummary()

    def __iter__(self) -> Iterator[LedgerEntry]:
        """The kept entries, oldest first."""
        return iter(list(self._entries.values()))

    def open(self, message: Message, subscription: str) -> LedgerEntry:
        """Begin the entry of a message that was published to a subscription."""
        entry = LedgerEntry(
            message_id=message.message_id,
            topic=message.topic,
            subscription=subscription,
            envelope_id=_envelope_id(message.data),
            published_at=message.published_at,
        )
        self._entries[message.message_id, subscription] = entry
        return entry

    def settle(self, entry: LedgerEntry, dead_letter_id: str | None = None) -> None:
        """Close an entry: dead-lettered under the given new id, else acked."""
        entry.acked = dead_letter_id is None
        entry.dead_letter_id = dead_letter_id
        self._settled.append((entry.message_id, entry.subscription))
        while self._keep is not None and len(self._settled) > self._keep:
            dropped = self._entries.pop(self._settled.popleft(), None)
            if dropped is not None:
                self._dropped = _sum(self._dropped, dropped)

    def forget(self, subscription: str) -> None:
        """Drop the unsettled entries of a subscription that was deleted: nobody waits for them."""
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if entry.settled or entry.subscription != subscription
        }

    def of(self, message_id: str) -> list[LedgerEntry]:
        """The entries of one message, one a subscription."""
        return [entry for entry in self if entry.message_id == message_id]

    def of_envelope(self, envelope_id: str) -> list[LedgerEntry]:
        """The entries of all messages whose data is a JSON object with this `id`."""
        return [entry for entry in self if entry.envelope_id == envelope_id]

    def unsettled(self) -> list[LedgerEntry]:
        """Messages that were neither acked nor dead-lettered yet; empty when nothing is lost."""
        return [entry for entry in self if not entry.settled]

    def summary(self) -> LedgerSummary:
        """Did every published message get acked or dead-lettered, and with how many pushes."""
        total = self._dropped
        for entry in self:
            total = _sum(total, entry)
        return total


def _sum(total: LedgerSummary, entry: LedgerEntry) -> LedgerSummary:
    return LedgerSummary(
        published=total.published + 1,
        acked=total.acked + entry.acked,
        dead_lettered=total.dead_lettered + entry.dead_lettered,
        deliveries=total.deliveries + entry.delivery_count,
    )


def _envelope_id(data: bytes) -> str | None:
    """The `id` of an envelope, or None for data of any other shape."""
    try:
        envelope = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    found = envelope.get("id") if isinstance(envelope, dict) else None
    return found if isinstance(found, str) else None
