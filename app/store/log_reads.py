"""Reads of logs: what there is of a stream, in which order, and in which objects it lies.

Chunks are read in the order of (lease number, arrival number), which never changes: within a lease
a chunk's number is greater than that of every chunk that was visible before it. Whatever merges
small objects leaves the rows, their numbers and their sizes alone, so a place in this order stays
what it is. `stream` None: all streams of the attempt, as they came in.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection
from app.store.logs import Terms, grace_ends_at

LAST_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class View:
    """What is read of an attempt's logs: one stream or all, of one lease or all."""

    attempt_id: UUID
    stream: str | None
    lease_number: int | None = None


_IN_VIEW = """r.attempt_id = $1 AND ($2::text IS NULL OR r.stream = $2)
        AND ($3::int IS NULL OR r.lease_number = $3)"""


@dataclass(frozen=True, slots=True)
class LeaseLog:
    """What may still come of the log of one lease."""

    attempt_ended: bool
    lease_number: int | None
    """None: the attempt has had no lease."""
    is_active: bool
    grace_over: bool
    closed: bool
    """Every stream of the view that there is was closed by its sender or cut off."""
    all_closed: bool
    """The same of every stream of the lease."""
    truncated: bool
    """A stream of the view was cut off at the attempt's limit."""


_GRACE_ENDS_AT = grace_ends_at("$5::interval", "$4::interval")
_LIST_LEASES = f"""
-- log_reads.list_leases
SELECT a.finished_at IS NOT NULL AS attempt_ended, l.lease_number,
    coalesce(l.status = 'active', false) AS is_active,
    coalesce(l.status <> 'active' AND clock_now() >= {_GRACE_ENDS_AT}, false) AS grace_over,
    coalesce(c.closed, false) AS closed, coalesce(c.all_closed, false) AS all_closed,
    coalesce(c.truncated, false) AS truncated
FROM execution_attempts a
LEFT JOIN runner_leases l ON l.attempt_id = a.id AND ($3::int IS NULL OR l.lease_number = $3)
LEFT JOIN LATERAL (
    SELECT bool_and(s.final OR s.truncated_at IS NOT NULL) AS all_closed,
        bool_and(s.final OR s.truncated_at IS NOT NULL)
            FILTER (WHERE $2::text IS NULL OR s.stream = $2) AS closed,
        bool_or(s.truncated_at IS NOT NULL)
            FILTER (WHERE $2::text IS NULL OR s.stream = $2) AS truncated
    FROM log_streams s WHERE s.attempt_id = a.id AND s.lease_number = l.lease_number) c ON true
WHERE a.id = $1 ORDER BY l.lease_number
"""


