"""The feed: all events in an order that a reader can follow without loss.

Read below the oldest running transaction, so nothing can appear before a cursor that was given out.
The order of the feed and that of the clock differ by at most SKEW within an epoch (transactions are
short, and a clock that is set back by more begins a new epoch). So what comes after a cursor was
created at most that long before it, which bounds every read; and a read of the past goes through
time in windows, each of which is trusted up to SKEW before its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from app.domain.errors import FeedCursorExpired, FeedEpochChanged
from app.domain.feed import (
    EVENT_OF_TYPE,
    SKEW,
    TYPE_PREFIX,
    Cursor,
    FeedEvent,
    start_of_epoch,
)
from app.store.database import Connection

_WINDOW = timedelta(days=59)  # touches at most three months
_SCAN = 1000
_MAX_STATEMENTS = 12
_SOON = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Page:
    """What was read, and where to go on. Caught up: nothing else could be read at that moment."""

    events: tuple[FeedEvent, ...]
    next_cursor: Cursor
    caught_up: bool


@dataclass(frozen=True, slots=True)
class _Epoch:
    number: int
    begun_at: datetime
    end_xid: int | None
    """Its last one; None: it goes on."""
    facts_until: datetime
    """No fact of it is dated later than this and SKEW."""
    begins_ahead_until: datetime | None
    """Up to here its facts may be dated ahead of the clock, which had been set back."""


@dataclass(frozen=True, slots=True)
class _State:
    """The feed as it stands at one moment."""

    now: datetime
    horizon: int
    oldest: Cursor
    epochs: tuple[_Epoch, ...]

    @property
    def current(self) -> _Epoch:
        return self.epochs[-1]

    def start(self, epoch: _Epoch) -> Cursor:
        return start_of_epoch(epoch.number, max(epoch.begun_at - SKEW, self.oldest.created_from))


_FLOOR = """(
    SELECT make_timestamptz(left(s.month, 4)::int, right(s.month, 2)::int, 1, 0, 0, 0, 'UTC')
    FROM (SELECT min(right(c.relname, 6)) AS month FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'attempt_events'::regclass AND NOT i.inhdetachpending) s)"""

_LOOK = f"""
-- feed.look
SELECT e.number, e.begun_at, e.facts_until, e.previous_end_xid,
    pg_snapshot_xmin(pg_current_snapshot()) AS horizon, clock_now() AS now, {_FLOOR} AS floor
FROM feed_epochs e ORDER BY e.number
"""


async def _look(conn: Connection) -> _State:
    rows = await conn.fetch(_LOOK)
    first, now = rows[0], rows[0]["now"]
    epochs = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        ahead = row["facts_until"]
        until = max(now, ahead or now) if after is None else after["facts_until"]
        end = None if after is None else after["previous_end_xid"]
        epochs.append(_Epoch(row["number"], row["begun_at"], end, until, ahead))
    oldest = start_of_epoch(first["number"], first["floor"] or first["begun_at"] - SKEW)
    return _State(now, first["horizon"], oldest, tuple(epochs))


def _epoch_of(cursor: Cursor, state: _State) -> _Epoch:
    """The epoch of a cursor that may be used. Raises FeedEpochChanged or FeedCursorExpired."""
    found = [epoch for epoch in state.epochs if epoch.number == cursor.epoch]
    if not found:
        raise FeedEpochChanged(start=state.start(state.current).encode())
    [epoch] = found
    if epoch.end_xid is None and cursor.xid >= state.horizon:
        raise FeedEpochChanged(start=state.start(epoch).encode())
    if epoch.end_xid is not None and cursor.xid > epoch.end_xid:
        following = state.epochs[state.epochs.index(epoch) + 1]
        raise FeedEpochChanged(start=state.start(following).encode())
    if cursor.created_from < state.oldest.created_from:
        raise FeedCursorExpired(oldest=state.oldest.encode())
    return epoch


# An epoch that has ended has no writer any more, so nothing of it is held back.
_READ = """
-- feed.read
SELECT e.id, e.event_type, e.created_at, e.attempt_id, e.event_number, e.feed_xid,
    coalesce(a.operation_id, '00000000-0000-0000-0000-000000000000') AS operation_id,
    coalesce(a.job_type, '') AS job_type, e.payload
