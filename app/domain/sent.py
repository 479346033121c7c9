"""What becomes of a message that this service sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from app.domain.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Sent:
    """`word` says how it was settled; None: not yet, and `reason` says why to try again."""

    word: str | None
    reason: str = ""


Deliver = Callable[[Sequence[Envelope]], Awaitable[list[Sent | None]]]
"""Hands envelopes to handlers; one result each, by position, None where there was no time for it.

Never raises ServiceError.
"""
