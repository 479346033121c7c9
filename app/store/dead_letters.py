"""Statements on dead letters: messages that can never be processed, until an operator decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

import asyncpg

from app.store.database import Connection
from app.store.messages import Message

State: TypeAlias = Literal["open", "redriven", "discarded"]


@dataclass(frozen=True, slots=True)
class Burial:
    """A message that is given up; `payload` is a JSON text without any secret."""

    id: UUID
    message: Message
    reason: str
    detail: str
    payload: str | None
    payload_bytes: int
    redrivable: bool
    failures: int


@dataclass(frozen=True, slots=True)
class Letter:
    """One stored dead letter. `payload` is JSON, masked, or only its form."""

    id: UUID
    message_digest: str
    reason: str
    detail: str
    subscription: str
    message_id: str
    envelope_id: str | None
    handler: str | None
    payload: str | None
    payload_bytes: int
    redrivable: bool
    failures: int
    deliveries: int
    first_at: datetime
    last_at: datetime
    redrives: int
    redriven_at: datetime | None
    redriven_by: str | None
    redrive_request_id: UUID | None
    redrive_outcome: str | None
    discarded_at: datetime | None
    discarded_by: str | None

    @property
    def state(self) -> State:
        """Whether it still waits for somebody's decision."""
        if self.redriven_at is not None:
            return "redriven"
        return "open" if self.discarded_at is None else "discarded"


_COLUMNS = """d.id, d.message_digest, d.reason, d.detail, d.subscription, d.message_id,
    d.envelope_id, d.handler, d.payload, d.payload_bytes, d.redrivable, d.failures, d.deliveries,
    d.first_at, d.last_at, d.redrives, d.redriven_at, d.redriven_by, d.redrive_request_id,
    d.redrive_outcome, d.discarded_at, d.discarded_by"""


def _letter(row: asyncpg.Record) -> Letter:
    return Letter(**dict(row))


# A letter that was closed and whose message fails once more is open again.
_RECORD = """
-- dead_letters.record
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
        $7::text[], $8::text[], $9::text[], $10::bigint[], $11::bool[], $12::int[])
    AS i(id, digest, reason, detail, subscription, message_id, envelope_id, handler, payload,
        payload_bytes, redrivable, failures)
), buried AS (
    INSERT INTO dead_letters AS d (id, message_digest, reason, detail, subscription, message_id,
        envelope_id, handler, payload, payload_bytes, redrivable, failures, first_at, last_at)
    SELECT i.id, i.digest, i.reason, i.detail, i.subscription, i.message_id, i.envelope_id,
        i.handler, i.payload, i.payload_bytes, i.redrivable, i.failures,
        coalesce((SELECT first_failed_at FROM message_failures WHERE message_digest = i.digest),
            clock_fact()), clock_fact()
    FROM input i ORDER BY i.digest
    ON CONFLICT (message_digest) DO UPDATE SET deliveries = d.deliveries + 1,
        failures = d.failures + excluded.failures, last_at = clock_fact(),
        reason = excluded.reason, detail = excluded.detail, message_id = excluded.message_id,
        redriven_at = NULL, redriven_by = NULL, redrive_request_id = NULL,
        redrive_outcome = NULL, discarded_at = NULL, discarded_by = NULL
), forgotten AS (
    DELETE FROM message_failures WHERE message_digest IN (SELECT digest FROM input)
)
SELECT
"""


async def record(conn: Connection, burials: Sequence[Burial]) -> None:
    """Record the letters, one a digest; one that arrives again is counted on the same row."""
    await conn.execute(
        _RECORD,
        [burial.id for burial in burials],
        [burial.message.digest for burial in burials],
        [burial.reason for burial in burials],
        [burial.detail for burial in burials],
        [burial.message.subscription for burial in burials],
        [burial.message.message_id for burial in burials],
        [burial.message.envelope_id for burial in burials],
        [burial.message.handler for burial in burials],
        [burial.payload for burial in burials],
        [burial.payload_bytes for burial in burials],
        [burial.redrivable for burial in burials],
        [burial.failures for burial in burials],
    )


_FIND = f"""
-- dead_letters.find
SELECT {_COLUMNS} FROM dead_letters d WHERE d.id = $1
"""


