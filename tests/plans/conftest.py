"""A queue that has grown: filled by SQL, with statistics, in a database of its own."""

from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from app.domain.placement import Demands
from app.store import partitions

FILL = """
INSERT INTO execution_attempts (id, operation_id, plan_id, plan_node_id, node_run_id,
    requested_by_service, idempotency_key, request_digest, job_type, job_spec_ref, status,
    runner_kind, priority, timeout_seconds, placement, placement_class_id, concurrency_key,
    claimable, created_at, last_event_number, last_event_at, last_feed_epoch, last_feed_xid)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
    gen_random_uuid(), 'filler', $1 || n, 'x', $2, '{}', 'queued', $3, 100, 600, '{}',
    $4, $5, $6, now() - interval '1 day' + n * interval '1 ms', 1, now(), 1, '1'::xid8
FROM generate_series(1, $7) n
"""

ADD_CLASS = """
INSERT INTO placement_classes (id, runner_kind, job_type, zone, labels, created_at)
VALUES ($1, $2, $3, $4, '{}', now()) ON CONFLICT DO NOTHING
"""


class Queue:
    """Fills a queue."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def fill(
        self, count: int, *, zone: str | None = None, key: str | None = None, claimable: bool = True
    ) -> None:
        """`count` queued attempts that only a runner of this zone could take."""
        demands = Demands("ssh", "ssh.command.run", zone, {})
        await self.connection.execute(
            ADD_CLASS, demands.class_id, "ssh", demands.job_type, demands.zone
        )
        prefix = uuid4().hex
        await self.connection.execute(
            FILL,
            prefix,
            demands.job_type,
            "ssh",
            demands.class_id,
            key,
            claimable,
            count,
            timeout=600,
        )

    async def settle(self) -> None:
        """Statistics as autovacuum would have them, and new classes told to claims."""
        await self.connection.execute("UPDATE placement_class_versions SET version = version + 1; ")
        await self.connection.execute("VACUUM ANALYZE", timeout=600)


async def _open(database: str) -> Queue:
    connection = await asyncpg.connect(database)
    async with connection.transaction():
        await partitions.ensure_near(connection)
    return Queue(connection)


@pytest.fixture
async def queue(fresh_database) -> AsyncIterator[Queue]:
    """An empty one."""
    made = await _open(fresh_database)
    yield made
    await made.connection.close()


@pytest.fixture(scope="session")
async def long_queue(make_database) -> AsyncIterator[Queue]:
    """50,000 that some other runner must take, and 2,000 behind one key."""
    made = await _open(await make_database())
    await made.fill(50_000, zone="elsewhere")
    await made.fill(2000, key="one-host", claimable=False)
    await made.settle()
    yield made
    await made.connection.close()


# What three moves of each leave behind, as the lifecycle's triggers allow them.
FINISH = (
    """
    INSERT INTO runner_leases (id, attempt_id, runner_instance_id, lease_token_hash, token_key_id,
        status, expires_at, created_at, lease_number, session_id, claim_request_id, check_at)
    SELECT gen_random_uuid(), id, 'runner-' || row_number() OVER () % 500, 'hash', 'k1', 'active',
        created_at, created_at, 1, gen_random_uuid(), gen_random_uuid(), created_at
    FROM execution_attempts""",
    "UPDATE execution_attempts SET status = 'leased', leased_at = created_at, claimable = false",
    "UPDATE execution_attempts SET status = 'running', started_at = created_at",
    """
    UPDATE execution_attempts SET status = 'succeeded', finished_at = created_at,
        stop_confirmed = true, placement_class_id = NULL""",
    "UPDATE runner_leases SET status = 'released', released_at = created_at",
)


@pytest.fixture(scope="session")
async def long_history(make_database) -> AsyncIterator[Queue]:
    """50,000 that have finished, and nothing else: what statistics say after a quiet night."""
    made = await _open(await make_database())
    await made.fill(50_000)
    for statement in FINISH:
        await made.connection.execute(statement, timeout=120)
    await made.settle()
    yield made
    await made.connection.close()
