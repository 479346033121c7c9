"""Where claims begin to look while dead entries lie before the first attempt of a class.

What was claimed leaves an entry in the index of the claimable, which a look steps over until it is
removed; and while any old snapshot is open in the database, none is. So after a claim that was slow
for that reason, this instance begins at the place where it found something, for a second. What has
come to lie before that place (a more urgent attempt, one that goes back to the queue) may in that
second wait behind others; it is found at once where nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from app.domain.placement import Demands
from app.domain.records import Attempt
from app.store import floors
from app.store.database import Connection
from app.store.floors import Place

_SLOW_SECONDS = 0.005
_OLD_TRANSACTIONS = 1000
"""So many transactions after a snapshot was taken there may be entries enough to mind."""
_KEPT_SECONDS = 1.0


class Floors:
    """This instance's floors, by placement class. Each is kept for a second, whatever is found."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """There are none."""
        self._clock = clock
        self._floors: dict[UUID, Place] = {}
        self._until = 0.0
        self._asked_at = -_KEPT_SECONDS

    def of(self, classes: Sequence[UUID]) -> dict[UUID, Place]:
        """The floors of these classes; a class without one is looked through from its beginning."""
        if self._floors and self._clock() >= self._until:
            self._floors.clear()
        return {one: self._floors[one] for one in classes if one in self._floors}

    def forget(self) -> None:
        """Look through everything again."""
        self._floors.clear()

    async def note(self, conn: Connection, seconds: float, found: Iterable[Attempt]) -> None:
        """A claim took so long and found these: begin there if dead entries are the reason.

        Asks at most once a second how old the oldest snapshot is.
        """
        now = self._clock()
        if seconds < _SLOW_SECONDS or now - self._asked_at < _KEPT_SECONDS:
            return
        self._asked_at = now
        if await floors.oldest_snapshot_age(conn) < _OLD_TRANSACTIONS:
            return
        self._until = now + _KEPT_SECONDS
        for attempt in found:
            place = Place(attempt.priority, attempt.created_at, attempt.id)
            class_id = _class_of(attempt)
            self._floors[class_id] = min(place, self._floors.get(class_id, place))


def _class_of(attempt: Attempt) -> UUID:
    placement = attempt.placement
    return Demands(
        attempt.runner_kind,
        attempt.job_type,
        placement.get("zone"),
        placement.get("labels") or {},
    ).class_id
