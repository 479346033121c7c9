"""Callbacks: how a delivery may end, why a subscription pauses, how long it waits in between."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID, uuid5

_BATCHES = UUID("b5d0f4e2-0e0a-5d57-9d2c-5a3c4f6f2a11")
FIRST_PAUSE_SECONDS = 1.0


class Result(StrEnum):
    """How one delivery ended."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    GONE = "gone"
    BUSY = "busy"
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    CERTIFICATE = "certificate"
    ADDRESS_REFUSED = "address_refused"
    NO_SECRET = "no_secret"  # noqa: S105 - the name of a result
    NO_IDENTITY = "no_identity"


SENTENCES = {
    Result.DELIVERED: "The receiver accepted it.",
    Result.REFUSED: "The receiver answered, but not with a 2xx; redirects are not followed.",
    Result.GONE: "The receiver answered 410: it wants nothing any more.",
    Result.BUSY: "The receiver asked for a pause.",
    Result.TIMED_OUT: "There was no complete answer within the deadline.",
    Result.UNREACHABLE: "No connection, or it broke before there was an answer.",
    Result.CERTIFICATE: "The receiver's certificate is not trusted, or is for another name.",
    Result.ADDRESS_REFUSED: "The name leads to an address that callbacks may not be sent to.",
    Result.NO_SECRET: "A secret that a header or the signature needs is not there.",
    Result.NO_IDENTITY: "No identity token could be had for the receiver.",
}

ANSWERED = frozenset({Result.REFUSED, Result.GONE})
"""The receiver is there and does not want this: what may be about one event alone."""


class PauseReason(StrEnum):
    """Why a subscription sends nothing until somebody resumes it."""

    REFUSED_TOO_LONG = "refused_too_long"
    GONE = "gone"
    TOO_MANY_PARKED = "too_many_parked"
    CURSOR_EXPIRED = "cursor_expired"
    FEED_EPOCH_CHANGED = "feed_epoch_changed"


class DeliveryKind(StrEnum):
    """Why something was sent."""

    LIVE = "live"
    PARKED = "parked"
    REPLAY = "replay"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Who wants which events, and how they are to be sent."""

    id: UUID
    """Made at creation: a name that is used again is another subscription, with other secrets."""
    name: str
    url: str | None
    topic: str | None
    event_types: Sequence[str] | None
    operation_ids: Sequence[UUID] | None
    job_types: Sequence[str] | None
    headers: Mapping[str, str]
    """Names, and the references of their values."""
    oidc_audience: str | None
    max_batch: int
    timeout_seconds: int
    pause_after_seconds: int
    secret_version: int
    secret_key_id: str
    previous_key_id: str | None
    """The key of the version before, while that is still valid too."""
    previous_until: datetime | None


def batch_id(event_ids: Sequence[UUID]) -> UUID:
    """The id of a batch: the same for the same events in the same order, and for no others."""
    return uuid5(_BATCHES, " ".join(map(str, event_ids)))


def backoff_seconds(failures: int, longest: float) -> float:
    """The wait after the n-th failure in a row: doubling, between half of it and all of it."""
    whole = min(longest, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 40))
    return whole * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not secrecy