FROM (
    SELECT id, event_type, created_at, attempt_id, event_number, feed_xid, payload
    FROM attempt_events
    WHERE feed_epoch = $1
        AND (feed_epoch, feed_xid, attempt_id, event_number) > ($1, $2::xid8, $3, $4)
        AND feed_xid < CASE WHEN $5 THEN pg_snapshot_xmin(pg_current_snapshot())
            ELSE '18446744073709551615'::xid8 END
        AND created_at >= $6 AND created_at < $7
    ORDER BY feed_epoch, feed_xid, attempt_id, event_number LIMIT $8
) e LEFT JOIN execution_attempts a ON a.id = e.attempt_id
ORDER BY e.feed_xid, e.attempt_id, e.event_number
"""


@dataclass(frozen=True, slots=True)
class _Filter:
    event_types: frozenset[str] | None
    operation_ids: frozenset[UUID] | None
    job_types: frozenset[str] | None

    @property
    def is_open(self) -> bool:
        return (self.event_types, self.operation_ids, self.job_types) == (None, None, None)

    def takes(self, event_type: str, operation_id: UUID, job_type: str) -> bool:
        return (
            (self.event_types is None or event_type in self.event_types)
            and (self.operation_ids is None or operation_id in self.operation_ids)
            and (self.job_types is None or job_type in self.job_types)
        )


class _Reading:
    """One read: from window to window, and from epoch to epoch."""

    def __init__(self, state: _State, after: Cursor, limit: int, filter_: _Filter) -> None:
        self.state = state
        self.place = after
        self.limit = limit
        self.filter = filter_
        self.epoch = _epoch_of(after, state)
        self.events: list[FeedEvent] = []
        self.caught_up = False

    async def step(self, conn: Connection) -> None:
        """Read one window, or as much of it as is wanted."""
        place, epoch = self.place, self.epoch
        top = place.created_from + _WINDOW
        if epoch.begins_ahead_until is not None and place.created_from < epoch.begins_ahead_until:
            top = max(top, epoch.begins_ahead_until + 2 * SKEW)
        wanted = self.limit - len(self.events) if self.filter.is_open else _SCAN
        is_current = epoch.end_xid is None
        rows = await conn.fetch(
            _READ,
            *(epoch.number, place.xid, place.attempt_id, place.event_number),
            *(is_current, place.created_from, top, wanted),
        )
        is_last = top >= epoch.facts_until + SKEW
        for row in rows:
            if not is_last and row["created_at"] >= top - SKEW:
                self._forward_to(row["created_at"] - SKEW)
                return
            self._pass(row)
            if len(self.events) == self.limit:
                return
        if len(rows) == wanted:
            return
        if not is_last:
            self._forward_to(min(top, self.state.now) - SKEW)
        elif is_current:
            self._forward_to(self.state.now - SKEW)
            self.caught_up = True
        else:
            self._enter_next_epoch()

    def _pass(self, row: asyncpg.Record) -> None:
        # By position: by name it would be the larger part of a read's time.
        identifier, kind, created_at, attempt_id, number, xid, operation_id, job_type, data = row
        epoch, bound = self.epoch, self.place.created_from
        ahead = epoch.begins_ahead_until
        # What may be dated ahead of what was written after it moves no bound.
        if ahead is None or created_at >= ahead + SKEW:
            bound = max(bound, min(created_at, self.state.now) - SKEW)
        place = self.place = Cursor(epoch.number, xid, attempt_id, number, bound)
        if self.filter.takes(kind, operation_id, job_type):
            self.events.append(
                FeedEvent(
                    identifier,
                    TYPE_PREFIX + kind,
                    created_at,
                    attempt_id,
                    number,
                    data,
                    operation_id,
                    job_type,
                    place,
                )
            )

    def _forward_to(self, moment: datetime) -> None:
        self.place = replace(self.place, created_from=max(self.place.created_from, moment))

    def _enter_next_epoch(self) -> None:
        self.epoch = self.state.epochs[self.state.epochs.index(self.epoch) + 1]
        self.place = self.state.start(self.epoch)


# The months to come are empty, and an empty table is scanned before an index is used. But one part
# that has no order makes the whole be sorted: everything behind the cursor, for each page.
_IN_ORDER = """
-- feed.in_order
SELECT set_config('enable_seqscan', 'off', true)
"""


async def read(
    conn: Connection,
    after: Cursor,
    limit: int,
    *,
    types: Sequence[str] | None = None,
    operation_ids: Sequence[UUID] | None = None,
    job_types: Sequence[str] | None = None,
) -> Page:
    """At most `limit` events after a cursor, in order; `types` such as `attempt.succeeded`.

    The filters are ANDed. `next_cursor` has passed what they left out too, so a read that found
    nothing may have moved on; while not caught up, read again at once. Each statement touches at
    most three months, and more only while the clock is behind facts that were dated before it was
    set back. Raises FeedEpochChanged (with `start`) or FeedCursorExpired (with `oldest`).
    """
    filter_ = _Filter(
        None if types is None else frozenset(EVENT_OF_TYPE[one].value for one in types),
        None if operation_ids is None else frozenset(operation_ids),
        None if job_types is None else frozenset(job_types),
    )
    await conn.execute(_IN_ORDER)
    state = await _look(conn)
    reading = _Reading(state, after, limit, filter_)
    for _ in range(_MAX_STATEMENTS):
        await reading.step(conn)
        if reading.caught_up or len(reading.events) == limit:
            break
    if after.created_from < state.now - _SOON:
        # Retention may have removed a month between the look and the read.
        _epoch_of(after, await _look(conn))
    return Page(tuple(reading.events), reading.place, reading.caught_up)


async def oldest(conn: Connection) -> Cursor:
    """The place before the oldest event that is kept."""
    return (await _look(conn)).oldest


_LATEST = """
-- feed.latest
SELECT feed_xid, attempt_id, event_number FROM attempt_events
WHERE feed_epoch = $1 AND feed_xid < pg_snapshot_xmin(pg_current_snapshot())
    AND created_at >= $2 AND created_at < $3
