"""Answers to batches: one item a command, by position."""

from __future__ import annotations

from typing import Any

from app.api.schemas.control import Answer
from app.api.schemas.runner import LeaseAnswer
from app.domain.records import Attempt


class AttemptItem(Answer):
    """What became of one attempt of the batch."""

    status: int
    """The status that it would have had alone."""
    attempt: Attempt | None
    """The attempt; null if it was refused."""
    replayed: bool
    """Whether it had been created before by the same request."""
    problem: dict[str, Any] | None
    """Why it was refused (RFC 9457)."""


class AttemptItems(Answer):
    """The items of the batch, by position."""

    items: list[AttemptItem]
    """As many as were sent."""


class HeartbeatItem(Answer):
    """What became of one heartbeat of the batch."""

    status: int
    """The status that it would have had alone."""
    lease: LeaseAnswer | None
    """What a live lease is answered; null if the beat was refused."""
    problem: dict[str, Any] | None
    """Why it was refused (RFC 9457)."""


class HeartbeatItems(Answer):
    """The items of the batch, by position."""

    items: list[HeartbeatItem]
    """As many as were sent."""
