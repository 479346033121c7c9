"""Forgets what schedules fired long ago, and terms of leaders of long ago."""

from __future__ import annotations

from datetime import timedelta

from app.loops.loop import Result
from app.services import Services
from app.store import leaders, schedules
from app.store.database import Connection

_BATCH = 2000
_TERMS_KEPT = timedelta(days=400)


class ForgetSchedules:
    """Removes old lines of history; schedules themselves stay until somebody deletes them."""

    name = "forget_schedules"
    interval_seconds = 600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Remove at most a batch of each kind."""
        kept = timedelta(days=services.settings.scheduler.history_days)

        async def forget(conn: Connection) -> list[int]:
            return [
                await schedules.remove_old_fires(conn, kept, _BATCH),
                await leaders.remove_old_terms(conn, _TERMS_KEPT, _BATCH),
            ]

        removed = await services.database.run(forget)
        return Result(sum(removed), more=max(removed) == _BATCH)
