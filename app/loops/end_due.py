"""Ends what has come due: leases of silent runners, and attempts at a limit."""

from __future__ import annotations

import structlog

from app import failpoints
from app.commands.ends import sweep
from app.handlers.aftermath import tell
from app.loops.loop import Result
from app.services import Services
from app.store import ends, ticks

_LOG = structlog.get_logger(__name__)
_BATCH = 200
_FEW = 5
_SHARE = 5


class EndDue:
    """One pass asks the one decision for everything that time has brought about.

    It does nothing while our own outage goes on or has just ended, for then silence says nothing;
    and a sudden silence of many runners at once is waited out for one lease time, with an alarm.
    """

    name = "end_due"
    interval_seconds = 1.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """End at most a batch of what is due."""
        lease_time = services.terms.lease_time
        calm = await services.database.run(lambda conn: ticks.read(conn, lease_time))
        if not calm.alive or calm.after_outage or calm.breaker_on:
            return Result(0)
        due = await services.database.run(lambda conn: ends.list_due(conn, _BATCH))
        if due.renewed:
            await services.database.run(lambda conn: ends.move_check_on(conn, due.renewed))
        if not due.attempt_ids:
            return Result(0, more=due.full)
        if calm.breaker_ready and await self._begins_breaker(services):
            return Result(0, behind_seconds=due.behind_seconds)
        if failpoints.ARMED:
            await failpoints.hit("sweep.after_select")
        ended = await services.database.run(
            lambda conn: sweep(
                conn,
                services.rules,
                due.attempt_ids,
                backs_off=not calm.soon_after_outage,
            )
        )
        if not calm.soon_after_outage:
            await self._count_lapsed(services, ended)
        await tell(services, ended)
        more = due.full and bool(ended)
        return Result(len(ended), more=more, behind_seconds=due.behind_seconds)

    async def _begins_breaker(self, services: Services) -> bool:
        """Whether so many runners are late at once that the trouble is rather between us."""
        lease_time = services.terms.lease_time
        late, beating = await services.database.run(lambda conn: ticks.count_late(conn, lease_time))
        if late <= max(_FEW, beating / _SHARE):
            return False
        begun = await services.database.run(lambda conn: ticks.begin_breaker(conn, lease_time))
        if begun:
            _LOG.error("sweep.mass_silence", late=late, beating=beating)
        return begun

    async def _count_lapsed(self, services: Services, ended: list[ends.End]) -> None:
        lapsed = [
            end.lease_id
            for end in ended
            if end.lease_word == "expired" and not end.started and end.lease_id is not None
        ]
        if lapsed:
            await services.database.run(lambda conn: ends.count_lapsed_claims(conn, lapsed))
