"""What must hold of stored logs, by the same rules as `store/audit.py`.

Retention takes whole logs away long after their end, so only those of open attempts and of the last
day are held to be whole.
"""

from __future__ import annotations

from app.store.audit import Check

_STREAMS = """
-- audit_logs.streams
SELECT s.attempt_id::text AS subject, s.stream || ' of lease ' || s.lease_number
    || ' is not what its chunks add up to' AS detail
FROM log_streams s JOIN execution_attempts a ON a.id = s.attempt_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(r.raw_size), 0) AS raw_size, coalesce(sum(r.byte_size), 0) AS stored_size,
        coalesce(sum(r.line_count), 0) AS line_count, coalesce(max(r.ends_at), 0) AS ends_at,
        coalesce(bool_or(r.stream_offset <> r.expected), false) AS is_broken,
        coalesce(bool_and(r.masked), true) AS is_masked
    FROM (
        SELECT o.raw_size, o.byte_size, o.line_count, o.stream_offset, o.masked,
            o.stream_offset + o.raw_size AS ends_at,
            coalesce(lag(o.stream_offset + o.raw_size) OVER (ORDER BY o.stream_offset), 0)
                AS expected
        FROM raw_log_refs o WHERE o.attempt_id = s.attempt_id
            AND o.lease_number = s.lease_number AND o.stream = s.stream) r) c
WHERE (a.finished_at IS NULL OR a.finished_at > clock_now() - interval '1 day')
    AND ((c.raw_size, c.stored_size, c.line_count, c.ends_at)
        <> (s.raw_size, s.stored_size, s.line_count, s.next_offset)
        OR c.is_broken OR NOT c.is_masked)
UNION ALL
SELECT r.attempt_id::text, r.stream || ' of lease ' || r.lease_number || ' has chunks and no row'
FROM raw_log_refs r LEFT JOIN log_streams s ON s.attempt_id = r.attempt_id
    AND s.lease_number = r.lease_number AND s.stream = r.stream
WHERE s.attempt_id IS NULL
LIMIT $1
"""

_PLACES = """
-- audit_logs.places
SELECT r.attempt_id::text AS subject, 'chunk ' || r.arrival_number || ' of lease '
    || r.lease_number || ' does not lie in its object' AS detail
FROM (
    SELECT o.attempt_id, o.lease_number, o.arrival_number, o.artifact_ref_id, o.object_offset,
        o.byte_size, coalesce(lag(o.object_offset + o.byte_size) OVER (
            PARTITION BY o.artifact_ref_id ORDER BY o.object_offset), 0) AS begins_at
    FROM raw_log_refs o) r
LEFT JOIN artifact_refs f ON f.id = r.artifact_ref_id AND f.attempt_id = r.attempt_id
WHERE f.id IS NULL OR r.object_offset + r.byte_size > f.byte_size OR r.object_offset < r.begins_at
LIMIT $1
"""

_ARRIVAL = """
-- audit_logs.arrival
SELECT l.id::text AS subject, 'chunk ' || max(r.arrival_number) || ' of ' || l.log_chunks AS detail
FROM runner_leases l JOIN raw_log_refs r
    ON r.attempt_id = l.attempt_id AND r.lease_number = l.lease_number
GROUP BY l.id HAVING max(r.arrival_number) > l.log_chunks
LIMIT $1
"""

_CUT_OFF = """
-- audit_logs.cut_off
SELECT a.id::text AS subject, e.told || ' events that its log was cut off' AS detail
FROM execution_attempts a
CROSS JOIN LATERAL (SELECT count(*) AS told FROM attempt_events v
    WHERE v.attempt_id = a.id AND v.event_type = 'log_truncated') e
WHERE e.told <> EXISTS (SELECT FROM log_streams s
    WHERE s.attempt_id = a.id AND s.truncated_at IS NOT NULL)::int
LIMIT $1
"""

CHECKS = (
    Check("log-streams", "A log stream has every byte to its end, all masked.", _STREAMS),
    Check("log-places", "Chunks of logs lie in their objects, none over another.", _PLACES),
    Check("log-arrival", "Chunks of a lease are numbered as they came.", _ARRIVAL),
    Check("log-cut-off", "A log that was cut off at the limit is told once.", _CUT_OFF),
)