async def find(conn: Connection, letter_id: UUID) -> Letter | None:
    """The letter, or None."""
    row = await conn.fetchrow(_FIND, letter_id)
    return None if row is None else _letter(row)


_LIST = f"""
-- dead_letters.list_letters
SELECT {_COLUMNS} FROM dead_letters d
WHERE ($1::text IS NULL OR d.reason = $1) AND ($2::text IS NULL OR d.handler = $2)
    AND ($3::text IS NULL OR $3 = CASE WHEN d.redriven_at IS NOT NULL THEN 'redriven'
        WHEN d.discarded_at IS NOT NULL THEN 'discarded' ELSE 'open' END)
    AND ($4::timestamptz IS NULL OR (d.first_at, d.id) < ($4, $5::uuid))
ORDER BY d.first_at DESC, d.id DESC LIMIT $6
"""


async def list_letters(
    conn: Connection,
    *,
    reason: str | None,
    handler: str | None,
    state: State | None,
    before: tuple[datetime, UUID] | None,
    limit: int,
) -> list[Letter]:
    """At most `limit` letters before that place, the newest first failure first."""
    moment, letter_id = before or (None, None)
    rows = await conn.fetch(_LIST, reason, handler, state, moment, letter_id, limit)
    return [_letter(row) for row in rows]


_MARK_REDRIVEN = f"""
-- dead_letters.mark_redriven
UPDATE dead_letters d SET redriven_at = clock_fact(), redriven_by = $2, redrive_request_id = $3,
    redrive_outcome = $4, redrives = d.redrives + 1, discarded_at = NULL, discarded_by = NULL
WHERE d.id = $1 AND d.redriven_at IS NULL AND (d.discarded_at IS NULL OR $5)
RETURNING {_COLUMNS}
"""


async def mark_redriven(
    conn: Connection,
    letter_id: UUID,
    by: str,
    request_id: UUID,
    outcome: str,
    *,
    even_discarded: bool,
) -> Letter | None:
    """Close the letter as redriven; None if it is closed already.

    `even_discarded`: the effect is there, whatever somebody decided meanwhile.
    """
    row = await conn.fetchrow(_MARK_REDRIVEN, letter_id, by, request_id, outcome, even_discarded)
    return None if row is None else _letter(row)


_NOTE_FAILED_REDRIVE = """
-- dead_letters.note_failed_redrive
UPDATE dead_letters SET redrives = redrives + 1, last_at = clock_fact(), reason = $2, detail = $3
WHERE id = $1 AND redriven_at IS NULL AND discarded_at IS NULL
"""


async def note_failed_redrive(conn: Connection, letter_id: UUID, reason: str, detail: str) -> None:
    """The handler refused the letter once more, and why."""
    await conn.execute(_NOTE_FAILED_REDRIVE, letter_id, reason, detail)


_DISCARD = f"""
-- dead_letters.discard
UPDATE dead_letters d SET discarded_at = clock_fact(), discarded_by = $2
WHERE d.id = $1 AND d.redriven_at IS NULL AND d.discarded_at IS NULL
RETURNING {_COLUMNS}
"""


async def discard(conn: Connection, letter_id: UUID, by: str) -> Letter | None:
    """Close the letter without an effect; None if there is no open one with this id."""
    row = await conn.fetchrow(_DISCARD, letter_id, by)
    return None if row is None else _letter(row)


_COUNT_OPEN = """
-- dead_letters.count_open
SELECT reason, count(*) AS letters FROM dead_letters
WHERE redriven_at IS NULL AND discarded_at IS NULL GROUP BY reason
"""


async def count_open(conn: Connection) -> dict[str, int]:
    """How many letters wait for a decision, by reason."""
    return {row["reason"]: row["letters"] for row in await conn.fetch(_COUNT_OPEN)}


_REMOVE_OLD = """
-- dead_letters.remove_old
DELETE FROM dead_letters WHERE id IN (
    SELECT id FROM dead_letters WHERE last_at < clock_now() - $1::interval
    ORDER BY last_at LIMIT $2 FOR UPDATE SKIP LOCKED)
"""


async def remove_old(conn: Connection, age: timedelta, limit: int) -> int:
    """Remove at most `limit` letters whose message came last so long ago; return how many."""
    return int((await conn.execute(_REMOVE_OLD, age, limit)).split()[-1])
