"""The log of deliveries: every request that was made, what it held and what became of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app.domain.callbacks import DeliveryKind, Result
from app.domain.ids import new_id
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Logged:
    """One request, to be written down."""

    kind: DeliveryKind
    webhook_id: str
    event_ids: tuple[UUID, ...]
    attempt_id: UUID | None
    event_number: int | None
    ago_seconds: float
    """How long before now it was sent: the moment itself is the database's to tell."""
    milliseconds: int
    result: Result
    status: int | None
    detail: str
    excerpt: str
    """Masked, and cut."""


_WRITE = """
-- callback_log.write
INSERT INTO callback_deliveries (id, subscription_id, kind, webhook_id, event_ids, attempt_id,
    event_number, sent_at, milliseconds, result, status, detail, excerpt)
SELECT r.id, $1, r.kind, r.webhook_id, r.event_ids, r.attempt_id, r.event_number,
    t.now - make_interval(secs => r.ago), r.milliseconds, r.result, r.status,
    nullif(r.detail, ''), nullif(r.excerpt, '')
FROM jsonb_to_recordset($2::jsonb) AS r(id uuid, kind text, webhook_id text, event_ids uuid[],
    attempt_id uuid, event_number int, ago float8, milliseconds int, result text, status int,
    detail text, excerpt text) CROSS JOIN clock_fact() AS t(now)
"""


async def write(conn: Connection, subscription_id: UUID, log: Sequence[Logged]) -> None:
    """Write them down."""
    if not log:
        return
    rows = [
        {
            "id": str(new_id()),
            "kind": one.kind,
            "webhook_id": one.webhook_id,
            "event_ids": [str(event_id) for event_id in one.event_ids],
            "attempt_id": None if one.attempt_id is None else str(one.attempt_id),
            "event_number": one.event_number,
            "ago": one.ago_seconds,
            "milliseconds": one.milliseconds,
            "result": one.result,
            "status": one.status,
            "detail": one.detail,
            "excerpt": one.excerpt,
        }
        for one in log
    ]
    await conn.execute(_WRITE, subscription_id, json.dumps(rows))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request that was made."""

    id: UUID
    kind: DeliveryKind
    webhook_id: str
    event_ids: list[UUID]
    attempt_id: UUID | None
    event_number: int | None
    sent_at: datetime
    milliseconds: int
    result: Result
    status: int | None
    detail: str | None
    excerpt: str | None


_LIST = """
-- callback_log.list
SELECT id, kind, webhook_id, event_ids, attempt_id, event_number, sent_at, milliseconds, result,
    status, detail, excerpt
FROM callback_deliveries
WHERE subscription_id = $1 AND ($2::timestamptz IS NULL OR (sent_at, id) < ($2, $3))
    AND ($4::boolean IS NULL OR (result = 'delivered') = $4)
ORDER BY sent_at DESC, id DESC LIMIT $5
"""


async def list_deliveries(
    conn: Connection,
    subscription_id: UUID,
    before: tuple[datetime, UUID] | None,
    limit: int,
    *,
    accepted: bool | None,
) -> list[Delivery]:
    """At most `limit`, newest first."""
    moment, identifier = before or (None, None)
    rows = await conn.fetch(_LIST, subscription_id, moment, identifier, accepted, limit)
    return [
        Delivery(
            **{
                **dict(row),
                "kind": DeliveryKind(row["kind"]),
                "result": Result(row["result"]),
            }
        )
        for row in rows
    ]


_REMOVE_OLD = """
-- callback_log.remove_old
DELETE FROM callback_deliveries WHERE id IN (
    SELECT id FROM callback_deliveries WHERE sent_at < clock_now() - $1::interval
    ORDER BY sent_at LIMIT $2)
"""


async def remove_old(conn: Connection, kept: timedelta, limit: int) -> int:
    """Remove what is older; how many."""
    tag: str = await conn.execute(_REMOVE_OLD, kept, limit)
    return int(tag.rsplit(" ", 1)[1])
