"""Answers about events."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.records import Event


class TimelineEvent(Event):
    """One line of an attempt's timeline, and how long after the one before it came."""

    seconds_after_previous: float | None
    """Since the event before it; null for the first."""


class EventPage(Page):
    """The timeline of one attempt, oldest first."""

    items: list[TimelineEvent]
    """The events of this page."""


class FeedItem(Answer):
    """One event, the same wherever it is told: in the feed, in its stream, in callbacks."""

    id: UUID
    """Stable: the same in every reading and delivery."""
    type: str
    """Such as `attempt.succeeded`."""
    timestamp: datetime
    """When it happened."""
    attempt_id: UUID
    """The attempt."""
    event_number: int
    """1, 2, 3 … within the attempt; the feed keeps this order."""
    data: dict[str, Any]
    """The facts of it."""


class FeedPage(Answer):
    """Events of all attempts, in the order of the feed."""

    items: list[FeedItem]
    """The events of this page; none when nothing happened within the wait."""
    next_cursor: str
    """Give it as `after` to go on; keep it with what you did about the events."""
    caught_up: bool
    """Whether this was all that could be read at that moment."""
