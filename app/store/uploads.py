"""Statements on `artifact_uploads`: tickets, each the promise of one artifact.

A ticket belongs to an attempt, so a further lease on it may go on where the one before ended. It is
closed once: it became an artifact, its body was wrong, or nobody named it in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from app.domain.lifecycle import RetentionClass, UploadEnd, UploadMethod
from app.store.database import Connection
from app.store.leases import Key

_COLUMNS = """u.id, u.attempt_id, u.request_id, u.name, u.storage, u.bucket, u.key,
    u.content_type, u.digest, u.byte_size, u.retention_class, u.method, u.upload_id,
    u.part_bytes, u.created_at, u.verified_at, u.closed_reason"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket. `key` is the full one, `upload_id` the store's where it is uploaded in parts."""

    id: UUID
    attempt_id: UUID
    request_id: UUID
    name: str | None
    storage: str
    bucket: str
    key: str
    content_type: str
    digest: str
    byte_size: int
    retention_class: RetentionClass
    method: UploadMethod
    upload_id: str | None
    part_bytes: int | None
    created_at: datetime
    verified_at: datetime | None
    closed_reason: UploadEnd | None

    @property
    def sha256(self) -> str:
        """The announced SHA-256 in hex."""
        return self.digest.removeprefix("sha256:")


def _ticket(row: asyncpg.Record) -> Ticket:
    values = {name: row[name] for name in Ticket.__dataclass_fields__}
    ended = values["closed_reason"]
    return Ticket(
        **{
            **values,
            "retention_class": RetentionClass(values["retention_class"]),
            "method": UploadMethod(values["method"]),
            "closed_reason": None if ended is None else UploadEnd(ended),
        }
    )


@dataclass(frozen=True, slots=True)
class Place:
    """A lease that wants to upload or record, and whether it may."""

    attempt_id: UUID
    operation_id: UUID
    token_fits: bool
    live: bool
    tickets: int


_LOOK = """
-- uploads.look
SELECT l.attempt_id, a.operation_id, l.lease_token_hash = $2 AS token_fits,
    l.status = 'active' AS live,
    (SELECT count(*) FROM artifact_uploads u WHERE u.attempt_id = l.attempt_id) AS tickets
FROM runner_leases l JOIN execution_attempts a ON a.id = l.attempt_id WHERE l.id = $1
"""


async def look(conn: Connection, key: Key) -> Place | None:
    """The lease and its attempt; None: no such lease. The fence comes with the write."""
    row = await conn.fetchrow(_LOOK, key.lease_id, key.token_hash)
    return None if row is None else Place(**dict(row))


_FIND_BY_REQUEST = f"""
-- uploads.find_by_request
SELECT {_COLUMNS} FROM artifact_uploads u WHERE u.attempt_id = $1 AND u.request_id = $2
"""


async def find_by_request(conn: Connection, attempt_id: UUID, request_id: UUID) -> Ticket | None:
    """The ticket that this request got, or None."""
    row = await conn.fetchrow(_FIND_BY_REQUEST, attempt_id, request_id)
    return None if row is None else _ticket(row)


_FIND = f"""
-- uploads.find
SELECT {_COLUMNS} FROM artifact_uploads u WHERE u.id = $1 AND u.attempt_id = $2
"""


async def find(conn: Connection, ticket_id: UUID, attempt_id: UUID) -> Ticket | None:
    """The attempt's ticket of this id, or None."""
    row = await conn.fetchrow(_FIND, ticket_id, attempt_id)
    return None if row is None else _ticket(row)


@dataclass(frozen=True, slots=True)
class NewTicket:
    """One ticket to make. `known_key`: an object of the operation that has these very bytes."""

    id: UUID
    request_id: UUID
    name: str | None
    storage: str
    bucket: str
    prefix: str
    content_type: str
    digest: str
    byte_size: int
    retention_class: str
    method: UploadMethod
    part_bytes: int | None
    known_key: str | None


# One key a ticket, never chosen by the caller: class, day and attempt, so that rules of the store
# and people find their way. The day is the database's.
_OWN_KEY = """$7 || 'artifacts/' || $11 || '/' || to_char(t.at AT TIME ZONE 'UTC', 'YYYY/MM/DD')
        || '/' || f.attempt_id || '/' || $3::uuid"""

