"""Forgets what has no further use: tickets nobody used, ended sessions, runners long silent."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from app.handlers.old_things import TICKETS_KEPT
from app.loops.loop import Result
from app.services import Services
from app.store import forgetting
from app.store.database import Connection
from app.store.forgetting import OpenTicket

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
        sessions, runners = timedelta(days=kept.session_days), timedelta(days=kept.runner_days)
        after = self._after

        async def forget(conn: Connection) -> tuple[list[OpenTicket], dict[str, int]]:
            found = await forgetting.list_open_tickets(conn, after, _BATCH)
            due = [ticket.id for ticket in found if ticket.due]
            return found, {
                "closed_tickets": await forgetting.close_tickets(conn, due) if due else 0,
                "tickets": await forgetting.remove_tickets(conn, TICKETS_KEPT, _BATCH),
                "sessions": await forgetting.remove_sessions(conn, sessions, _BATCH),
                "runners": await forgetting.remove_silent_runners(conn, runners, _BATCH),
            }

        found, done = await services.database.run(forget)
        full = len(found) == _BATCH
        self._after = found[-1].id if full else _FIRST
        for kind, count in done.items():
            services.metrics.removed.labels(kind).inc(count)
        return Result(sum(done.values()), more=full or max(done.values()) == _BATCH)
