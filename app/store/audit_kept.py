"""What must hold of artifacts, legal holds and partitions; run with those of `store/audit.py`."""

from __future__ import annotations

_HOLDS_KEPT = """
-- audit_kept.holds_kept
SELECT f.id::text AS subject, CASE WHEN f.state = 'removing' THEN 'held, and being removed'
    WHEN (f.held_by, f.held_reason) IS NULL THEN 'held, but nobody knows by whom and why'
    ELSE 'held, but its timeline does not say so' END AS detail
FROM artifact_refs f JOIN execution_attempts a ON a.id = f.attempt_id
WHERE f.held_at IS NOT NULL AND (f.state = 'removing' OR f.held_by IS NULL
    OR f.held_reason IS NULL OR NOT EXISTS (
        SELECT FROM attempt_events e WHERE e.attempt_id = f.attempt_id
            AND e.event_type = 'legal_hold_set'
            AND coalesce(e.payload->>'artifact_id', f.id::text) = f.id::text))
LIMIT $1
"""

_KEPT_STAYS = """
-- audit_kept.kept_stays
SELECT f.id::text AS subject, CASE WHEN f.retention_class = 'legal_hold' THEN 'class legal_hold'
    WHEN a.finished_at IS NULL THEN 'its attempt is open' ELSE 'an evidence shows it' END
    || ', and it is being removed' AS detail
FROM artifact_refs f JOIN execution_attempts a ON a.id = f.attempt_id
WHERE f.state = 'removing' AND (f.retention_class = 'legal_hold' OR a.finished_at IS NULL
    OR EXISTS (SELECT FROM evidence_refs e WHERE e.artifact_ref_id = f.id)
    OR EXISTS (SELECT FROM runner_output_refs o JOIN evidence_refs e ON e.output_ref_id = o.id
        WHERE o.artifact_ref_id = f.id))
LIMIT $1
"""

_NO_DANGLING = """
-- audit_kept.no_dangling
SELECT s.id::text AS subject, s.what || ' points at nothing' AS detail FROM (
    SELECT r.id, 'a log chunk' AS what FROM raw_log_refs r
        WHERE NOT EXISTS (SELECT FROM artifact_refs f WHERE f.id = r.artifact_ref_id)
    UNION ALL SELECT o.id, 'an output' FROM runner_output_refs o
        WHERE NOT EXISTS (SELECT FROM artifact_refs f WHERE f.id = o.artifact_ref_id)
    UNION ALL SELECT e.id, 'an evidence' FROM evidence_refs e
        WHERE (e.artifact_ref_id IS NOT NULL
            AND NOT EXISTS (SELECT FROM artifact_refs f WHERE f.id = e.artifact_ref_id))
        OR (e.output_ref_id IS NOT NULL AND NOT EXISTS (SELECT FROM runner_output_refs o
            WHERE o.id = e.output_ref_id AND o.attempt_id = e.attempt_id))) s
LIMIT $1
"""

_PARTITIONS = """
-- audit_kept.partitions
SELECT c.relname AS subject, CASE WHEN pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'
    THEN 'a default partition' ELSE 'was removed, and is there' END AS detail
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent IN ('attempt_heartbeats'::regclass, 'attempt_events'::regclass)
    AND (pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT' OR EXISTS (
        SELECT FROM removed_partitions p WHERE p.name = c.relname AND p.removed_at IS NOT NULL))
LIMIT $1
"""

KEPT = (
    ("holds-kept", "What is under legal hold is told and is not removed.", _HOLDS_KEPT),
    ("kept-stays", "Nothing is removed that has to be kept.", _KEPT_STAYS),
    ("no-dangling", "Chunks, outputs and evidence point at what is there.", _NO_DANGLING),
    ("partitions", "No partition takes just anything, or came back.", _PARTITIONS),
)
"""Name, sentence and statement of each check."""
