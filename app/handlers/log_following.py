"""Following a log: what there is, and then what comes, until nothing more can come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from app.handlers import log_views
from app.handlers.log_views import Cursor, Layout, lay_out, lease_mark, numbered, settled
from app.services import Services
from app.store import log_reads, signals
from app.store.log_reads import LAST_NUMBER, LeaseLog, View

_PATIENCE_SECONDS = 10.0


@dataclass(slots=True)
class Follower:
    """One reader of a growing log. Waiting holds no connection and no object open.

    A lease's log is followed to its end before that of the next one is begun, so that what was
    given out before never moves: `offset` is the same place for every reader, at any time.
    """

    services: Services
    view: View
    offset: int
    complete: bool = False
    """Whether it ended since nothing more can come, and not since it had to."""
    _cursor: Cursor = field(default_factory=Cursor)
    _marked: int = 0
    """The last lease whose end was told."""

    async def pieces(self, layout: Layout) -> AsyncGenerator[bytes, None]:
        """The bytes from the offset on; an empty piece now and then while nothing comes.

        `layout` is of settled leases (`lay_out_settled`) and reaches to the offset at least.

        Ends when the log can grow no more (`complete`), after `limits.max_follow_seconds`, or when
        this instance is about to stop.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.services.settings.limits.max_follow_seconds
        first, last = self.offset, layout.total - 1
        async with aclosing(log_views.read(self.services, layout, first, last)) as pieces:
            async for piece in pieces:
                yield self._counted(piece)
                if loop.time() >= deadline:
                    return
        self._stand_at_the_end_of(layout)
        quiet = 0.0
        while True:
            leases = await log_views.list_leases(self.services, self.view)
            async with aclosing(self._new(leases)) as pieces:
                async for piece in pieces:
                    quiet = 0.0
                    yield self._counted(piece)
                    if loop.time() >= deadline:
                        return
            if ended(leases, self.view):
                self.complete = True
                return
            left = deadline - loop.time()
            if left <= 0 or self.services.signals.draining:
                return
            poll = min(left, self.services.settings.leases.signal_every_seconds)
            topic = signals.attempt(self.view.attempt_id)
            quiet += 0.0 if await self.services.signals.wait(topic, poll) else poll
            if quiet >= _PATIENCE_SECONDS:
                quiet = 0.0
                yield b""  # so that a reader that has gone is noticed, and proxies stay awake

    def _counted(self, piece: bytes) -> bytes:
        self.offset += len(piece)
        return piece

    def _stand_at_the_end_of(self, layout: Layout) -> None:
        self._cursor = Cursor()
        for section in layout.sections:
            if section.run is not None:
                self._cursor = Cursor(section.lease_number, section.run.last_number)
        for number, lease in numbered(layout.leases):
            if not settled(lease, self.view):
                break
            self._marked = number

    async def _new(self, leases: list[LeaseLog]) -> AsyncGenerator[bytes, None]:
        """What has come of the leases up to the first one of which more may come."""
        for number, lease in numbered(leases):
            if number > self._marked:
                async with aclosing(self._of_lease(number, lease)) as pieces:
                    async for piece in pieces:
                        yield piece
                if not settled(lease, self.view):
                    return
                self._marked = number

    async def _of_lease(self, number: int, lease: LeaseLog) -> AsyncGenerator[bytes, None]:
        cursor = self._cursor
        begun = cursor.lease_number == number
        if not begun:
            cursor = Cursor(number)
        last = (number, LAST_NUMBER)
        async with aclosing(
            log_views.read_chunks(self.services, self.view, cursor, last)
        ) as pieces:
            async for piece in pieces:
                if not begun and self.offset:
                    yield lease_mark(number)
                begun = True
                self._cursor = cursor
                yield piece
        for mark in await self._end_marks(number, lease):
            if not begun and self.offset:
                yield lease_mark(number)
            begun = True
            yield mark

    async def _end_marks(self, number: int, lease: LeaseLog) -> list[bytes]:
        if not settled(lease, self.view):
            return []
        view = View(self.view.attempt_id, self.view.stream, number)
        tails = await self.services.database.run(lambda conn: log_reads.list_tails(conn, view))
        limit = self.services.settings.limits.max_log_bytes_per_attempt
        return log_views.end_marks(lease, tails, self.view, limit)


def ended(leases: list[LeaseLog], view: View) -> bool:
    """Whether nothing more can come: its last stream was closed, or the attempt's time is over."""
    of_view = numbered(leases)
    if not all(settled(lease, view) for _, lease in of_view):
        return False
    if not of_view:
        return leases[0].attempt_ended
    last = of_view[-1][1]
    is_closed = view.stream is not None and last.closed
    return last.attempt_ended or view.lease_number is not None or is_closed


async def lay_out_settled(services: Services, view: View) -> Layout:
    """The part of a view that only grows at its end."""
    return await lay_out(services, view, only_settled=True)
