"""Statements on what the sweeps did: written by the leader, shown by every instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Passes:
    """What a sweep did since the last report; ages in seconds, counted from now."""

    name: str
    interval_seconds: float
    runs: int
    done: int
    failures: int
    failing: int
    """Failures in a row up to now."""
    behind_seconds: float
    """How long the oldest thing that it found had been due."""
    last_run_age: float | None
    last_run_seconds: float | None
    last_done: int | None
    failed_age: float | None
    last_error: str | None


_REPORT = """
-- sweeps.report
INSERT INTO sweeps AS s (name, interval_seconds, runs, done, failures, failing, behind_seconds,
    last_run_at, last_run_seconds, last_done, failed_at, last_error, term)
SELECT p.name, p.every, p.runs, p.done, p.failures, p.failing, p.behind,
    clock_fact() - make_interval(secs => p.run_age), p.run_seconds, p.run_done,
    clock_fact() - make_interval(secs => p.failed_age), p.error, $13::bigint
FROM unnest($1::text[], $2::float8[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[],
    $7::float8[], $8::float8[], $9::float8[], $10::bigint[], $11::float8[], $12::text[])
    AS p(name, every, runs, done, failures, failing, behind, run_age, run_seconds, run_done,
        failed_age, error)
ON CONFLICT (name) DO UPDATE SET interval_seconds = excluded.interval_seconds,
    runs = s.runs + excluded.runs, done = s.done + excluded.done,
    failures = s.failures + excluded.failures, failing = excluded.failing,
    behind_seconds = excluded.behind_seconds,
    last_run_at = coalesce(excluded.last_run_at, s.last_run_at),
    last_run_seconds = coalesce(excluded.last_run_seconds, s.last_run_seconds),
    last_done = coalesce(excluded.last_done, s.last_done),
    failed_at = coalesce(excluded.failed_at, s.failed_at),
    last_error = coalesce(excluded.last_error, s.last_error), term = excluded.term
"""


async def report(conn: Connection, passes: Sequence[Passes], term: int) -> None:
    """Add to what is known of these sweeps; the caller has proved the term."""
    columns = list(zip(*(astuple(one) for one in passes), strict=True))
    await conn.execute(_REPORT, *map(list, columns), term)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is known of a sweep; times and ages by the database's clock."""

    name: str
    term: int
    interval_seconds: float
    last_run_at: datetime | None
    last_run_seconds: float | None
    last_done: int | None
    runs: int
    done: int
    failures: int
    failing: int
    failed_at: datetime | None
    last_error: str | None
    age_seconds: float | None
    """Since its last good pass."""
    lag_seconds: float
    """How far behind: the time by which its pass is overdue, and the age of what it left due.

    Where that age is not known, it is the time for which each pass has left something to do.
    """


_LIST = """
-- sweeps.list_all
SELECT s.name, s.term, s.interval_seconds, s.last_run_at, s.last_run_seconds, s.last_done, s.runs,
    s.done, s.failures, s.failing, s.failed_at, s.last_error, a.age AS age_seconds,
    s.behind_seconds + greatest(coalesce(a.age, s.interval_seconds) - s.interval_seconds, 0)
        AS lag_seconds
FROM sweeps s CROSS JOIN LATERAL (
    SELECT extract(epoch FROM clock_fact() - s.last_run_at)::float8 AS age) a
ORDER BY s.name
"""


async def list_all(conn: Connection) -> list[Sweep]:
    """All sweeps that ever ran, by name."""
    return [Sweep(**dict(row)) for row in await conn.fetch(_LIST)]
