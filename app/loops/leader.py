"""The candidacy of this process: it takes the leadership, renews it and hands it over.

All sweeps are correct even with two leaders; the election keeps the work from being done twice.
What must happen only once proves the term in its own transaction (`Leadership.prove`).
"""

from __future__ import annotations

import asyncio

from app import failpoints
from app.commands.leadership import moment
from app.domain.errors import ServiceError
from app.services import Services
from app.store import leaders


class Leader:
    """Renews what `services.leadership` knows, over a connection of its own."""

    def __init__(self, services: Services) -> None:
        """Not a leader before the first `renew`."""
        self._database = services.election
        self._leadership = services.leadership
        self._electing = asyncio.Lock()
        self._unsure = False

    async def renew(self) -> bool:
        """Take or renew the leadership; True if this process may act as leader."""
        held, sent_at = self._leadership, moment()
        async with self._electing:
            self._unsure = True  # broken off here, nobody would know what the election came to
            try:
                term = await self._database.run(
                    lambda conn: leaders.hold(conn, held.name, held.holder, held.ttl, held.label)
                )
            except ServiceError:
                return held.is_held()
            if failpoints.ARMED and term is not None:
                await failpoints.hit("leader.after_elect")
            held.note(term, sent_at)
            self._unsure = False
        return held.is_held()

    async def resign(self) -> None:
        """Give it up at a clean stop, so that the next one takes over at once."""
        held = self._leadership
        may_lead = held.term is not None or self._unsure
        held.give_up()
        if not may_lead:
            return
        self._unsure = False
        try:
            await self._database.run(lambda conn: leaders.resign(conn, held.name, held.holder))
        except ServiceError:
            return
