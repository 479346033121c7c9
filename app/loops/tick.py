"""Every instance that can receive signs of life says so each second."""

from __future__ import annotations

import structlog

from app.loops.loop import Result
from app.services import Services
from app.store import epochs, ticks

_LOG = structlog.get_logger(__name__)


class Tick:
    """Without ticks no runner's silence means anything: the trouble was ours."""

    name = "tick"
    interval_seconds = 1.0
    leader_only = False

    async def run_once(self, services: Services) -> Result:
        """Write one tick, after a look whether the feed's epoch still is the server's."""
        begun = await services.database.run(epochs.ensure_current)
        if begun is not None:
            _LOG.warning("feed.epoch_begun", epoch=begun[0], cause=begun[1])
        await services.database.run(ticks.tick)
        return Result(1)
