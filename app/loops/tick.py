"""Every instance that can receive signs of life says so each second."""

from __future__ import annotations

from app.loops.loop import Result
from app.services import Services
from app.store import epochs, ticks
from app.store.database import tell_begun


class Tick:
    """Without ticks no runner's silence means anything: the trouble was ours."""

    name = "tick"
    interval_seconds = 1.0
    leader_only = False

    async def run_once(self, services: Services) -> Result:
        """Write one tick, after a look whether the feed's epoch still is the server's."""
        if await services.database.run(epochs.find_due) is not None:
            tell_begun(await services.database.run(epochs.begin_once))
        await services.database.run(ticks.tick)
        return Result(1)
