"""Removes placement classes that no open attempt names any more."""

from __future__ import annotations

from app.loops.loop import Result
from app.services import Services
from app.store import classes

_BATCH = 500


class ForgetClasses:
    """Keeps what a claim has to look at as small as what is really waiting."""

    name = "forget_classes"
    interval_seconds = 600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Remove at most a batch."""
        removed = await services.database.run(lambda conn: classes.remove_unused(conn, _BATCH))
        return Result(removed, more=removed == _BATCH)
