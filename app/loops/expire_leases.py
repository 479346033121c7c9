"""Ends leases whose runners have fallen silent."""

from __future__ import annotations

from app.commands.ends import expire
from app.handlers.runners import tell
from app.loops.loop import Result
from app.services import Services
from app.store import ends

_BATCH = 200


class ExpireLeases:
    """Leases are found by `check_at`, which beats never touch, and ended only if really expired."""

    name = "expire_leases"
    interval_seconds = 1.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Look at due leases: end the expired ones, look at the renewed ones again later.

        Does nothing while our own outage is going on or has just ended: then silence says nothing.
        """
        lease_time = services.terms.lease_time
        tick = await services.database.run(lambda conn: ends.read_tick(conn, lease_time))
        if not tick.alive or not tick.calm:
            return Result(0)
        expired, renewed = await services.database.run(lambda conn: ends.list_due(conn, _BATCH))
        if renewed:
            await services.database.run(lambda conn: ends.move_check_on(conn, renewed))
        if expired:
            ended = await services.database.run(lambda conn: expire(conn, services.rules, expired))
            tell(services, ended)
        return Result(len(expired), more=len(expired) + len(renewed) == _BATCH)
