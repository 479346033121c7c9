-- One table as anybody would make it: what bench/plain.sql runs on.
CREATE TABLE plain_jobs (
    id uuid PRIMARY KEY,
    job_type text NOT NULL,
    spec jsonb NOT NULL,
    status text NOT NULL DEFAULT 'queued',
    runner text,
    progress int,
    created_at timestamptz NOT NULL DEFAULT now(),
    leased_until timestamptz,
    finished_at timestamptz
) WITH (fillfactor = 70);
CREATE INDEX plain_jobs_queued ON plain_jobs (created_at) WHERE status = 'queued';
