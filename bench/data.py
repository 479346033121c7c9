"""`make bench-data`: a database that has grown for years, built once and kept under `.bench`.

By default 2.5 million finished attempts with 10 million events in 40 months, for the reads of the
feed; `make bench-growth` wants more attempts with an event each. Rows are made by the server
itself, without triggers, and indexes after the rows; what they say is what a life of each attempt
would have left. Their events stand in an epoch that has ended, as after a restore: the new
cluster's transaction ids are far below theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import asyncpg

from app.embedded.postgres import EmbeddedPostgres
from app.store import epochs, migrate, partitions

ATTEMPTS = 2_500_000
MONTHS = 40
EVENTS_PER_ATTEMPT = 4
HOME = Path(__file__).resolve().parents[1] / ".bench"
OPTIONS: dict[str, str | int] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "maintenance_work_mem": "512MB",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}

FUNCTIONS = """
CREATE FUNCTION pg_temp.made_at(n bigint, began timestamptz, step interval) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS 'SELECT began + n * step';
CREATE FUNCTION pg_temp.numbered(at timestamptz, n bigint, kind text) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || kind
        || '8' || lpad(to_hex(n), 15, '0'))::uuid $$;
CREATE FUNCTION pg_temp.xid_at(at timestamptz, began timestamptz, step interval) RETURNS xid8
LANGUAGE sql IMMUTABLE AS $$
    SELECT (3 + floor(extract(epoch FROM at - began) / extract(epoch FROM step)))::text::xid8 $$;
"""

# $1: the first moment, $2: from one attempt to the next, $3 and $4: from which to which attempt.
ADD_ATTEMPTS = """
INSERT INTO execution_attempts (id, operation_id, plan_id, plan_node_id, node_run_id,
    requested_by_service, idempotency_key, request_digest, job_type, job_spec_ref, status, result,
    runner_kind, runner_instance_id, priority, timeout_seconds, placement, claimable, created_at,
    leased_at, started_at, finished_at, last_lease_number, stop_confirmed, last_event_number,
    last_event_at, last_feed_epoch, last_feed_xid)
SELECT pg_temp.numbered(t.at, n, 'a00'), pg_temp.numbered(t.at, n / 10, '0b0'),
    pg_temp.numbered(t.at, n / 10, '0c0'), pg_temp.numbered(t.at, n, '0d0'),
    pg_temp.numbered(t.at, n, '0e0'), 'grown', 'grown-' || n, 'v1:k1:grown', 'ssh.command.run',
    '{"command": "uptime"}', 'succeeded', '{"exit_code": 0}', 'ssh', 'runner-' || n % 500, 100,
    600, '{}', false, t.at, t.at + interval '1 s', t.at + interval '2 s', t.at + interval '30 s', 1,
    true, 4, t.at + interval '30 s', 1, pg_temp.xid_at(t.at + interval '30 s', $1, $2)
FROM generate_series($3::bigint, $4::bigint) n
CROSS JOIN LATERAL (SELECT pg_temp.made_at(n, $1, $2) AS at) t
"""

ADD_LEASES = """
INSERT INTO runner_leases (id, attempt_id, runner_instance_id, lease_token_hash, token_key_id,
    status, expires_at, created_at, released_at, lease_number, session_id, claim_request_id,
    last_sequence, phase, started_at, check_at, completion_digest)
SELECT pg_temp.numbered(t.at, n, '1ea'), pg_temp.numbered(t.at, n, 'a00'), 'runner-' || n % 500,
    'grown-' || n, 'k1', 'released', t.at + interval '60 s', t.at + interval '1 s',
    t.at + interval '30 s', 1, pg_temp.numbered(t.at, n, '5e5'), pg_temp.numbered(t.at, n, '4e4'),
    2, 'executing', t.at + interval '2 s', t.at + interval '60 s', 'v1:k1:grown'
FROM generate_series($3::bigint, $4::bigint) n
CROSS JOIN LATERAL (SELECT pg_temp.made_at(n, $1, $2) AS at) t
"""

# $5 and $6: the month; $7: which of an attempt's four events are left out.
ADD_EVENTS = """
INSERT INTO {name} (id, attempt_id, event_number, event_type, payload, feed_epoch, feed_xid,
    created_at)
SELECT gen_random_uuid(), pg_temp.numbered(t.at, n, 'a00'), e.number, e.type, e.payload
        || jsonb_build_object('runner_instance_id', 'runner-' || n % 500), 1,
    pg_temp.xid_at(t.at + e.after, $1, $2), t.at + e.after
