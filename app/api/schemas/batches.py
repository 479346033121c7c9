"""Answers to batches: one item a command, by position."""

from __future__ import annotations

from typing import Any

from app.api.schemas.control import Answer
from app.api.schemas.runner import LeaseAnswer
from app.domain.records import Attempt


class AttemptItem(Answer):
    """What became of one creation or completion of the batch."""

    status: int
    """The status that it would have had alone."""
    attempt: Attempt | None
    """The attempt; null if it was refused."""
    replayed: bool
    """Whether the same request had done it before."""
    problem: dict[str, Any] | None
    """Why it was refused (RFC 9457)."""


class AttemptItems(Answer):
    """The items of the batch, by position."""

    items: list[AttemptItem]
    """As many as were sent."""


class LeaseItem(Answer):
    """What became of one command of the batch."""

    status: int
    """The status that it would have had alone."""
    lease: LeaseAnswer | None
    """What a live lease is answered; null if it was refused."""
    problem: dict[str, Any] | None
    """Why it was refused (RFC 9457)."""


class LeaseItems(Answer):
    """The items of the batch, by position."""

    items: list[LeaseItem]
    """As many as were sent."""
