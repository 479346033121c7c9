"""Statements on pushed messages: which are done, which failed, which died, which are old.

A message is known by its digests, one for each server key, the current key's first. Rows are
written under the first and found under any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Message:
    """A pushed message as it is noted."""

    digest: str
    digests: Sequence[str]
    handler: str | None
    envelope_id: str | None
    message_id: str
    subscription: str


@dataclass(frozen=True, slots=True)
class History:
    """What is known of a message before it is worked on."""

    processed: bool
    noted: bool
    """It failed, died or is being worked on: there is a row to remove once it is done."""
    deaths: int
    abandoned: bool
    """Another process marked it as being worked on and did not come back in time."""


NOTHING = History(processed=False, noted=False, deaths=0, abandoned=False)
"""Of a message that was never seen before, as nearly all are."""


def _flat(batch: Sequence[Message]) -> tuple[list[int], list[str]]:
    """Every digest of these messages, each beside the position of its message."""
    pairs = [(place, digest) for place, one in enumerate(batch) for digest in one.digests]
    return [place for place, _ in pairs], [digest for _, digest in pairs]


# Only what is known of a message makes a row, so there is nothing to read where all are new.
_FIND_HISTORIES = """
-- messages.find_histories
SELECT i.place, bool_or(p.message_digest IS NOT NULL) AS processed,
    bool_or(f.message_digest IS NOT NULL) AS noted, coalesce(max(f.deaths), 0) AS deaths,
    coalesce(bool_or(f.working_process <> $3
        AND f.working_since < clock_now() - $4::interval), false) AS abandoned
FROM unnest($1::int[], $2::text[]) AS i(place, digest)
LEFT JOIN processed_messages p ON p.message_digest = i.digest
LEFT JOIN message_failures f ON f.message_digest = i.digest
WHERE p.message_digest IS NOT NULL OR f.message_digest IS NOT NULL
GROUP BY i.place
"""


async def find_histories(
    conn: Connection, batch: Sequence[Message], process_id: UUID, patience: timedelta
) -> list[History]:
    """What is known of these messages, by position."""
    rows = await conn.fetch(_FIND_HISTORIES, *_flat(batch), process_id, patience)
    found = {
        row["place"]: History(row["processed"], row["noted"], row["deaths"], row["abandoned"])
        for row in rows
    }
    return [found.get(place, NOTHING) for place in range(len(batch))]


_ANY_NOTED = """
-- messages.any_noted
SELECT EXISTS (SELECT FROM message_failures)
"""


async def any_noted(conn: Connection) -> bool:
    """Whether any message at all failed, died or is being worked on for long."""
    return bool(await conn.fetchval(_ANY_NOTED))


@dataclass(frozen=True, slots=True)
class Entered:
    """Whether the message's lock was gained, and whether it failed or died before."""

    gained: bool
    noted: bool


# One lock a digest, so that instances with different current keys exclude each other as well.
# All are tried, in an order that lets of two at once one gain all.
_ENTER = """
-- messages.enter
WITH tried AS MATERIALIZED (
    SELECT i.place, i.digest,
        pg_try_advisory_xact_lock(hashtextextended(i.digest, 0)) AS gained
    FROM (SELECT * FROM unnest($1::int[], $2::text[]) AS u(place, digest) ORDER BY digest) i
)
SELECT t.place, bool_and(t.gained) AS gained, bool_or(f.message_digest IS NOT NULL) AS noted
FROM tried t LEFT JOIN message_failures f ON f.message_digest = t.digest
    AND (f.failures + f.deaths > 0 OR f.working_process IS DISTINCT FROM $3)
GROUP BY t.place
"""


async def enter(conn: Connection, batch: Sequence[Message], process_id: UUID) -> list[Entered]:
    """Lock the messages until the transaction ends; one not gained is worked on by somebody.

    Waits for nobody. What this process has itself marked as being worked on is not told. Every
    lock takes room in the server's memory, so a batch is bounded.
    """
    rows = await conn.fetch(_ENTER, *_flat(batch), process_id)
    found = {row["place"]: Entered(row["gained"], row["noted"]) for row in rows}
    return [found[place] for place in range(len(batch))]


_LIST_PROCESSED = """
-- messages.list_processed
SELECT message_digest FROM processed_messages WHERE message_digest = ANY($1::text[])
"""

_MARK_PROCESSED = """
-- messages.mark_processed_once
INSERT INTO processed_messages (message_digest, handler, envelope_id, message_id, processed_at)
SELECT m.digest, m.handler, m.envelope_id, m.message_id, clock_fact()
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
    AS m(digest, handler, envelope_id, message_id)
WHERE m.digest NOT IN (
    SELECT ($1::text[])[i.place + 1] FROM unnest($5::int[], $6::text[]) AS i(place, digest)
    JOIN processed_messages p ON p.message_digest = i.digest)
ON CONFLICT (message_digest) DO NOTHING RETURNING message_digest
"""

_UNMARK_PROCESSED = """
-- messages.unmark_processed
DELETE FROM processed_messages WHERE message_digest = ANY($1::text[])
"""


async def list_processed(conn: Connection, batch: Sequence[Message]) -> list[bool]:
    """Which of the messages are noted as done. Certain only under their locks."""
    digests = [digest for one in batch for digest in one.digests]
    done = {row["message_digest"] for row in await conn.fetch(_LIST_PROCESSED, digests)}
    return [not done.isdisjoint(one.digests) for one in batch]


