"""Marks the bucket as this installation's at the first start, and says so when it is another's."""

from __future__ import annotations

from app.commands.buckets import mark_bucket_once
from app.loops.loop import Result
from app.services import Services


class MarkBucket:
    """Until the marker is there nothing is deleted; a store that is away at first does no harm."""

    name = "mark_bucket"
    interval_seconds = 60.0
    leader_only = False

    def __init__(self) -> None:
        """Not marked, as far as this process knows."""
        self._marked = False

    async def run_once(self, services: Services) -> Result:
        """Write the marker if there is none; a process that has seen it does not look again."""
        if self._marked:
            return Result(0)
        self._marked = await mark_bucket_once(services.database, services.objects)
        return Result(int(self._marked))
