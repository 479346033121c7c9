"""Forgets what has no further use: tickets nobody used, ended sessions, runners long silent."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from app.handlers.old_things import TICKETS_KEPT
from app.loops.loop import Result
from app.services import Services
from app.store import forgetting
from app.store.database import Connection

_BATCH = 1000
_FIRST = UUID(int=0)


class ForgetOld:
    """One pass looks at one slice of the open tickets, and removes at most a batch of each kind."""

    name = "forget_old"
    interval_seconds = 600.0
    leader_only = True

    def __init__(self) -> None:
        """Begins at the first open ticket."""
        self._after = _FIRST

    async def run_once(self, services: Services) -> Result:
        """Close due tickets, remove old rows."""
        kept = services.settings.retention

        async def forget(conn: Connection) -> dict[str, int]:
            return {
                "tickets": await forgetting.remove_tickets(conn, TICKETS_KEPT, _BATCH),
                "sessions": await forgetting.remove_sessions(
                    conn, timedelta(days=kept.session_days), _BATCH
                ),
                "runners": await forgetting.remove_silent_runners(
                    conn, timedelta(days=kept.runner_days), _BATCH
                ),
            }

        closed, full = await self._close(services)
        removed = await services.database.run(forget)
        for kind, count in removed.items():
            services.metrics.removed.labels(kind).inc(count)
        more = full or max(removed.values()) == _BATCH
        return Result(closed + sum(removed.values()), more=more)

    async def _close(self, services: Services) -> tuple[int, bool]:
        after = self._after
        found = await services.database.run(
            lambda conn: forgetting.list_open_tickets(conn, after, _BATCH)
        )
        full = len(found) == _BATCH
        self._after = found[-1].id if full else _FIRST
        due = [ticket.id for ticket in found if ticket.due]
        if not due:
            return 0, full
        closed = await services.database.run(lambda conn: forgetting.close_tickets(conn, due))
        return closed, full
