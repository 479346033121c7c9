"""What must hold of artifacts, outputs and evidence; statements as in `store/audit.py`."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.audit import Check
from app.store.database import Connection

_POINTS_WITHIN = """
-- audit_artifacts.points_within
SELECT o.id::text AS subject, 'an output points at ' || CASE
    WHEN r.id IS NULL THEN 'no artifact' WHEN r.attempt_id <> o.attempt_id
    THEN 'an artifact of another attempt' ELSE 'an artifact with another digest' END AS detail
FROM runner_output_refs o LEFT JOIN artifact_refs r ON r.id = o.artifact_ref_id
WHERE (r.attempt_id, r.digest) IS DISTINCT FROM (o.attempt_id, o.digest)
UNION ALL
SELECT v.id::text, 'an evidence points at no artifact of its attempt'
FROM evidence_refs v LEFT JOIN artifact_refs r ON r.id = v.artifact_ref_id
WHERE v.artifact_ref_id IS NOT NULL AND r.attempt_id IS DISTINCT FROM v.attempt_id
UNION ALL
SELECT v.id::text, 'an evidence is about no output of its attempt'
FROM evidence_refs v LEFT JOIN runner_output_refs o ON o.id = v.output_ref_id
WHERE v.output_ref_id IS NOT NULL AND o.attempt_id IS DISTINCT FROM v.attempt_id
UNION ALL
SELECT g.id::text, 'a chunk of a log lies in no artifact of its attempt'
FROM raw_log_refs g LEFT JOIN artifact_refs r ON r.id = g.artifact_ref_id
WHERE r.attempt_id IS DISTINCT FROM g.attempt_id
LIMIT $1
"""

_ARTIFACTS_MADE = """
-- audit_artifacts.artifacts_made
SELECT r.id::text AS subject, CASE WHEN u.closed_reason IS DISTINCT FROM 'recorded'
    THEN 'its ticket is ' || coalesce('closed as ' || u.closed_reason, 'open')
    WHEN u.verified_at IS NULL THEN 'it was never verified'
    ELSE 'it is not what its ticket announced' END AS detail
FROM artifact_refs r JOIN artifact_uploads u ON u.id = r.id
WHERE u.closed_reason IS DISTINCT FROM 'recorded' OR u.verified_at IS NULL
    OR (r.attempt_id, r.operation_id, r.bucket, r.key, r.digest, r.byte_size)
        IS DISTINCT FROM
        (u.attempt_id, u.operation_id, u.bucket, u.key, u.digest, u.byte_size)
LIMIT $1
"""

_ONE_OBJECT = """
-- audit_artifacts.one_object
SELECT key AS subject, count(*) || ' artifacts disagree about this object' AS detail
FROM artifact_refs GROUP BY bucket, key
HAVING count(DISTINCT (operation_id, digest, byte_size)) > 1 LIMIT $1
"""

_RECORDED_TOLD = """
-- audit_artifacts.recorded_told
WITH recorded AS (
    SELECT o.id, o.attempt_id, 'output_recorded' AS event_type, 'output_id' AS name
    FROM runner_output_refs o
    UNION ALL
    SELECT v.id, v.attempt_id, 'evidence_recorded', 'evidence_id' FROM evidence_refs v
    UNION ALL
    SELECT r.id, r.attempt_id, 'artifact_created', 'artifact_id'
    FROM artifact_refs r JOIN artifact_uploads u ON u.id = r.id
)
SELECT r.id::text AS subject, count(e.id) || ' events ' || r.event_type AS detail
FROM recorded r LEFT JOIN attempt_events e ON e.attempt_id = r.attempt_id
    AND e.event_type = r.event_type AND e.payload->>r.name = r.id::text
GROUP BY r.id, r.event_type HAVING count(e.id) <> 1 LIMIT $1
"""

CHECKS = (
    Check(
        "points-within",
        "Outputs, evidence and logs point at what belongs to their own attempt.",
        _POINTS_WITHIN,
    ),
    Check(
        "artifacts-made",
        "An artifact is what its ticket announced, verified before.",
        _ARTIFACTS_MADE,
    ),
    Check(
        "one-object",
        "Artifacts that share an object agree about it, in one operation.",
        _ONE_OBJECT,
    ),
    Check(
        "recorded-told",
        "Each artifact, output and evidence is told by one event.",
        _RECORDED_TOLD,
    ),
)

_LIST_OBJECTS = """
-- audit_artifacts.list_objects
SELECT r.key, min(r.byte_size) AS byte_size, min(r.digest) AS digest, min(r.id::text) AS subject
FROM artifact_refs r WHERE r.bucket = $1 AND r.key > $2 AND r.state <> 'removing'
GROUP BY r.key ORDER BY r.key LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """One object that the store must have, and one of the artifacts that say so."""

    key: str
    byte_size: int
    digest: str
    subject: str


async def list_objects(conn: Connection, bucket: str, after: str, limit: int) -> list[Expected]:
    """At most `limit` objects by key, after this one."""
    rows = await conn.fetch(_LIST_OBJECTS, bucket, after, limit)
    return [Expected(**dict(row)) for row in rows]


_LIST_NAMED = """
-- audit_artifacts.list_named
SELECT DISTINCT r.key FROM artifact_refs r
WHERE r.bucket = $1 AND r.key = ANY($2::text[]) AND r.state <> 'removing'
"""


async def list_named(conn: Connection, bucket: str, keys: list[str]) -> set[str]:
    """Those of these keys that an artifact names now."""
    return {row["key"] for row in await conn.fetch(_LIST_NAMED, bucket, keys)}
