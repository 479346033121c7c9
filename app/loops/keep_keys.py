"""Keeps the lines of concurrency keys moving, whatever was lost on the way."""

from __future__ import annotations

from datetime import timedelta

from app.commands.ends import like
from app.handlers.aftermath import move_up
from app.loops.loop import Result
from app.services import Services
from app.store import holds, ticks

_BATCH = 500
_HELD_FOR_EVER = ("opentofu.*",)


class KeepKeys:
    """Removes holds that nothing justifies any more, and lets the first in each line be claimed."""

    name = "keep_keys"
    interval_seconds = 2.0
    leader_only = True

    def __init__(self) -> None:
        """Begins at the first key."""
        self._after = ""

    async def run_once(self, services: Services) -> Result:
        """Release due holds, and look at the next batch of keys that somebody waits for."""
        leases = services.settings.leases
        lease_time = services.terms.lease_time
        calm = await services.database.run(lambda conn: ticks.read(conn, lease_time))
        freed: list[str] = []
        if calm.alive and not calm.after_outage and not calm.breaker_on:
            freed = await services.database.run(
                lambda conn: holds.release_due(
                    conn,
                    timedelta(seconds=leases.key_hold_seconds),
                    [like(job_type) for job_type in _HELD_FOR_EVER],
                    _BATCH,
                )
            )
        waited = await services.database.run(
            lambda conn: holds.list_waited_for(conn, self._after, _BATCH)
        )
        self._after = waited[-1] if len(waited) == _BATCH else ""
        await move_up(services, [*freed, *waited])
        return Result(len(freed), more=len(freed) == _BATCH)