FROM generate_series($3::bigint, $4::bigint) n
CROSS JOIN LATERAL (SELECT pg_temp.made_at(n, $1, $2) AS at) t
CROSS JOIN (VALUES
    (1, 'created', interval '0 s', '{{"job_type": "ssh.command.run", "priority": 100}}'::jsonb),
    (2, 'leased', interval '1 s', '{{"lease_number": 1}}'),
    (3, 'started', interval '2 s', '{{"lease_number": 1}}'),
    (4, 'succeeded', interval '30 s', '{{"lease_number": 1, "result": {{"exit_code": 0}}}}')
) e(number, type, after, payload)
WHERE t.at + e.after >= $5 AND t.at + e.after < $6 AND e.number > $7
ORDER BY t.at + e.after
"""


def _months(last: dt.date) -> list[tuple[dt.datetime, dt.datetime]]:
    """The months up to that of a day, oldest first."""
    months, end = [], (last.replace(day=28) + dt.timedelta(days=4)).replace(day=1)
    for _ in range(MONTHS):
        begin = (end - dt.timedelta(days=1)).replace(day=1)
        months.append((_midnight(begin), _midnight(end)))
        end = begin
    return months[::-1]


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC)


async def _build(folder: Path, attempts: int, events: int) -> None:
    postgres = EmbeddedPostgres(folder, options=OPTIONS)
    await postgres.start()
    try:
        await asyncio.to_thread(migrate.upgrade, postgres.dsn)
        admin = await asyncpg.connect(
            postgres.admin_dsn.rsplit("/", 1)[0] + "/" + postgres.dsn.rsplit("/", 1)[1],
            command_timeout=7200,
        )
        await _fill(admin, attempts, events)
        await admin.execute("VACUUM (FREEZE, ANALYZE)")
        async with admin.transaction():
            begun = await epochs.begin_once(admin)
        await admin.close()
        assert begun is not None, "the rows' transaction ids are beyond this cluster's"
    finally:
        await postgres.stop()


async def _fill(sql: asyncpg.Connection, attempts: int, events: int) -> None:
    await sql.execute("SET ROLE execution_plane")
    await sql.execute(FUNCTIONS)
    months = _months(dt.datetime.now(dt.UTC).date())
    began = months[0][0]
    now = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
    step = (now - began) / attempts
    await sql.execute("RESET ROLE")
    await sql.execute("SET session_replication_role = replica")
    await sql.execute("SET ROLE execution_plane")
    definitions = await _without_indexes(sql, ("execution_attempts", "runner_leases"))
    for number, (begin, end) in enumerate(months):
        first = max(0, (begin - began) // step)
        last = min(attempts, (end - began) // step)
        await sql.execute(ADD_ATTEMPTS, began, step, first, last - 1)
        await sql.execute(ADD_LEASES, began, step, first, last - 1)
        await _add_month(sql, (began, step), min(last, attempts - 1), (begin, end), events)
        print(f"  month {number + 1} of {MONTHS}: {last:,} attempts", flush=True)
    for definition in definitions:
        await sql.execute(definition)
    async with sql.transaction():
        await partitions.ensure(sql)


async def _add_month(
    sql: asyncpg.Connection,
    pace: tuple[dt.datetime, dt.timedelta],
    last: int,
    month: tuple[dt.datetime, dt.datetime],
    events: int,
) -> None:
    """Rows first, up to those of this attempt; attaching makes the indexes."""
    (began, step), (begin, end) = pace, month
    name = f"attempt_events_{begin:%Y%m}"
    await sql.execute(
        f"CREATE TABLE {name} (LIKE attempt_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
    )
    # An attempt of the last half minute of the month before has its end in this one.
    first = max(0, (begin - dt.timedelta(minutes=1) - began) // step)
    left_out = EVENTS_PER_ATTEMPT - events
    await sql.execute(ADD_EVENTS.format(name=name), began, step, first, last, begin, end, left_out)
    await sql.execute(
        f"ALTER TABLE attempt_events ATTACH PARTITION {name} "
        f"FOR VALUES FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
    )


async def _without_indexes(sql: asyncpg.Connection, tables: tuple[str, ...]) -> list[str]:
    """Drop the indexes that no constraint needs; what makes them again."""
    rows = await sql.fetch(
        "SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS made "
        "FROM pg_index i WHERE i.indrelid = ANY($1::text[]::regclass[]) "
        "AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)",
        list(tables),
    )
    for row in rows:
        await sql.execute(f"DROP INDEX {row['name']}")
    return [row["made"] for row in rows]


async def build_once(attempts: int = ATTEMPTS, events: int = EVENTS_PER_ATTEMPT) -> Path:
    """The folder with so many attempts, the last `events` of each; built if not there in whole."""
    folder = HOME / (f"grown-{attempts}" + (f"x{events}" if events < EVENTS_PER_ATTEMPT else ""))
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = monotonic()
    print(f"building {attempts:,} finished attempts, {events} events each, in {folder}", flush=True)
    await _build(folder, attempts, events)
    (folder / "complete").touch()
    print(f"built in {monotonic() - began:.0f} s", flush=True)
    return folder


@asynccontextmanager
async def grown(
    attempts: int = ATTEMPTS, events: int = EVENTS_PER_ATTEMPT, **options: str | int
) -> AsyncIterator[EmbeddedPostgres]:
    """The grown database, running, with the schema of today."""
    folder = await build_once(attempts, events)
    postgres = EmbeddedPostgres(folder, options=OPTIONS | options)
    await postgres.start()
    try:
        await asyncio.to_thread(migrate.upgrade, postgres.dsn)
        yield postgres
    finally:
        await postgres.stop()


def size_option(parser: argparse.ArgumentParser) -> None:
    """The option that every benchmark over this data has."""
    parser.add_argument(
        "--attempts", type=int, default=ATTEMPTS, help="finished attempts, of 4 events each"
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    size_option(arguments)
    arguments.add_argument("--events", type=int, default=EVENTS_PER_ATTEMPT, help="of each kept")
    given = arguments.parse_args()
    asyncio.run(build_once(given.attempts, given.events))
