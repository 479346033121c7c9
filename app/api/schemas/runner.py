"""Answers that runners get. Cadences are durations, so a runner's clock cannot matter."""

from __future__ import annotations

from uuid import UUID

from app.api.schemas.control import Answer
from app.domain.lifecycle import LogStream, Status
from app.domain.records import Attempt, Lease, Runner


class Cadence(Answer):
    """How the lease lives."""

    lease_seconds: float
    """It ends so long after the last accepted sign of life."""
    heartbeat_every_seconds: float
    """How often to beat."""


class ClaimedLease(Answer):
    """One lease of a claim's answer."""

    lease: Lease
    """The lease. It lives `claim_grace_seconds` until its first beat or start."""
    lease_token: str | None
    """Shows the right to act under the lease; null for one that has ended since."""
    attempt: Attempt
    """What is to be done."""
    continuation: bool
    """Whether an earlier lease on this attempt has ended."""


class Claimed(Cadence):
    """Leases given to a runner."""

    leases: list[ClaimedLease]
    """Empty: there was nothing to claim."""
    claim_grace_seconds: float
    """Life of a fresh lease until its first beat or start."""


class LeaseAnswer(Cadence):
    """What a live lease is answered."""

    action: str
    """`continue`, or `cancel`: stop the work, then complete with outcome `cancelled`."""
    lease_id: UUID
    """The lease."""
    attempt_id: UUID
    """The attempt."""
    attempt_status: Status
    """Its status now."""
    cancel_reason: str | None = None
    """Why it is to be cancelled."""


class CompletedAnswer(Answer):
    """The ended attempt."""

    attempt: Attempt
    """As it is stored now and for ever."""


class LogPosition(Answer):
    """Where a log stream stands."""

    stream: LogStream
    """The stream."""
    next_offset: int
    """Send on from here."""
    need_more: bool
    """True: nothing was stored since no safe cut was found; send these bytes again with more."""
    final: bool
    """Whether the stream is closed."""
    mask_refused: list[int]
    """The places in `mask` (then `mask_base64`) of values that are too short or too long to be
    looked for, or too many. They are not masked."""


class RegisteredRunner(Cadence):
    """A registered runner."""

    runner: Runner
    """As it is shown."""
    session_began: bool
    """False: this session was registered already."""
    claim_grace_seconds: float
    """Life of a fresh lease until its first beat or start."""
