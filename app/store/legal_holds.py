"""Legal holds: on one artifact, or on all that an attempt has."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection

_FIND_ATTEMPT = """
-- legal_holds.find_attempt
SELECT attempt_id FROM artifact_refs WHERE id = $1
"""


async def find_attempt(conn: Connection, artifact_id: UUID) -> UUID | None:
    """The attempt that has this artifact, or None."""
    found: UUID | None = await conn.fetchval(_FIND_ATTEMPT, artifact_id)
    return found


# As for every event: the attempt first. It may have ended long ago.
_LOCK_ATTEMPT = """
-- legal_holds.lock_attempt
SELECT id FROM execution_attempts WHERE id = $1 FOR NO KEY UPDATE
"""

_SET = """
-- legal_holds.set_once
WITH held AS (
    UPDATE artifact_refs f SET held_at = clock_fact(), held_by = $3, held_reason = $4
    WHERE f.attempt_id = $1 AND ($2::uuid IS NULL OR f.id = $2) AND f.held_at IS NULL
        AND f.state <> 'removing'
    RETURNING f.id
), {told}
SELECT count(*) FROM held
"""

_LIFT = """
-- legal_holds.lift_once
WITH held AS (
    UPDATE artifact_refs f SET held_at = NULL, held_by = NULL, held_reason = NULL
    WHERE f.attempt_id = $1 AND ($2::uuid IS NULL OR f.id = $2) AND f.held_at IS NOT NULL
    RETURNING f.id
), {told}
SELECT count(*) FROM held
"""

# One event, however many artifacts; none where nothing changed.
_TOLD = """moment AS MATERIALIZED (
    SELECT a.id, fact_after(a.last_event_at) AS at FROM execution_attempts a WHERE a.id = $1
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + 1,
        last_event_at = t.at, last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM moment t WHERE a.id = t.id AND EXISTS (SELECT FROM held)
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), n.id, n.last_event_number, '{event}', jsonb_strip_nulls(
            jsonb_build_object('artifact_id', $2::uuid, 'artifacts', (SELECT count(*) FROM held),
                'by', $3::text, 'reason', nullif($4::text, ''))),
        n.last_feed_epoch, n.last_feed_xid, n.last_event_at
    FROM noted n
)"""

_SET_TOLD = _SET.replace("{told}", _TOLD.replace("{event}", "legal_hold_set"))
_LIFT_TOLD = _LIFT.replace("{told}", _TOLD.replace("{event}", "legal_hold_lifted"))


@dataclass(frozen=True, slots=True)
class Standing:
    """An attempt's artifacts, or the one that was asked for, as they stand now."""

    artifacts: int
    held: int
    removing: int


_STANDING = """
-- legal_holds.standing
SELECT count(*) AS artifacts, count(*) FILTER (WHERE held_at IS NOT NULL) AS held,
    count(*) FILTER (WHERE state = 'removing') AS removing
FROM artifact_refs WHERE attempt_id = $1 AND ($2::uuid IS NULL OR id = $2)
"""


async def change(
    conn: Connection,
    attempt_id: UUID,
    artifact_id: UUID | None,
    *,
    held: bool,
    by: str,
    reason: str,
) -> tuple[int, Standing] | None:
    """Hold or free an attempt's artifacts (or the one named), with one event if any changed.

    What is being removed cannot be held any more. Returns how many changed and how they stand;
    None: no such attempt.
    """
    if await conn.fetchval(_LOCK_ATTEMPT, attempt_id) is None:
        return None
    statement = _SET_TOLD if held else _LIFT_TOLD
    changed = await conn.fetchval(statement, attempt_id, artifact_id, by, reason)
    row = await conn.fetchrow(_STANDING, attempt_id, artifact_id)
    assert row is not None  # noqa: S101 - an aggregate always has a row
    return int(changed), Standing(**dict(row))
