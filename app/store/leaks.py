"""What the timeline says of masked secrets: where, of which kind, how many; never what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain import jsontext
from app.store.database import Connection
from app.store.leases import Key


@dataclass(frozen=True, slots=True)
class Leak:
    """What was masked in one command of a lease's holder.

    `late`: it is of a kind that is also taken from a lease that has ended (its log, its last word).
    """

    key: Key
    source: str
    kinds: dict[str, int]
    late: bool = False


# The lease remembers what was told, so a runner that leaks in every line fills no timeline: one
# event a lease, source and kind. The attempt's row first, as for every event.
_NOTE = """
-- leaks.note
WITH input AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bool[])
    AS i(lease_id, token_hash, source, kinds, late)
), target AS (
    SELECT a.id, a.last_event_at, l.id AS lease_id FROM execution_attempts a
    JOIN runner_leases l ON l.attempt_id = a.id JOIN input i ON i.lease_id = l.id
    WHERE l.lease_token_hash = i.token_hash
    ORDER BY a.id FOR NO KEY UPDATE OF a
), locked AS (
    SELECT l.id, coalesce(l.masked, '{}') AS told FROM runner_leases l
    JOIN target t ON t.lease_id = l.id ORDER BY l.id FOR NO KEY UPDATE OF l
), fenced AS (
    UPDATE runner_leases l SET masked = k.told || n.names
    FROM input i JOIN locked k ON k.id = i.lease_id
    CROSS JOIN LATERAL (
        SELECT array_agg(i.source || ':' || e.key) AS names,
            jsonb_object_agg(e.key, e.value) AS kinds
        FROM jsonb_each(i.kinds::jsonb) e WHERE i.source || ':' || e.key <> ALL (k.told)
        HAVING count(*) > 0) n
    WHERE l.id = i.lease_id AND l.lease_token_hash = i.token_hash
        AND (l.status = 'active' OR i.late)
    RETURNING l.attempt_id, l.id, l.lease_number, l.runner_instance_id, i.source, n.kinds
), noted AS (
    UPDATE execution_attempts a SET last_event_number = a.last_event_number + g.leaks,
        last_event_at = fact_after(a.last_event_at), last_feed_epoch = current_feed_epoch(),
        last_feed_xid = feed_xid_after(a.last_feed_epoch, a.last_feed_xid)
    FROM (SELECT f.attempt_id, count(*) AS leaks FROM fenced f GROUP BY f.attempt_id) g
    WHERE a.id = g.attempt_id
    RETURNING a.id, a.last_event_number - g.leaks AS before, a.last_event_at,
        a.last_feed_epoch, a.last_feed_xid
)
INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, feed_epoch,
    feed_xid, created_at)
SELECT gen_random_uuid(), n.id,
    n.before + row_number() OVER (PARTITION BY n.id ORDER BY f.lease_number), 'secret_masked',
    jsonb_build_object('lease_id', f.id, 'lease_number', f.lease_number,
        'runner_instance_id', f.runner_instance_id, 'source', f.source, 'kinds', f.kinds),
    n.last_feed_epoch, n.last_feed_xid, n.last_event_at
FROM noted n JOIN fenced f ON f.attempt_id = n.id
"""


async def note(conn: Connection, leaks: Sequence[Leak]) -> None:
    """Tell the timelines what was masked, once a lease, source and kind; at most one a lease.

    Nothing is told of a lease whose token does not fit, or that has ended unless `late`.
    """
    await conn.execute(
        _NOTE,
        [leak.key.lease_id for leak in leaks],
        [leak.key.token_hash for leak in leaks],
        [leak.source for leak in leaks],
        [jsontext.dumps(leak.kinds) for leak in leaks],
        [leak.late for leak in leaks],
    )
