"""Levels of the queue and the fleet, read at each scrape; costs what is open and not what ended."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from app.store.database import Connection
from app.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Readiness:
    """What readiness asks of the database."""

    revision: str | None
    sweep_age_seconds: float | None


_REVISION = """
-- gauges.revision
SELECT version_num FROM alembic_version
"""

_SWEEP_AGE = """
-- gauges.sweep_age
SELECT extract(epoch FROM clock_fact() - swept_at)::float8 FROM leaders WHERE name = 'scheduler'
"""

_EXISTS = """
-- gauges.is_migrated
SELECT to_regclass('alembic_version') IS NOT NULL
"""


async def readiness(conn: Connection) -> Readiness:
    """The schema's revision and the age of the last sweep; None where there is none."""
    if not await conn.fetchval(_EXISTS):
        return Readiness(None, None)
    revision = await conn.fetchval(_REVISION)
    return Readiness(revision, await conn.fetchval(_SWEEP_AGE) if revision else None)


_LEVELS = """
-- gauges.levels
SELECT a.runner_kind, a.status, count(*) AS attempts,
    extract(epoch FROM clock_fact() - min(a.created_at))::float8 AS oldest_seconds
FROM execution_attempts a WHERE a.status IN ('queued', 'leased', 'running')
GROUP BY a.runner_kind, a.status
"""

_LEASES = """
-- gauges.active_leases
SELECT a.runner_kind, count(*) AS leases FROM runner_leases l
JOIN execution_attempts a ON a.id = l.attempt_id WHERE l.status = 'active' GROUP BY a.runner_kind
"""


async def levels(conn: Connection) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
    """Open attempts by kind and status, and active leases by kind."""
    return await conn.fetch(_LEVELS), await conn.fetch(_LEASES)


def show(metrics: Metrics, read: tuple[list[asyncpg.Record], list[asyncpg.Record]]) -> None:
    """Set the gauges; a level that is gone becomes absent, which Prometheus reads as zero."""
    attempts, leases = read
    for gauge in (metrics.attempts, metrics.oldest_queued_seconds, metrics.active_leases):
        gauge.clear()
    for row in attempts:
        metrics.attempts.labels(row["runner_kind"], row["status"]).set(row["attempts"])
        if row["status"] == "queued":
            metrics.oldest_queued_seconds.labels(row["runner_kind"]).set(row["oldest_seconds"])
    for row in leases:
        metrics.active_leases.labels(row["runner_kind"]).set(row["leases"])
