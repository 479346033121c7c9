"""What is known of pushed messages before they are worked on, looked up for many at once.

Nearly always that is nothing, of any message at all. Then for a second nothing is looked up of
messages whose repeats have no second effect: a mark counts only after many seconds, so none that
counts is overlooked. Of all others the transaction of their effect knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from uuid import UUID

from app.domain.errors import DatabaseUnavailable, RequestInvalid
from app.services import Services
from app.store import messages
from app.store.database import Connection
from app.store.messages import History, Message

QUIET_SECONDS = 1.0
"""Below the least age of a mark that counts, which is over five seconds."""


class Histories:
    """Looks messages up, for one process."""

    def __init__(self, services: Services, process_id: UUID) -> None:
        """`process_id` tells this process's marks from those of others."""
        self._services = services
        self._process_id = process_id
        push = services.settings.push
        # Longer than any delivery lives: a mark that old was left by a process that died.
        self._patience = timedelta(seconds=push.handler_timeout_seconds + 5)
        self._quiet_until = 0.0
        self._disturbed = 0
        self._looking = services.gathered.also("push.look", self._find, lambda one: one.digest)

    def disturb(self) -> None:
        """This process is about to note something of a message."""
        self._disturbed += 1
        self._quiet_until = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was known of any message a moment ago."""
        return monotonic() < self._quiet_until

    async def look_up(self, message: Message, deadline: float) -> History:
        """What is known of the message. One that keeps killing its process raises."""
        try:
            async with asyncio.timeout_at(deadline):
                history = await self._looking.run(message)
                assert isinstance(history, History)  # noqa: S101 - a look refuses nobody
                deaths = history.deaths
                if history.abandoned and not history.processed:
                    deaths = await self._services.database.run(
                        lambda conn: messages.count_death(
                            conn, message, self._process_id, self._patience
                        )
                    )
        except TimeoutError:
            raise DatabaseUnavailable from None
        most = self._services.settings.push.deaths_before_dead_letter
        if deaths >= most and not history.processed:
            raise RequestInvalid([], "Processes died while they worked on this message.")
        return history

    async def _find(self, conn: Connection, batch: Sequence[Message]) -> list[History]:
        began, disturbed = monotonic(), self._disturbed
        found = await messages.find_histories(conn, batch, self._process_id, self._patience)
        nothing = all(history is messages.NOTHING for history in found)
        if nothing and not await messages.any_noted(conn) and disturbed == self._disturbed:
            self._quiet_until = began + QUIET_SECONDS
        return found
