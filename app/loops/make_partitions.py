"""Makes the partitions of the coming weeks, so that no write ever meets a missing one."""

from __future__ import annotations

from app.loops.loop import Result
from app.services import Services
from app.store import partitions


class MakePartitions:
    """Whoever meets a missing partition makes it; this keeps that from being needed."""

    name = "make_partitions"
    interval_seconds = 3600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Make what is missing of the next 60 days."""
        return Result(await services.database.run_patiently(partitions.ensure))
