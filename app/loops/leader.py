"""Leadership by a row: who holds it may run the sweeps, until its own clock says otherwise.

A renewal counts from the moment it was *sent*, on the monotonic clock, less a margin: a leader
whose renewals do not come back stops by itself before anybody else can be elected. All sweeps are
correct even with two leaders; the election only keeps the work from being done twice.
"""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from app import failpoints
from app.domain.errors import ServiceError
from app.domain.ids import new_id
from app.store import leaders
from app.store.database import Database

NAME = "scheduler"
TTL_SECONDS = 10.0
RENEW_SECONDS = 3.0
_MARGIN_SECONDS = 2.0


class Leader:
    """This process's candidacy; the holder is unique per process start."""

    def __init__(self, database: Database) -> None:
        """Not a leader before the first `renew`."""
        self._database = database
        self.holder: UUID = new_id()
        self.term: int | None = None
        self._trusted_until = 0.0

    def is_leader(self) -> bool:
        """Whether this process may still act as leader, by its own monotonic clock."""
        return self.term is not None and time.monotonic() < self._trusted_until

    async def renew(self) -> bool:
        """Take or renew the leadership; True if it is held."""
        sent = time.monotonic()
        ttl = timedelta(seconds=TTL_SECONDS)
        try:
            term = await self._database.run(lambda conn: leaders.hold(conn, NAME, self.holder, ttl))
        except ServiceError:
            return self.is_leader()
        if failpoints.ARMED and term is not None:
            await failpoints.hit("leader.after_elect")
        self.term = term
        self._trusted_until = sent + TTL_SECONDS - _MARGIN_SECONDS if term is not None else 0.0
        return term is not None

    async def resign(self) -> None:
        """Give it up at a clean stop, so that the next one takes over at once."""
        held, self.term = self.term, None
        if held is None:
            return
        try:
            await self._database.run(lambda conn: leaders.resign(conn, NAME, self.holder))
        except ServiceError:
            return

    async def mark_swept(self) -> None:
        """Note that the sweeps of this term ran."""
        await self._database.run(lambda conn: leaders.mark_swept(conn, NAME, self.holder))
