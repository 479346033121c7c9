"""Reads about leases: what decides why a command was not carried out, and an attempt's history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.domain.lifecycle import LeaseStatus
from app.domain.records import Attempt, Lease
from app.store.attempts import COLUMNS
from app.store.claims import LEASE_COLUMNS
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that decides why a command under a lease was not carried out."""

    lease_id: UUID
    attempt: Attempt
    token_hash: str
    status: LeaseStatus
    session_id: UUID
    session_replaced: bool
    started_at: datetime | None
    released_at: datetime | None
    completion_digest: str | None


_DIAGNOSE = f"""
-- diagnoses.diagnose
SELECT l.id AS lease_id, l.lease_token_hash, l.status AS lease_status, l.session_id,
    l.started_at AS lease_started_at, l.released_at, l.completion_digest,
    r.session_id IS DISTINCT FROM l.session_id AS session_replaced, {COLUMNS}
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id
LEFT JOIN runner_instances r ON r.id = l.runner_instance_id
WHERE l.id = ANY($1::uuid[])
"""


async def diagnose(conn: Connection, lease_ids: Sequence[UUID]) -> dict[UUID, Diagnosis]:
    """The state of these leases as the newest snapshot sees it; unknown ones are left out."""
    rows = await conn.fetch(_DIAGNOSE, list(lease_ids))
    return {
        row["lease_id"]: Diagnosis(
            row["lease_id"],
            Attempt.model_validate(dict(row)),
            row["lease_token_hash"],
            LeaseStatus(row["lease_status"]),
            row["session_id"],
            row["session_replaced"],
            row["lease_started_at"],
            row["released_at"],
            row["completion_digest"],
        )
        for row in rows
    }


_LIST_OF_ATTEMPT = f"""
-- diagnoses.list_of_attempt
SELECT {LEASE_COLUMNS} FROM runner_leases l WHERE l.attempt_id = $1 ORDER BY l.lease_number
"""


async def list_of_attempt(conn: Connection, attempt_id: UUID) -> list[Lease]:
    """All leases of one attempt, the first one first."""
    rows = await conn.fetch(_LIST_OF_ATTEMPT, attempt_id)
    return [Lease.model_validate(dict(row)) for row in rows]
