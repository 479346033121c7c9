"""Statements on `evidence_refs`: appended, once a request, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.domain.records import Evidence
from app.store.artifacts import POINTED, TOLD, Fenced
from app.store.database import Connection

_COLUMNS = """v.id, v.attempt_id, v.output_ref_id, v.evidence_type, v.status, v.subject_ref,
    v.artifact_ref_id, v.recorded_at"""


@dataclass(frozen=True, slots=True)
class NewEvidence:
    """One evidence to record."""

    id: UUID
    request_id: UUID
    evidence_type: str
    status: str
    subject_ref: str
    artifact_id: UUID | None
    output_id: UUID | None


_RECORD = f"""
-- evidence.record_once
WITH allowed AS (
    SELECT 1 AS one
    WHERE NOT EXISTS (SELECT FROM evidence_refs v WHERE v.attempt_id = $1 AND v.request_id = $8)
        AND ($12::uuid IS NULL OR EXISTS (
            SELECT FROM runner_output_refs o WHERE o.id = $12 AND o.attempt_id = $1))
), {POINTED}, written AS (
    INSERT INTO evidence_refs AS v (id, attempt_id, output_ref_id, evidence_type, status,
        subject_ref, artifact_ref_id, recorded_at, request_id)
    SELECT $7, $1, $12, $9, $10, $11, p.id, clock_fact(), $8
    FROM allowed LEFT JOIN pointed p ON true
    WHERE $2::uuid IS NULL OR p.id IS NOT NULL
    RETURNING {_COLUMNS}
), recorded AS (
    SELECT jsonb_build_object('evidence_id', v.id, 'evidence_type', v.evidence_type,
        'evidence_status', v.status, 'subject_ref', v.subject_ref,
        'artifact_id', v.artifact_ref_id, 'output_id', v.output_ref_id) AS facts
    FROM written v
), {TOLD}
SELECT {_COLUMNS} FROM written v
"""


async def record_once(conn: Connection, fenced: Fenced, new: NewEvidence) -> Evidence | None:
    """Append an evidence, and make its artifact if that is a ticket yet, under a passed fence.

    None: the request is known, or there is nothing of this attempt to point at.
    """
    row = await conn.fetchrow(
        _RECORD,
        fenced.attempt_id,
        new.artifact_id,
        fenced.lease_id,
        fenced.lease_number,
        fenced.runner_instance_id,
        "evidence_recorded",
        new.id,
        new.request_id,
        new.evidence_type,
        new.status,
        new.subject_ref,
        new.output_id,
    )
    return None if row is None else Evidence.model_validate(dict(row))


_FIND_BY_REQUEST = f"""
-- evidence.find_by_request
SELECT {_COLUMNS} FROM evidence_refs v WHERE v.attempt_id = $1 AND v.request_id = $2
"""


async def find_by_request(conn: Connection, attempt_id: UUID, request_id: UUID) -> Evidence | None:
    """The evidence that this request recorded, or None."""
    row = await conn.fetchrow(_FIND_BY_REQUEST, attempt_id, request_id)
    return None if row is None else Evidence.model_validate(dict(row))


_LIST = f"""
-- evidence.list_of_attempt
SELECT {_COLUMNS} FROM evidence_refs v WHERE v.attempt_id = $1
    AND ($2::timestamptz IS NULL OR (v.recorded_at, v.id) > ($2, $3))
ORDER BY v.recorded_at, v.id LIMIT $4
"""


async def list_of_attempt(
    conn: Connection, attempt_id: UUID, *, after: tuple[datetime, UUID] | None, limit: int
) -> list[Evidence]:
    """At most `limit` evidences of an attempt in the order of their recording, after that one."""
    rows = await conn.fetch(_LIST, attempt_id, *(after or (None, None)), limit)
    return [Evidence.model_validate(dict(row)) for row in rows]
