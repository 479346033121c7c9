"""Every instance that can receive signs of life says so each second."""

from __future__ import annotations

from app.loops.loop import Result
from app.services import Services
from app.store import ticks


class Tick:
    """Without ticks no runner's silence means anything: the trouble was ours."""

    name = "tick"
    interval_seconds = 1.0
    leader_only = False

    async def run_once(self, services: Services) -> Result:
        """Write one tick."""
        await services.database.run(ticks.tick)
        return Result(1)
