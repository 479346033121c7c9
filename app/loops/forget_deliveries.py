"""Removes old lines of the log of deliveries."""

from __future__ import annotations

from datetime import timedelta

from app.loops.loop import Result
from app.services import Services
from app.store import callback_log

_BATCH = 5000


class ForgetDeliveries:
    """What was sent long ago is told by the receivers, not by us."""

    name = "forget_deliveries"
    interval_seconds = 600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Remove at most a batch."""
        kept = timedelta(days=services.settings.callbacks.delivery_log_days)
        removed = await services.database.run(
            lambda conn: callback_log.remove_old(conn, kept, _BATCH)
        )
        return Result(removed, more=removed == _BATCH)
