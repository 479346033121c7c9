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


_FIND_HISTORY = """
-- messages.find_history
SELECT EXISTS (SELECT FROM processed_messages p WHERE p.message_digest = ANY($1::text[])) AS done,
    count(*) > 0 AS noted,
    coalesce(max(f.deaths), 0) AS deaths,
    coalesce(bool_or(f.working_process <> $2
        AND f.working_since < clock_now() - $3::interval), false) AS abandoned
FROM message_failures f WHERE f.message_digest = ANY($1::text[])
"""


async def find_history(
    conn: Connection, digests: Sequence[str], process_id: UUID, patience: timedelta
) -> History:
    """What is known of the message with these digests (one for each server key)."""
    row = await conn.fetchrow(_FIND_HISTORY, list(digests), process_id, patience)
    assert row is not None  # noqa: S101 - an aggregate always has a row
    return History(row["done"], row["noted"], row["deaths"], row["abandoned"])


# One lock a digest, so that instances with different current keys exclude each other as well.
# bool_and looks at every row, and the order lets of two at once one gain all.
_TRY_LOCK = """
-- messages.try_lock
SELECT bool_and(pg_try_advisory_xact_lock(hashtextextended(d.digest, 0)))
FROM (SELECT digest FROM unnest($1::text[]) AS digest ORDER BY digest) d
"""

_IS_PROCESSED = """
-- messages.is_processed
SELECT EXISTS (SELECT FROM processed_messages WHERE message_digest = ANY($1::text[]))
"""

_MARK_PROCESSED = """
-- messages.mark_processed_once
INSERT INTO processed_messages (message_digest, handler, envelope_id, message_id, processed_at)
SELECT $1, $2, $3, $4, clock_fact()
WHERE NOT EXISTS (SELECT FROM processed_messages WHERE message_digest = ANY($5::text[]))
ON CONFLICT (message_digest) DO NOTHING RETURNING message_digest
"""


async def try_lock(conn: Connection, message: Message) -> bool:
    """Lock the message until the transaction ends; False: somebody is working on it."""
    return bool(await conn.fetchval(_TRY_LOCK, list(message.digests)))


async def is_processed(conn: Connection, message: Message) -> bool:
    """Whether the message is noted as done. Certain only under its lock."""
    return bool(await conn.fetchval(_IS_PROCESSED, list(message.digests)))


async def mark_processed_once(conn: Connection, message: Message) -> bool:
    """Note in the effect's own transaction that the message is done; False: it was done before."""
    marked = await conn.fetchval(
        _MARK_PROCESSED,
        message.digest,
        message.handler,
        message.envelope_id,
        message.message_id,
        list(message.digests),
    )
    return marked is not None


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
VALUES ($1, $2, $3, clock_fact())
ON CONFLICT (message_digest) DO UPDATE SET working_process = $3, working_since = clock_fact()
"""

_CLEAR_WORKING = """
-- messages.clear_working
WITH clean AS (
    DELETE FROM message_failures
    WHERE message_digest = $1 AND working_process = $2 AND failures = 0 AND deaths = 0
)
UPDATE message_failures SET working_process = NULL, working_since = NULL
WHERE message_digest = $1 AND working_process = $2 AND failures + deaths > 0
"""

_COUNT_DEATH = """
-- messages.count_death
UPDATE message_failures SET deaths = deaths + 1, working_process = NULL, working_since = NULL,
    first_failed_at = coalesce(first_failed_at, clock_fact()), last_failed_at = clock_fact()
WHERE message_digest = ANY($1::text[]) AND working_process <> $2
    AND working_since < clock_now() - $3::interval
RETURNING deaths
"""


async def mark_working(conn: Connection, message: Message, process_id: UUID) -> None:
    """Note that this process is at work on the message, in case it does not survive that."""
    await conn.execute(_MARK_WORKING, message.digest, message.handler or "", process_id)


async def clear_working(conn: Connection, message: Message, process_id: UUID) -> None:
    """This process survived the message."""
    await conn.execute(_CLEAR_WORKING, message.digest, process_id)


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
