"""Removes objects that nothing points at and nothing ever will.

Everything here is a brake. Only keys under the service's own prefix are looked at, only objects
older than a day go, only while the bucket's marker names this database's installation and no moved
database waits for an operator's word, and never more than a small share in one walk.
"""

from __future__ import annotations

import structlog

from app import failpoints
from app.handlers.old_things import find_orphans, judge
from app.handlers.removal import may_remove
from app.loops.loop import Result
from app.services import Services
from app.store import orphans
from app.store.database import Connection
from app.store.orphans import Candidate

_LOG = structlog.get_logger(__name__)
_PAGE = 1000
_FEW = 100
_SHARE = 100


class RemoveOrphans:
    """One pass looks at one page of the bucket; a walk is all its pages."""

    name = "remove_orphans"
    interval_seconds = 6 * 3600.0
    leader_only = True

    def __init__(self) -> None:
        """Begins at the first key."""
        self._after: str | None = None
        self._removed = 0

    async def run_once(self, services: Services) -> Result:
        """Remove the page's orphans. The most that a walk may remove ends it, with an alarm."""
        if not await may_remove(services):
            return self._end(0)
        most = max(_FEW, await services.database.run(orphans.estimate_artifacts) // _SHARE)
        page = await services.objects.list_objects("", after=self._after, limit=_PAGE)
        found = await find_orphans(services, page)
        going = found[: most - self._removed]
        removed = await _remove(services, going) if going else 0
        self._removed += len(going)
        if len(going) < len(found):
            _LOG.error("orphans.too_many", removed=self._removed, most=most)
            return self._end(removed)
        if len(page) < _PAGE:
            return self._end(removed)
        self._after = page[-1].key
        return Result(removed, more=True)

    def _end(self, removed: int) -> Result:
        self._after, self._removed = None, 0
        return Result(removed)


async def _remove(services: Services, candidates: list[Candidate]) -> int:
    """Close the last tickets of these objects, look again, commit, and only then delete them."""
    bucket = services.settings.objects.bucket

    async def close(conn: Connection) -> list[str]:
        judged = zip(candidates, await judge(services, conn, candidates), strict=True)
        due = [one.key for one, verdict in judged if verdict == "ticket"]
        await orphans.close_tickets(conn, bucket, due)
        judged = zip(candidates, await judge(services, conn, candidates), strict=True)
        return [one.key for one, verdict in judged if verdict == "orphan"]

    keys = await services.database.run(close)
    if failpoints.ARMED:
        await failpoints.hit("orphans.after_close")
    refused = await services.objects.delete(keys)
    services.metrics.removed.labels("orphans").inc(len(keys) - len(refused))
    services.metrics.removals_refused.inc(len(refused))
    _LOG.warning("orphans.removed", objects=len(keys) - len(refused), refused=len(refused))
    return len(keys) - len(refused)
