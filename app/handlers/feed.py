"""What readers of the feed ask: a page, a page as soon as there is one, or all pages as they come.

Waiting holds no database connection. Who waits is woken after commits, and looks again each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from app import failpoints
from app.domain.errors import ServiceError
from app.domain.feed import Cursor
from app.services import Services
from app.store import feed, signals
from app.store.feed import Page

LATEST = "latest"
_GATHER_SECONDS = 0.02
_AGAIN_SECONDS = 0.05
Gone = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Query:
    """What a reader wants: after which place, how many at once, of which types."""

    after: Cursor
    limit: int
    types: Sequence[str] | None


async def place_of(services: Services, after: str | None) -> Cursor:
    """None: before the oldest event that is kept; `latest`: now; or a cursor's text.

    Raises FeedCursorInvalid.
    """
    if after is None:
        return await services.database.run(feed.oldest)
    if after == LATEST:
        return await services.database.run(feed.latest)
    return Cursor.decode(after)


async def read_page(services: Services, query: Query) -> Page:
    """What can be read now. Raises FeedEpochChanged or FeedCursorExpired."""
    page = await services.database.run(
        lambda conn: feed.read(conn, query.after, query.limit, types=query.types)
    )
    if failpoints.ARMED:
        await failpoints.hit("feed.after_page")
    return page


async def wait_page(services: Services, query: Query, wait_seconds: float, gone: Gone) -> Page:
    """The next page that has an event, or after that time, or at a drain, an empty one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait_seconds, services.settings.limits.max_wait_seconds)
    reader = Reader(services, query)
    while True:
        page = await reader.read()
        left = deadline - loop.time()
        if page.events or left <= 0 or services.signals.draining or await gone():
            return page
        await reader.wait(left)


async def follow(services: Services, query: Query, first: Page, gone: Gone) -> AsyncIterator[Page]:
    """Page after page, beginning with `first`; an empty one at each keep-alive.

    Ends by itself before the platform would end it, at a drain, when the client is gone, and when
    the database does not answer: the reader resumes after the last cursor that it has.
    """
    limits = services.settings.limits
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.max_stream_seconds
    told_at = loop.time()
    reader = Reader(services, query)
    reader.moved(first)
    page = first
    while True:
        if page.events or loop.time() - told_at >= limits.stream_keep_alive_seconds:
            told_at = loop.time()
            yield page
        left = deadline - loop.time()
        if left <= 0 or services.signals.draining or await gone():
            return
        await reader.wait(min(left, told_at + limits.stream_keep_alive_seconds - loop.time()))
        try:
            page = await reader.read()
        except ServiceError:
            return


class Reader:
    """Goes through the feed, and waits where it ends."""

    def __init__(self, services: Services, query: Query) -> None:
        """Begins at the query's place."""
        self._services = services
        self._query = query
        self._page: Page | None = None
        self._woken = False

    async def read(self) -> Page:
        """The next page; the place moves on."""
        page = await read_page(self._services, self._query)
        self.moved(page)
        return page

    def moved(self, page: Page) -> None:
        """Go on after this page."""
        self._page = page
        self._query = replace(self._query, after=page.next_cursor)

    async def wait(self, seconds: float) -> None:
        """Return when there may be more: at once, unless the last page had caught up.

        Word of a commit can come while an older transaction still hides its events, so after a
        look in vain the next one comes soon.
        """
        if self._page is None or not self._page.caught_up or seconds <= 0:
            return
        in_vain = self._woken and not self._page.events
        poll = _AGAIN_SECONDS if in_vain else self._services.settings.leases.signal_every_seconds
        self._woken = await self._services.signals.wait(signals.FEED, min(seconds, poll))
        if self._woken and not self._services.signals.draining:
            await asyncio.sleep(min(seconds, _GATHER_SECONDS))
