"""Levels of the leader and its sweeps, read at each scrape: every instance tells the same."""

from __future__ import annotations

from app.store import leaders, outbox, sweeps
from app.store.database import Connection
from app.telemetry import Metrics


async def show_scheduler(conn: Connection, metrics: Metrics) -> None:
    """Set the gauges of the leader, of each sweep and of the outbox."""
    held = await leaders.find(conn, leaders.SCHEDULER)
    metrics.leader_alive.set(held is not None and held.alive)
    if held is not None:
        metrics.leader_term.set(held.term)
    for sweep in await sweeps.list_all(conn):
        if sweep.age_seconds is not None:
            metrics.sweep_age_seconds.labels(sweep.name).set(sweep.age_seconds)
        metrics.sweep_lag_seconds.labels(sweep.name).set(sweep.lag_seconds)
        metrics.sweep_failing.labels(sweep.name).set(sweep.failing)
    backlog = await outbox.backlog(conn)
    metrics.outbox_waiting.set(backlog.waiting)
    metrics.outbox_oldest_seconds.set(backlog.oldest_seconds or 0)
