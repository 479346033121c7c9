"""The late word: what a runner says after its lease has ended.

It changes nothing of the outcome. It is kept as an event, once per lease, and it settles whether
the runner has stopped: once the last one that had started has said so of an ended attempt, the
attempt's concurrency key may be free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.store.database import Connection
from app.store.leases import Completion

# The lease is the fence here too: its row must still be without a word.
_RECORD = """
-- late.record_once
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
    AS i(lease_id, token_hash, outcome, category, message, result)
), target AS (
    SELECT a.id, a.last_event_at, l.id AS lease_id FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id JOIN input i ON i.lease_id = l.id
    ORDER BY a.id FOR NO KEY UPDATE OF a
), fenced AS (
    UPDATE runner_leases l SET late_word_at = fact_after(t.last_event_at)
    FROM input i JOIN target t ON t.lease_id = i.lease_id
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash AND l.status <> 'active'
        AND l.completion_digest IS NULL AND l.late_word_at IS NULL
    RETURNING l.id, l.attempt_id, l.lease_number, l.runner_instance_id, l.late_word_at,
        (l.status <> 'released' AND l.started_at IS NOT NULL)::int AS settles,
        i.outcome, i.category, i.message, i.result
), noted AS (
    UPDATE execution_attempts a SET unconfirmed_leases = a.unconfirmed_leases - f.settles,
        stop_confirmed = CASE WHEN a.finished_at IS NOT NULL
            THEN a.unconfirmed_leases - f.settles = 0 END,
        last_event_number = a.last_event_number + 1, last_event_at = f.late_word_at,
        last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM fenced f WHERE a.id = f.attempt_id
    RETURNING a.id, a.last_event_number, a.last_event_at, a.last_feed_epoch, a.last_feed_xid,
        a.stop_confirmed, a.concurrency_key, f.id AS lease_id, f.lease_number, f.runner_instance_id,
        f.outcome, f.category, f.message, f.result
), told AS (
    INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
        feed_xid, created_at)
    SELECT gen_random_uuid(), n.id, n.last_event_number, 'late_result',
        jsonb_strip_nulls(jsonb_build_object('lease_id', n.lease_id,
            'lease_number', n.lease_number, 'runner_instance_id', n.runner_instance_id,
            'outcome', n.outcome, 'failure_category', n.category, 'failure_message', n.message,
            'result', n.result::jsonb, 'stop_confirmed', n.stop_confirmed)),
        n.last_feed_epoch, n.last_feed_xid, n.last_event_at
    FROM noted n
), freed AS (
    DELETE FROM concurrency_holds h USING noted n
    WHERE h.concurrency_key = n.concurrency_key AND h.attempt_id = n.id
        AND h.lease_number = n.lease_number AND n.stop_confirmed
    RETURNING h.concurrency_key
)
SELECT n.lease_id, f.concurrency_key AS freed_key FROM noted n
LEFT JOIN freed f ON f.concurrency_key = n.concurrency_key
"""


@dataclass(frozen=True, slots=True)
class LateWord:
    """A late word that was kept, and the concurrency key that it freed, if it did."""

    lease_id: UUID
    freed_key: str | None


async def record_once(conn: Connection, words: Sequence[Completion]) -> list[LateWord]:
    """Keep the late words of leases that have ended without one; at most one a lease for ever.

    At most one word an attempt in a batch.
    """
    rows = await conn.fetch(
        _RECORD,
        [word.key.lease_id for word in words],
        [word.key.token_hash for word in words],
        [word.outcome for word in words],
        [word.failure_category for word in words],
        [word.failure_message for word in words],
        [word.result for word in words],
    )
    return [LateWord(row["lease_id"], row["freed_key"]) for row in rows]