ORDER BY feed_epoch DESC, feed_xid DESC, attempt_id DESC, event_number DESC LIMIT 1
"""


async def latest(conn: Connection) -> Cursor:
    """The place of the newest event that can be read now."""
    state = await _look(conn)
    begin, end = state.now - timedelta(days=31), state.current.facts_until + SKEW
    row = await conn.fetchrow(_LATEST, state.current.number, begin, end)
    bound = state.now - SKEW
    if row is None:
        return start_of_epoch(state.current.number, bound)
    return Cursor(
        state.current.number, row["feed_xid"], row["attempt_id"], row["event_number"], bound
    )


@dataclass(frozen=True, slots=True)
class Holder:
    """The transaction that holds the feed back: nothing after its id can be read before it ends."""

    kind: str
    """`session` or `prepared`."""
    name: str
    """The process id of its session, or the name of the prepared transaction."""
    database: str | None
    application: str | None
    state: str | None
    """Of the session, such as `idle in transaction`; what it waits for behind a comma."""
    statement: str | None
    """The name of the statement, where it is one of ours."""
    age_seconds: float | None
    """None where this service may not see it, and no event is hidden yet."""


# Replication slots hold vacuum back and not the feed; a commit that waits for a standby is a
# session's, and its wait shows here. Only the name of a statement is told: its text may hold more.
# When a foreign role's transaction began may not be seen; then its age is that of the first event
# that it hides.
_HORIZON = """
-- feed.horizon
SELECT kind, name, database, application, state, statement,
    extract(epoch FROM clock_timestamp() - coalesce(began_at, (
        SELECT v.created_at FROM attempt_events v
        WHERE v.feed_epoch = (SELECT max(number) FROM feed_epochs)
            AND v.feed_xid >= pg_snapshot_xmin(pg_current_snapshot())
            AND v.created_at > clock_now() - interval '31 d'
            AND v.created_at < clock_now() + interval '2 h'
        ORDER BY v.feed_epoch, v.feed_xid, v.attempt_id, v.event_number LIMIT 1
    )))::float8 AS age_seconds
FROM (
    SELECT 'session' AS kind, pid::text AS name, datname::text AS database,
        application_name AS application,
        state || coalesce(', ' || wait_event_type || ' ' || wait_event, '') AS state,
        substring(query FROM '^\\s*-- ([a-z_]+\\.[a-z_]+)\\s') AS statement,
        xact_start AS began_at, age(backend_xid) AS behind
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT 'prepared', gid, database::text, NULL, NULL, NULL, prepared, age(transaction)
    FROM pg_prepared_xacts) s
ORDER BY behind DESC LIMIT 1
"""


async def horizon(conn: Connection) -> Holder | None:
    """The oldest running transaction that writes, anywhere in the cluster; None: there is none."""
    row = await conn.fetchrow(_HORIZON)
    return None if row is None else Holder(**dict(row))
