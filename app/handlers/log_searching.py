"""Searching the logs of an attempt for a word: a page at a time, in bounded memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from app.domain.log_text import LineSearch
from app.domain.log_text import Match as LineMatch
from app.handlers import log_views
from app.handlers.log_views import Layout, lay_out
from app.services import Services
from app.store.log_reads import View

SECONDS_A_PAGE = 5.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that holds the word, and where it is."""

    stream: str
    lease_number: int
    line: LineMatch


@dataclass(frozen=True, slots=True)
class Place:
    """From where the next page goes on: in which stream, and where `LineSearch` does there."""

    stream: str
    offset: int = 0
    line_number: int = 1
    found: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The hits of one page; `more` None: all was searched."""

    hits: list[Hit]
    more: Place | None


async def search(
    services: Services,
    views: Sequence[View],
    word: bytes,
    *,
    after: Place | None,
    limit: int,
) -> Page:
    """At most `limit` lines that hold the word, stream after stream.

    A page ends early after some seconds, with fewer hits or none, and says where to go on.
    """
    deadline = asyncio.get_running_loop().time() + SECONDS_A_PAGE
    hits: list[Hit] = []
    for view in views:
        stream = view.stream or ""
        if after is not None and stream != after.stream:
            continue
        start = after or Place(stream)
        after = None
        found, more = await _search_view(
            services, view, word, start, limit=limit - len(hits), deadline=deadline
        )
        hits += found
        if more is not None:
            return Page(hits, more)
    return Page(hits, None)


async def _search_view(
    services: Services, view: View, word: bytes, start: Place, *, limit: int, deadline: float
) -> tuple[list[Hit], Place | None]:
    loop = asyncio.get_running_loop()
    layout = await lay_out(services, view)
    searching = LineSearch(word, (start.offset, start.line_number, start.found))
    hits: list[Hit] = []
    async with aclosing(log_views.read(services, layout, start.offset, layout.total - 1)) as pieces:
        async for piece in pieces:
            for line in searching.feed(piece):
                hits.append(_hit(layout, line))
                if len(hits) == limit:
                    return hits, Place(start.stream, *searching.place)
            if loop.time() > deadline and searching.place[0] > start.offset:
                return hits, Place(start.stream, *searching.place)
    for line in searching.feed(b"", final=True):
        hits.append(_hit(layout, line))
        if len(hits) == limit:
            return hits, Place(start.stream, *searching.place)
    return hits, None


def _hit(layout: Layout, line: LineMatch) -> Hit:
    lease_number = 1
    for section in layout.sections:
        if section.start > line.offset:
            break
        lease_number = section.lease_number
    return Hit(layout.view.stream or "", lease_number, line)
