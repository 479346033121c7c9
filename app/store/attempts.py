"""Statements on `execution_attempts`: creation and the plain reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from app.domain.records import Attempt
from app.store.database import Connection

COLUMNS = """a.id, a.operation_id, a.plan_id, a.plan_node_id, a.node_run_id,
    a.requested_by_service, a.idempotency_key, a.job_type, a.job_spec_ref, a.status,
    a.failure_category, a.failure_message, a.result, a.runner_kind, a.runner_instance_id,
    a.priority, a.timeout_seconds, a.queue_timeout_seconds, a.placement, a.concurrency_key,
    a.created_at, a.leased_at, a.started_at, a.finished_at, a.cancel_requested_at,
    a.cancel_reason, a.stop_confirmed"""


class NewAttempt(NamedTuple):
    """One row to create; JSON fields are texts."""

    id: UUID
    event_id: UUID
    operation_id: UUID
    plan_id: UUID
    plan_node_id: UUID
    node_run_id: UUID
    requested_by_service: str
    idempotency_key: str
    request_digest: str
    job_type: str
    job_spec_ref: str
    runner_kind: str
    priority: int
    timeout_seconds: int
    queue_timeout_seconds: int | None
    placement: str
    placement_class_id: UUID
    zone: str | None
    labels: str
    concurrency_key: str | None


# The class is interned by the statement that first needs it; its id is a function of its content,
# so two instances that intern it at once agree. Whoever really adds one advances the version that
# claims compare. Keys are inserted in order, so two batches that share keys cannot deadlock.
_CREATE = f"""
-- attempts.create
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[],
        $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::int[],
        $14::int[], $15::int[], $16::text[], $17::uuid[], $18::text[], $19::text[], $20::text[])
    AS i(id, event_id, operation_id, plan_id, plan_node_id, node_run_id, requested_by_service,
        idempotency_key, request_digest, job_type, job_spec_ref, runner_kind, priority,
        timeout_seconds, queue_timeout_seconds, placement, placement_class_id, zone, labels,
        concurrency_key)
), interned AS (
    INSERT INTO placement_classes (id, runner_kind, job_type, zone, labels, created_at)
    SELECT DISTINCT ON (placement_class_id)
        placement_class_id, runner_kind, job_type, zone, labels::jsonb, clock_fact()
    FROM input ORDER BY placement_class_id
    ON CONFLICT (id) DO NOTHING
    RETURNING runner_kind
), advanced AS (
    UPDATE placement_class_versions v SET version = v.version + 1
    FROM (SELECT DISTINCT runner_kind FROM interned) k WHERE v.runner_kind = k.runner_kind
), created AS (
    INSERT INTO execution_attempts AS a (id, operation_id, plan_id, plan_node_id, node_run_id,
        requested_by_service, idempotency_key, request_digest, job_type, job_spec_ref, status,
        runner_kind, priority, timeout_seconds, queue_timeout_seconds, placement,
        placement_class_id, concurrency_key, claimable, created_at, limit_at,
        last_event_number, last_event_at, last_feed_epoch, last_feed_xid)
    SELECT i.id, operation_id, plan_id, plan_node_id, node_run_id, requested_by_service,
        idempotency_key, request_digest, job_type, job_spec_ref::jsonb, 'queued', runner_kind,
        priority, timeout_seconds, queue_timeout_seconds, placement::jsonb, placement_class_id,
        concurrency_key, concurrency_key IS NULL, t.at,
        t.at + make_interval(secs => queue_timeout_seconds),
        1, t.at, current_feed_epoch(), pg_current_xact_id()
    FROM input i CROSS JOIN LATERAL (SELECT clock_fact() AS at) t
    ORDER BY idempotency_key
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING {COLUMNS}, a.last_feed_epoch, a.last_feed_xid
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT i.event_id, a.id, 1, 'created', jsonb_strip_nulls(jsonb_build_object(
            'operation_id', a.operation_id, 'plan_node_id', a.plan_node_id,
            'node_run_id', a.node_run_id, 'job_type', a.job_type, 'runner_kind', a.runner_kind,
            'priority', a.priority, 'requested_by_service', a.requested_by_service,
            'concurrency_key', a.concurrency_key)),
        a.last_feed_epoch, a.last_feed_xid, a.created_at
    FROM created a JOIN input i ON i.id = a.id
)
SELECT {COLUMNS}, (SELECT count(*) FROM interned) AS classes_added FROM created a
"""


async def create(conn: Connection, rows: Sequence[NewAttempt]) -> tuple[dict[str, Attempt], int]:
    """Create what is new, each with its first event; rows whose key exists are left out.

    At most one row a key. Returns the created attempts by idempotency key and how many placement
    classes were added by it.
    """
    records = await conn.fetch(_CREATE, *zip(*rows, strict=True))
    created = {row["idempotency_key"]: Attempt.model_validate(dict(row)) for row in records}
    return created, records[0]["classes_added"] if records else 0


_FIND_BY_KEY = f"""
-- attempts.find_by_keys
SELECT {COLUMNS}, a.request_digest FROM execution_attempts a WHERE a.idempotency_key = ANY($1)
"""


async def find_by_keys(conn: Connection, keys: Sequence[str]) -> dict[str, tuple[Attempt, str]]:
    """The attempts that already have these keys, each with its request's digest."""
    rows = await conn.fetch(_FIND_BY_KEY, list(keys))
    return {
        row["idempotency_key"]: (Attempt.model_validate(dict(row)), row["request_digest"])
        for row in rows
    }


_COUNT_CLASSES = """
-- attempts.count_placement_classes
SELECT count(*) FROM placement_classes WHERE runner_kind = $1
"""


async def count_placement_classes(conn: Connection, runner_kind: str) -> int:
    """How many placement classes this runner kind has."""
    return int(await conn.fetchval(_COUNT_CLASSES, runner_kind))


_FIND = f"""
-- attempts.find
SELECT {COLUMNS} FROM execution_attempts a WHERE a.id = $1
"""


async def find(conn: Connection, attempt_id: UUID) -> Attempt | None:
    """The attempt, or None."""
    row = await conn.fetchrow(_FIND, attempt_id)
    return None if row is None else Attempt.model_validate(dict(row))


_FIND_BY_TAIL = """
-- attempts.find_by_tail
SELECT id FROM (
    SELECT id FROM execution_attempts ORDER BY created_at DESC, id DESC LIMIT 10000) recent
WHERE replace(id::text, '-', '') LIKE '%' || $1 LIMIT 2
"""


async def find_by_tail(conn: Connection, tail: str) -> list[UUID]:
    """At most two ids among the 10,000 newest that end with these hex digits."""
    return [row["id"] for row in await conn.fetch(_FIND_BY_TAIL, tail)]
