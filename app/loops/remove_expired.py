"""Removes artifacts and logs whose time is over: first they are marked, then objects, then rows.

Dying between any two of these steps leaves a row in state `removing`, and the next pass goes on
there. So there is never a row without its object that does not say so, nor an object without a row.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from app import failpoints
from app.handlers.removal import may_remove
from app.loops.loop import Result
from app.services import Services
from app.store import expiries
from app.store.database import Connection
from app.store.expiries import Removal

_LOG = structlog.get_logger(__name__)
_BATCH = 500
_OBJECTS = 1000
_FIRST = UUID(int=0)


class RemoveExpired:
    """One pass dates, marks and removes at most a batch of each."""

    name = "remove_expired"
    interval_seconds = 60.0
    leader_only = True

    def __init__(self) -> None:
        """Begins at the first row."""
        self._after = _FIRST

    async def run_once(self, services: Services) -> Result:
        """Remove a batch. ObjectStoreUnavailable: what was marked stays marked."""
        after = self._after
        work = await services.database.run(lambda conn: expiries.find_work(conn, after))
        dated = await _date(services) if work.undated else 0
        locked = await services.database.run(_mark) if work.expired or dated else 0
        removed, more = 0, False
        if work.removing or locked or after != _FIRST:
            removed, more = await self._remove(services)
        return Result(removed, more=more or dated == _BATCH or locked >= _BATCH)

    async def _remove(self, services: Services) -> tuple[int, bool]:
        """Remove the next batch of what is marked; what the store refuses is passed over."""
        bucket, after = services.settings.objects.bucket, self._after
        found = await services.database.run(
            lambda conn: expiries.list_removing(conn, bucket, after, _OBJECTS)
        )
        full = len(found) == _OBJECTS
        if not found:
            self._after = _FIRST
            return 0, after != _FIRST
        if failpoints.ARMED:
            await failpoints.hit("retention.after_mark")
        if not await may_remove(services):
            return 0, False
        gone = await _delete(services, found)
        if failpoints.ARMED:
            await failpoints.hit("retention.after_object")
        removed = await services.database.run(lambda conn: expiries.remove(conn, gone))
        services.metrics.removed.labels("artifacts").inc(removed)
        self._after = found[-1].id if full else _FIRST
        return removed, full


async def _date(services: Services) -> int:
    kept = services.settings.retention
    return await services.database.run(
        lambda conn: expiries.date(conn, kept.class_days, kept.log_class, _BATCH)
    )


async def _mark(conn: Connection) -> int:
    locked = await expiries.lock_due(conn, _BATCH)
    if locked:
        await expiries.mark(conn, locked)
    return len(locked)


async def _delete(services: Services, found: list[Removal]) -> list[UUID]:
    """Delete the objects; return the rows that may follow them."""
    keys = sorted({one.key for one in found if one.last})
    refused = await services.objects.delete(keys)
    if refused:
        services.metrics.removals_refused.inc(len(refused))
        key, code = next(iter(refused.items()))
        _LOG.error("retention.refused", objects=len(refused), first_key=key, first_code=code)
    return [one.id for one in found if not one.last or one.key not in refused]
