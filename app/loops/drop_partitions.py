"""Removes partitions whose time is over, without holding up a single heartbeat for long."""

from __future__ import annotations

import structlog

from app import failpoints
from app.handlers.old_things import list_old
from app.loops.loop import Result
from app.services import Services
from app.store import old_partitions
from app.store.database import Connection
from app.store.old_partitions import Partition

_LOG = structlog.get_logger(__name__)
_BATCH = 10


class DropPartitions:
    """One pass removes at most a few. A reader who has one open makes it give up and come back."""

    name = "drop_partitions"
    interval_seconds = 3600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Go on with removals that have begun, then remove the oldest ones. DatabaseUnavailable."""
        old = await list_old(services)
        removed = 0
        needed: set[str] = set()
        for partition in old:
            if removed == _BATCH:
                break
            if partition.parent in needed:
                continue
            if not await _note(services, partition):
                needed.add(partition.parent)  # and so are all younger ones
                continue
            await _remove(services, partition)
            removed += 1
            services.metrics.removed.labels("partitions").inc()
            _LOG.info("partition.removed", partition=partition.name)
        return Result(removed, more=removed == _BATCH)


async def _note(services: Services, partition: Partition) -> bool:
    """Note that it goes, unless it is needed. One that is half detached goes in any case."""

    async def note(conn: Connection) -> bool:
        if partition.stage == "attached" and await old_partitions.is_needed(conn, partition):
            return False
        if not partition.noted:
            await old_partitions.note(conn, partition)
        return True

    return await services.database.run(note)


async def _remove(services: Services, partition: Partition) -> None:
    database = services.database
    if partition.stage != "detached":
        run = database.run_outside if database.has_direct else database.run_patiently
        await run(lambda conn: old_partitions.detach(conn, partition, outside=database.has_direct))
        if failpoints.ARMED:
            await failpoints.hit("partitions.after_detach")
    await database.run_patiently(lambda conn: old_partitions.drop(conn, partition))
