"""Answers about callback subscriptions and what was sent for them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.callbacks import DeliveryKind, PauseReason, Result
from app.domain.subscriptions import SecretRef


class SigningSecret(Answer):
    """Which versions of the signing secret are valid. The secrets themselves are not shown."""

    version: int
    """Counts from 1."""
    previous_until: datetime | None
    """Until when the version before is valid too; null: it is not."""


class ReplayStanding(Answer):
    """The last replay that was asked for."""

    request_id: UUID
    """Of the request."""
    asked_at: datetime | None
    """When it was asked for."""
    running: bool
    """Whether there is more to send of a range. Of an attempt: see `parked` in the log."""
    sent: int
    """Events of the range sent again so far."""


class CallbackSubscription(Answer):
    """A callback subscription, and how it stands."""

    name: str
    """Its name."""
    url: str | None
    """The receiver."""
    topic: str | None
    """The Pub/Sub topic, in place of a URL."""
    event_types: list[str] | None
    """Only these; null: all."""
    operation_ids: list[UUID] | None
    """Only of these; null: all."""
    job_types: list[str] | None
    """Only of these; null: all."""
    headers: dict[str, SecretRef]
    """Further headers, their values by reference."""
    oidc_audience: str | None
    """The audience of the identity token that is sent along."""
    max_batch: int
    """Events a request at most."""
    timeout_seconds: int
    """Deadline of one request."""
    pause_after_seconds: int
    """Pause when nothing was accepted for so long."""
    signing_secret: str | None = None
    """`whsec_…`, only in the answer that made it: keep it now."""
    secret: SigningSecret
    """Its versions."""
    state: Literal["active", "failing", "paused"]
    """`failing`: the last try got nothing accepted, and there will be another."""
    cursor: str
    """Everything of the feed up to here was accepted, did not match, or is parked."""
    behind: int | None = None
    """How many events are still to come, counted up to 1000; null: not counted here."""
    delivered: int
    """Events accepted so far, repeats among them."""
    parked: int
    """Attempts that wait apart, since the receiver refused one of their events."""
    failures: int
    """Tries in a row that got nothing accepted."""
    failing_since: datetime | None
    """Since when."""
    next_try_at: datetime | None
    """When it is tried next; null: at once, or, while paused, never."""
    paused_at: datetime | None
    """Since when nothing is sent until somebody resumes it."""
    pause_reason: PauseReason | None
    """Why."""
    last_success_at: datetime | None
    """When something was accepted last."""
    last_failure_at: datetime | None
    """When a try got nothing accepted last."""
    last_result: Result | None
    """How that try ended."""
    last_status: int | None
    """The receiver's status then; null: it gave none."""
    last_detail: str | None
    """More about it, never in the receiver's words."""
    last_event_id: UUID | None
    """The event that it was about."""
    gap_until: datetime | None
    """Events created before this moment may be missing: they were removed by age, undelivered."""
    replay: ReplayStanding | None
    """The last replay."""
    created_at: datetime
    """When it was created."""
    created_by: str
    """By whom."""
    updated_at: datetime
    """When it was changed last."""
    updated_by: str
    """By whom."""


class CallbackPage(Page):
    """Callback subscriptions, by name."""

    items: list[CallbackSubscription]
    """The subscriptions of this page."""


class CallbackTest(Answer):
    """What became of a test event."""

    webhook_id: str
    """The id that it was sent with."""
    result: Result
    """How it ended."""
    sentence: str
    """The same for people."""
    status: int | None
    """The receiver's status; null: it gave none."""
    milliseconds: int
    """How long it took."""


class CallbackDelivery(Answer):
    """One request to a receiver."""

    id: UUID
    """Made by this service."""
    kind: DeliveryKind
    """Why it was made."""
    webhook_id: str
    """Its `webhook-id`."""
    event_ids: list[UUID]
    """The events in it."""
    attempt_id: UUID | None
    """The attempt of its one event; null: it held several."""
    event_number: int | None
    """The number of that event."""
    sent_at: datetime
    """When it was sent."""
    milliseconds: int
    """How long it took."""
    result: Result
    """How it ended."""
    sentence: str
    """The same for people."""
    status: int | None
    """The receiver's status; null: it gave none."""
    detail: str | None
    """More about it, never in the receiver's words."""
    excerpt: str | None
    """The beginning of what a receiver said that did not accept, masked."""


class CallbackDeliveryPage(Page):
    """Requests to a receiver, newest first."""

    items: list[CallbackDelivery]
    """The requests of this page."""
