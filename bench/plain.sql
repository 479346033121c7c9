-- A life in four fixed, plain statements, which do not change with the service: the measure that
-- heavy SQL of its own cannot flatter. No history, no idempotency, no fence, no placement.
\set runner :client_id
INSERT INTO plain_jobs (id, job_type, spec)
VALUES (gen_random_uuid(), 'ssh.command.run', '{"command": "uptime"}');
WITH claimed AS (
    UPDATE plain_jobs SET status = 'leased', runner = :runner::int::text,
        leased_until = now() + interval '30 s'
    WHERE id = (SELECT id FROM plain_jobs WHERE status = 'queued' ORDER BY created_at LIMIT 1
        FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT coalesce((SELECT id FROM claimed), '00000000-0000-0000-0000-000000000000') AS job
\gset
UPDATE plain_jobs SET leased_until = now() + interval '30 s', progress = 50
WHERE id = :job::uuid AND status = 'leased';
UPDATE plain_jobs SET status = 'succeeded', finished_at = now()
WHERE id = :job::uuid AND status = 'leased';
