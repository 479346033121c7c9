"""What this process knows of its own leadership: the term, and until when it may be trusted.

A renewal counts from the moment at which it was *sent*, on a clock that goes on while the process
or its machine is stopped, less a margin. So a leader whose renewals do not come back stops by
itself before anybody else can be elected, and a renewal that took long extends nothing.
"""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from app.domain.errors import LeadershipLost
from app.domain.ids import new_id
from app.settings import SchedulerSettings
from app.store.database import Connection
from app.store.leaders import SCHEDULER, Fence, prove

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def moment() -> float:
    """Seconds that never jump, and that count while the machine sleeps where it can tell."""
    return time.clock_gettime(_CLOCK)


class Leadership:
    """This process's part in the election; its holder id is unique per process start."""

    def __init__(self, settings: SchedulerSettings) -> None:
        """Not a leader before the first proof."""
        self.name = SCHEDULER
        self.holder: UUID = new_id()
        self.label = settings.label
        self.ttl = timedelta(seconds=settings.leader_ttl_seconds)
        self._trusted_seconds = settings.leader_ttl_seconds * (1 - settings.MARGIN)
        self._trusted_until = 0.0
        self.term: int | None = None

    def is_held(self) -> bool:
        """Whether this process may still act as leader, by its own clock alone."""
        return self.term is not None and moment() < self._trusted_until

    def note(self, term: int | None, sent_at: float) -> None:
        """Note what an election that was asked for at `sent_at` came to."""
        self.term = term
        self._trusted_until = 0.0 if term is None else sent_at + self._trusted_seconds

    def give_up(self) -> None:
        """Stop acting as leader, at once."""
        self.note(None, 0)

    @property
    def fence(self) -> Fence:
        """What a write names that must happen under this term or not at all.

        Raises LeadershipLost.
        """
        if self.term is None or not self.is_held():
            raise LeadershipLost
        return Fence(self.name, self.holder, self.term)

    async def prove(self, conn: Connection) -> int:
        """Prove this term for the rest of the transaction; return it. Raises LeadershipLost."""
        fence = self.fence
        await prove(conn, fence)
        return fence.term