# A sign of life of the lease's holder, so it is renewed; no event, so its attempt is not locked.
_ISSUE = f"""
-- uploads.issue_once
WITH fenced AS (
    UPDATE runner_leases l SET expires_at = greatest(l.expires_at, clock_now() + $15)
    WHERE l.id = $1 AND l.lease_token_hash = $2 AND l.status = (SELECT 'active')
    RETURNING l.id, l.attempt_id
), issued AS (
    INSERT INTO artifact_uploads AS u (id, attempt_id, operation_id, lease_id, request_id, name,
        storage, bucket, key, content_type, digest, byte_size, retention_class, method,
        part_bytes, created_at)
    SELECT $3, f.attempt_id, a.operation_id, f.id, $4, $16::text, $5, $6,
        coalesce($14, {_OWN_KEY}), $8, $9, $10, $11, $12, $13, t.at
    FROM fenced f JOIN execution_attempts a ON a.id = f.attempt_id
    CROSS JOIN LATERAL (SELECT clock_fact() AS at) t
    ON CONFLICT (attempt_id, request_id) DO NOTHING
    RETURNING {_COLUMNS}
)
SELECT (SELECT count(*) FROM fenced) AS leases, i.*
FROM (SELECT) always LEFT JOIN issued i ON true
"""


async def issue_once(
    conn: Connection, key: Key, new: NewTicket, lease_time: timedelta
) -> tuple[bool, Ticket | None]:
    """Make a ticket if the lease lives and the request has none yet.

    Returns (the lease lives, the new ticket).
    """
    row = await conn.fetchrow(
        _ISSUE,
        key.lease_id,
        key.token_hash,
        new.id,
        new.request_id,
        new.storage,
        new.bucket,
        new.prefix,
        new.content_type,
        new.digest,
        new.byte_size,
        new.retention_class,
        new.method,
        new.part_bytes,
        new.known_key,
        lease_time,
        new.name,
    )
    assert row is not None  # noqa: S101 - one row always
    return row["leases"] > 0, None if row["id"] is None else _ticket(row)


# The object that had these bytes is gone: the ticket gets a key of its own, to be uploaded to.
_GIVE_OWN_KEY = f"""
-- uploads.give_own_key
UPDATE artifact_uploads u SET method = $2, part_bytes = $3, verified_at = NULL,
    key = $4 || 'artifacts/'
    || u.retention_class || '/' || to_char(u.created_at AT TIME ZONE 'UTC', 'YYYY/MM/DD')
    || '/' || u.attempt_id || '/' || u.id
WHERE u.id = $1 AND u.closed_at IS NULL AND u.method = 'known'
RETURNING {_COLUMNS}
"""


async def give_own_key(
    conn: Connection, ticket_id: UUID, method: UploadMethod, part_bytes: int | None, prefix: str
) -> Ticket | None:
    """Let an open ticket be uploaded after all; None: it is closed, or has its own key."""
    row = await conn.fetchrow(_GIVE_OWN_KEY, ticket_id, method, part_bytes, prefix)
    return None if row is None else _ticket(row)


_NOTE_UPLOAD = f"""
-- uploads.note_upload_once
UPDATE artifact_uploads u SET upload_id = $2
WHERE u.id = $1 AND u.upload_id IS NULL AND u.closed_at IS NULL
RETURNING {_COLUMNS}
"""


async def note_upload_once(conn: Connection, ticket_id: UUID, upload_id: str) -> Ticket | None:
    """Remember the store's id of the upload; None: the ticket has one, or is closed."""
    row = await conn.fetchrow(_NOTE_UPLOAD, ticket_id, upload_id)
    return None if row is None else _ticket(row)


_MARK_VERIFIED = """
-- uploads.mark_verified
UPDATE artifact_uploads SET verified_at = coalesce(verified_at, clock_fact())
WHERE id = $1 AND key = $2 AND closed_at IS NULL
"""


async def mark_verified(conn: Connection, ticket: Ticket) -> None:
    """Note that the ticket's object is durable and has the announced size and digest.

    Of that object: nothing is noted where the ticket has got another key since.
    """
    await conn.execute(_MARK_VERIFIED, ticket.id, ticket.key)


_CLOSE = """
-- uploads.close
UPDATE artifact_uploads SET closed_at = clock_fact(), closed_reason = $2
WHERE id = $1 AND closed_at IS NULL
"""


async def close(conn: Connection, ticket_id: UUID, reason: UploadEnd) -> None:
    """Close an open ticket; nothing can be recorded from it afterwards."""
    await conn.execute(_CLOSE, ticket_id, reason)
