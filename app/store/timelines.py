"""Reads of the two partitioned tables.

Each statement carries a bound on `created_at` that touches at most three partitions; a longer span
is read in steps.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from app.domain.records import Event, HeartbeatRecord
from app.store.database import Connection

_EVENT_STEP = timedelta(days=59)  # touches at most three months
_BEAT_STEP = timedelta(days=2)  # touches at most three days

_SPAN = """
-- timelines.span
SELECT created_at, last_event_at, greatest(last_event_at, clock_fact()) AS now,
    finished_at FROM execution_attempts WHERE id = $1
"""


async def _span(conn: Connection, attempt_id: UUID) -> tuple[datetime, datetime, datetime] | None:
    """From when and until when an attempt can have events, and beats; None: no such attempt."""
    row = await conn.fetchrow(_SPAN, attempt_id)
    if row is None:
        return None
    last_beat = row["finished_at"] or row["now"]
    return row["created_at"], row["last_event_at"], last_beat


_EVENTS = """
-- timelines.list_events
SELECT id, attempt_id, event_number, event_type, payload, created_at FROM attempt_events
WHERE attempt_id = $1 AND created_at BETWEEN $2 AND $3 AND event_number > $4
ORDER BY created_at, event_number LIMIT $5
"""


async def list_events(
    conn: Connection, attempt_id: UUID, *, after: int, limit: int
) -> list[Event] | None:
    """At most `limit` events with a number above `after`, in order; None: no such attempt."""
    span = await _span(conn, attempt_id)
    if span is None:
        return None
    start, end, _ = span
    events: list[Event] = []
    while start <= end and len(events) < limit:
        stop = min(end, start + _EVENT_STEP)
        rows = await conn.fetch(_EVENTS, attempt_id, start, stop, after, limit - len(events))
        events += [Event.model_validate(dict(row)) for row in rows]
        start = stop + timedelta(microseconds=1)
    return events


_BEATS = """
-- timelines.list_heartbeats
SELECT id, attempt_id, runner_instance_id, phase, progress_percent, message, created_at
FROM attempt_heartbeats
WHERE attempt_id = $1 AND created_at BETWEEN $2 AND $3 AND (created_at, id) < ($4, $5)
ORDER BY created_at DESC, id DESC LIMIT $6
"""


async def list_heartbeats(
    conn: Connection, attempt_id: UUID, *, before: tuple[datetime, UUID] | None, limit: int
) -> list[HeartbeatRecord] | None:
    """At most `limit` beats before that place, newest first; None: no such attempt."""
    span = await _span(conn, attempt_id)
    if span is None:
        return None
    start, _, end = span
    place = before or (end + timedelta(microseconds=1), UUID(int=0))
    end = min(end, place[0])
    beats: list[HeartbeatRecord] = []
    while start <= end and len(beats) < limit:
        begin = max(start, end - _BEAT_STEP)
        rows = await conn.fetch(_BEATS, attempt_id, begin, end, *place, limit - len(beats))
        beats += [HeartbeatRecord.model_validate(dict(row)) for row in rows]
        end = begin - timedelta(microseconds=1)
    return beats
