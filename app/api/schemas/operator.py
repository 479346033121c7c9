"""Answers that operators get about the fleet, the keys and what waits."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.explain import Obstacle, Reason
from app.domain.lifecycle import Status
from app.domain.records import Lease, Runner


class RunnerPage(Page):
    """Runners, by id."""

    items: list[Runner]
    """The runners of this page."""


class RunnerDetail(Answer):
    """One runner and what it holds."""

    runner: Runner
    """As it is shown."""
    leases: list[Lease]
    """Its active leases."""


class WaitReason(Answer):
    """One reason why an attempt waits."""

    reason: Reason
    """Stable, machine-readable."""
    sentence: str
    """For people."""


class RunnerStanding(Answer):
    """How one runner stands to an attempt."""

    runner_id: str
    """The runner."""
    obstacle: Obstacle
    """The first thing that keeps it from taking the attempt; `none`: nothing does."""
    sentence: str
    """For people."""


class KeyHold(Answer):
    """Who has a concurrency key."""

    concurrency_key: str
    """The key."""
    attempt_id: UUID
    """The attempt that has it."""
    attempt_status: Status
    """Its status."""
    lease_number: int
    """The lease under which it was last taken."""
    held_at: datetime
    """Since when."""
    attempt_ended_at: datetime | None
    """When the attempt ended without its runner's word; then the key waits for it."""
    waiting: int
    """How many wait for the key, counted up to 1000."""


class KeyPage(Page):
    """Held concurrency keys, by name."""

    items: list[KeyHold]
    """The holds of this page."""


class FreedKey(Answer):
    """A key that was freed by an operator."""

    concurrency_key: str
    """The key."""
    attempt_id: UUID
    """The ended attempt that had it."""


class PlacementAnswer(Answer):
    """Why an attempt waits."""

    attempt_id: UUID
    """The attempt."""
    status: Status
    """Its status."""
    reasons: list[WaitReason]
    """The truest first."""
    runner_counts: dict[str, int]
    """How many runners of its kind each obstacle keeps away."""
    nearest_runners: list[RunnerStanding]
    """At most 20, those with the least in their way first."""
    position: str | None
    """Its place among claimable attempts with the same demands: `1`, `2` … `10,000+`."""
    hold: KeyHold | None
    """Who has its concurrency key."""


class CancelledOperation(Answer):
    """What a cancel of an operation did."""

    operation_id: UUID
    """The operation."""
    cancelled: int
    """Attempts whose cancellation was asked for by this call."""