async def list_leases(conn: Connection, view: View, terms: Terms) -> list[LeaseLog]:
    """The leases of the view in order; one without a number if there is none yet; none: unknown."""
    rows = await conn.fetch(
        _LIST_LEASES,
        view.attempt_id,
        view.stream,
        view.lease_number,
        terms.lease_time,
        terms.grace,
    )
    return [LeaseLog(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Run:
    """Chunks of one lease of which none is missing, and what is missing before them."""

    lease_number: int
    first_number: int
    last_number: int
    byte_size: int
    line_count: int
    hole_in: str | None
    hole_from: int | None
    hole_to: int | None


# A hole is where a chunk does not begin where the one before it in its stream ended.
_LIST_RUNS = f"""
-- log_reads.list_runs
SELECT c.lease_number, min(c.arrival_number) AS first_number, max(c.arrival_number) AS last_number,
    sum(c.byte_size)::bigint AS byte_size, sum(c.line_count)::bigint AS line_count,
    min(c.stream) FILTER (WHERE c.is_hole) AS hole_in,
    min(c.expected) FILTER (WHERE c.is_hole) AS hole_from,
    min(c.stream_offset) FILTER (WHERE c.is_hole) AS hole_to
FROM (
    SELECT b.*, count(*) FILTER (WHERE b.is_hole)
        OVER (PARTITION BY b.lease_number ORDER BY b.arrival_number) AS run
    FROM (
        SELECT a.*, a.stream_offset <> a.expected AS is_hole FROM (
            SELECT r.lease_number, r.arrival_number, r.stream, r.stream_offset, r.byte_size,
                r.line_count, coalesce(lag(r.stream_offset + r.raw_size) OVER (
                    PARTITION BY r.lease_number, r.stream ORDER BY r.arrival_number), 0) AS expected
            FROM raw_log_refs r WHERE {_IN_VIEW}) a) b) c
GROUP BY c.lease_number, c.run ORDER BY c.lease_number, c.run
"""


async def list_runs(conn: Connection, view: View) -> list[Run]:
    """All that is kept of the view, in order. One row a lease, unless something is missing."""
    rows = await conn.fetch(_LIST_RUNS, view.attempt_id, view.stream, view.lease_number)
    return [Run(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a stream that was accepted once and is not kept any more."""

    lease_number: int
    stream: str
    hole_from: int
    hole_to: int


_LIST_TAILS = """
-- log_reads.list_tails
SELECT s.lease_number, s.stream, k.kept AS hole_from, s.next_offset AS hole_to
FROM log_streams s CROSS JOIN LATERAL (
    SELECT coalesce(max(r.stream_offset + r.raw_size), 0) AS kept FROM raw_log_refs r
    WHERE r.attempt_id = s.attempt_id AND r.lease_number = s.lease_number
        AND r.stream = s.stream) k
WHERE s.attempt_id = $1 AND ($2::text IS NULL OR s.stream = $2)
    AND ($3::int IS NULL OR s.lease_number = $3) AND k.kept < s.next_offset
ORDER BY s.lease_number, s.stream
"""


async def list_tails(conn: Connection, view: View) -> list[Tail]:
    """What is missing at the ends of the view's streams."""
    rows = await conn.fetch(_LIST_TAILS, view.attempt_id, view.stream, view.lease_number)
    return [Tail(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk: which object holds it, from where on, and how many bytes of it."""

    lease_number: int
    arrival_number: int
    object_key: str
    object_offset: int
    byte_size: int


_LIST_PARTS = f"""
-- log_reads.list_parts
SELECT r.lease_number, r.arrival_number, f.key AS object_key, r.object_offset, r.byte_size
FROM raw_log_refs r JOIN artifact_refs f ON f.id = r.artifact_ref_id
WHERE {_IN_VIEW} AND (r.lease_number, r.arrival_number) > ($4, $5)
    AND (r.lease_number, r.arrival_number) <= ($6, $7)
ORDER BY r.lease_number, r.arrival_number LIMIT $8
"""


async def list_parts(
    conn: Connection, view: View, after: tuple[int, int], last: tuple[int, int], limit: int
) -> list[Part]:
    """At most `limit` chunks of the view, behind one place and up to another, in order."""
    rows = await conn.fetch(
        _LIST_PARTS,
        view.attempt_id,
        view.stream,
        view.lease_number,
        *after,
        *last,
        limit,
    )
    return [Part(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk within a run, and what lies before it in the run."""

    arrival_number: int
    bytes_before: int
    lines_before: int


_WITHIN = f"""SELECT c.arrival_number, c.bytes_before, c.lines_before FROM (
    SELECT r.arrival_number, r.byte_size, r.line_count,
        (sum(r.byte_size) OVER w - r.byte_size)::bigint AS bytes_before,
        (sum(r.line_count) OVER w - r.line_count)::bigint AS lines_before
    FROM raw_log_refs r
    WHERE {_IN_VIEW} AND r.lease_number = $4 AND r.arrival_number BETWEEN $5 AND $6
    WINDOW w AS (ORDER BY r.arrival_number)) c"""

_FIND_BYTE = f"""
-- log_reads.find_byte
{_WITHIN}
WHERE c.bytes_before + c.byte_size > $7 ORDER BY c.arrival_number LIMIT 1
"""

_FIND_LINE = f"""
-- log_reads.find_line
{_WITHIN}
WHERE c.lines_before + c.line_count >= $7 ORDER BY c.arrival_number LIMIT 1
"""


async def find_byte(conn: Connection, view: View, run: Run, offset: int) -> Found | None:
    """The chunk that holds this byte of the run, counted from 0."""
    return await _find(conn, _FIND_BYTE, view, run, offset)


async def find_line(conn: Connection, view: View, run: Run, number: int) -> Found | None:
    """The chunk that holds this line feed of the run, counted from 1."""
    return await _find(conn, _FIND_LINE, view, run, number)


async def _find(conn: Connection, statement: str, view: View, run: Run, value: int) -> Found | None:
    row = await conn.fetchrow(
        statement,
        view.attempt_id,
        view.stream,
        view.lease_number,
        run.lease_number,
        run.first_number,
        run.last_number,
        value,
    )
    return None if row is None else Found(**dict(row))


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One stream of one lease."""

    lease_number: int
    stream: str
    next_offset: int
    stored_size: int
    line_count: int
    final: bool
    truncated: bool


_LIST_STREAMS = """
-- log_reads.list_streams
SELECT lease_number, stream, next_offset, stored_size, line_count, final,
    truncated_at IS NOT NULL AS truncated
FROM log_streams WHERE attempt_id = $1 ORDER BY lease_number, stream
"""


async def list_streams(conn: Connection, attempt_id: UUID) -> list[StreamSummary]:
    """All streams of an attempt."""
    return [StreamSummary(**dict(row)) for row in await conn.fetch(_LIST_STREAMS, attempt_id)]
