"""Ends that no completion caused: what the settings mean, and one call a cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from app import failpoints
from app.settings import LeaseSettings
from app.store import ends
from app.store.database import Connection
from app.store.ends import Cause, End, Rules


def rules_of(settings: LeaseSettings) -> Rules:
    """The rules that the settings give."""
    return Rules(
        start_timeout=timedelta(seconds=settings.start_timeout_seconds),
        cancel_grace=timedelta(seconds=settings.cancel_grace_seconds),
        max_started_leases=settings.max_started_leases,
        resumable=tuple(like(job_type) for job_type in settings.resumable_job_types),
    )


def like(job_type: str) -> str:
    """The LIKE pattern of a job type that may end in `.*`; `_` is an ordinary character in it."""
    return job_type.replace("_", r"\_").replace("*", "%")


async def sweep(
    conn: Connection, rules: Rules, attempt_ids: Sequence[UUID], *, backs_off: bool = True
) -> list[End]:
    """End what has come due of these attempts; those that somebody works on wait for the next."""
    free = await ends.lock(conn, attempt_ids, skip_locked=True)
    ended = await ends.decide(conn, free, Cause.SWEEP, rules, backs_off=backs_off)
    if failpoints.ARMED:
        await failpoints.hit("sweep.mid_batch")
    return ended


async def revoke(
    conn: Connection, rules: Rules, lease_ids: Sequence[UUID], reason: str
) -> list[End]:
    """Take these leases from their holders."""
    return await _end_leases(conn, rules, lease_ids, Cause.REVOCATION, reason)


async def take_back(
    conn: Connection,
    rules: Rules,
    lease_ids: Sequence[UUID],
    reason: str,
    *,
    backs_off: bool = True,
) -> list[End]:
    """Release these leases; one that has started only where its job may be begun again."""
    return await _end_leases(conn, rules, lease_ids, Cause.RELEASE, reason, backs_off=backs_off)


async def _end_leases(
    conn: Connection,
    rules: Rules,
    lease_ids: Sequence[UUID],
    cause: Cause,
    reason: str,
    *,
    backs_off: bool = True,
) -> list[End]:
    attempt_ids = await ends.attempts_of(conn, lease_ids)
    locked = await ends.lock(conn, attempt_ids)
    return await ends.decide(
        conn, locked, cause, rules, lease_ids=lease_ids, reason=reason or None, backs_off=backs_off
    )
