"""Ends of leases that no completion caused: what the settings mean, and one call for all causes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from app.domain.lifecycle import LeaseStatus
from app.settings import LeaseSettings
from app.store import ends
from app.store.database import Connection
from app.store.ends import LeaseEnd, Rules


def rules_of(settings: LeaseSettings) -> Rules:
    """The rules that the settings give."""
    return Rules(
        start_timeout=timedelta(seconds=settings.start_timeout_seconds),
        cancel_grace=timedelta(seconds=settings.cancel_grace_seconds),
        max_started_leases=settings.max_started_leases,
        resumable=tuple(_like(job_type) for job_type in settings.resumable_job_types),
    )


def _like(job_type: str) -> str:
    """The LIKE pattern of a job type that may end in `.*`; `_` is an ordinary character in it."""
    return job_type.replace("_", r"\_").replace("*", "%")


async def expire(
    conn: Connection, rules: Rules, lease_ids: Sequence[UUID], *, backs_off: bool = True
) -> list[LeaseEnd]:
    """End those of these leases that have really expired."""
    return await ends.end_leases(
        conn,
        lease_ids,
        LeaseStatus.EXPIRED,
        rules,
        message="The runner fell silent and its lease expired.",
        backs_off=backs_off,
    )


async def revoke(
    conn: Connection, rules: Rules, lease_ids: Sequence[UUID], reason: str
) -> list[LeaseEnd]:
    """Take these leases from their holders."""
    return await ends.end_leases(
        conn,
        lease_ids,
        LeaseStatus.REVOKED,
        rules,
        message="The lease was taken from its runner.",
        reason=reason,
    )