async def mark_processed_once(conn: Connection, batch: Sequence[Message]) -> list[bool]:
    """Note in their effects' own transaction that messages are done; False: it was done before.

    Certain only under their locks.
    """
    rows = await conn.fetch(
        _MARK_PROCESSED,
        [one.digest for one in batch],
        [one.handler for one in batch],
        [one.envelope_id for one in batch],
        [one.message_id for one in batch],
        *_flat(batch),
    )
    marked = {row["message_digest"] for row in rows}
    return [one.digest in marked for one in batch]


async def unmark_processed(conn: Connection, batch: Sequence[Message]) -> None:
    """Take back the notes of this same transaction: these messages were refused."""
    await conn.execute(_UNMARK_PROCESSED, [one.digest for one in batch])


_COUNT_FAILURE = """
-- messages.count_failure
INSERT INTO message_failures AS f (message_digest, handler, failures, first_failed_at,
    last_failed_at, last_reason)
VALUES ($1, $2, 1, clock_fact(), clock_fact(), $3)
ON CONFLICT (message_digest) DO UPDATE SET failures = f.failures + 1,
    first_failed_at = coalesce(f.first_failed_at, clock_fact()), last_failed_at = clock_fact(),
    last_reason = $3, working_process = NULL, working_since = NULL
RETURNING failures, last_failed_at - first_failed_at AS lasting
"""


async def count_failure(conn: Connection, message: Message, reason: str) -> tuple[int, timedelta]:
    """Count one failure of the message's own; return (failures, time from first to last)."""
    row = await conn.fetchrow(_COUNT_FAILURE, message.digest, message.handler or "", reason)
    assert row is not None  # noqa: S101 - INSERT … RETURNING
    return row["failures"], row["lasting"]


_FORGET_FAILURES = """
-- messages.forget_failures
DELETE FROM message_failures WHERE message_digest = ANY($1::text[])
"""


async def forget_failures(conn: Connection, message: Message) -> None:
    """The message is done, or dead: how often it had failed matters no more."""
    await conn.execute(_FORGET_FAILURES, list(message.digests))


_MARK_WORKING = """
-- messages.mark_working
INSERT INTO message_failures AS f (message_digest, handler, working_process, working_since)
SELECT m.digest, m.handler, $3, clock_fact()
FROM unnest($1::text[], $2::text[]) AS m(digest, handler) ORDER BY m.digest
ON CONFLICT (message_digest) DO UPDATE SET working_process = $3, working_since = clock_fact()
"""

_CLEAR_WORKING = """
-- messages.clear_working
WITH clean AS (
    DELETE FROM message_failures
    WHERE message_digest = ANY($1::text[]) AND working_process = $2 AND failures = 0 AND deaths = 0
)
UPDATE message_failures SET working_process = NULL, working_since = NULL
WHERE message_digest = ANY($1::text[]) AND working_process = $2 AND failures + deaths > 0
"""

_COUNT_DEATH = """
-- messages.count_death
UPDATE message_failures SET deaths = deaths + 1, working_process = NULL, working_since = NULL,
    first_failed_at = coalesce(first_failed_at, clock_fact()), last_failed_at = clock_fact()
WHERE message_digest = ANY($1::text[]) AND working_process <> $2
    AND working_since < clock_now() - $3::interval
RETURNING deaths
"""


async def mark_working(conn: Connection, batch: Sequence[Message], process_id: UUID) -> None:
    """Note that this process is at work on the messages, in case it does not survive that."""
    digests, handlers = [one.digest for one in batch], [one.handler or "" for one in batch]
    await conn.execute(_MARK_WORKING, digests, handlers, process_id)


async def clear_working(conn: Connection, batch: Sequence[Message], process_id: UUID) -> None:
    """This process survived the messages."""
    await conn.execute(_CLEAR_WORKING, [one.digest for one in batch], process_id)


async def count_death(
    conn: Connection, message: Message, process_id: UUID, patience: timedelta
) -> int:
    """Count the death of the process that had marked the message; return the deaths so far."""
    deaths = await conn.fetchval(_COUNT_DEATH, list(message.digests), process_id, patience)
    return int(deaths or 0)


_REMOVE_PROCESSED = """
-- messages.remove_processed
DELETE FROM processed_messages WHERE message_digest IN (
    SELECT message_digest FROM processed_messages WHERE processed_at < clock_now() - $1::interval
    ORDER BY processed_at LIMIT $2 FOR UPDATE SKIP LOCKED)
"""

_REMOVE_FAILURES = """
-- messages.remove_failures
DELETE FROM message_failures WHERE message_digest IN (
    SELECT message_digest FROM message_failures
    WHERE greatest(last_failed_at, working_since) < clock_now() - $1::interval
    LIMIT $2 FOR UPDATE SKIP LOCKED)
"""


async def remove_processed(conn: Connection, age: timedelta, limit: int) -> int:
    """Forget at most `limit` messages that were done so long ago; return how many."""
    return int((await conn.execute(_REMOVE_PROCESSED, age, limit)).split()[-1])


async def remove_failures(conn: Connection, age: timedelta, limit: int) -> int:
    """Forget at most `limit` messages that have not failed for so long; return how many."""
    return int((await conn.execute(_REMOVE_FAILURES, age, limit)).split()[-1])
