"""Routes of events: the feed of all attempts, and the timeline of one; as pages or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging, sse
from app.api.answers import answer
from app.api.bodies import pointer
from app.api.identity import require, services_of
from app.api.schemas.events import EventPage, FeedPage, TimelineEvent
from app.domain.errors import (
    AttemptNotFound,
    FeedCursorInvalid,
    PageTokenInvalid,
    RequestInvalid,
    ServiceError,
)
from app.domain.feed import EVENT_OF_TYPE, body, dump
from app.domain.records import Event
from app.handlers import feed
from app.services import Services
from app.store import signals, timelines
from app.store.feed import Page

router = APIRouter(
    prefix="/v1", tags=["events"], dependencies=[Depends(require("control-plane", "operator"))]
)

MAX_PAGE = 1000
_STREAM_PAGE = 500
_MAX_NUMBER = 2**31 - 1

LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="Of a stream that is resumed: its last `id`."),
]


@router.get(
    "/events",
    name="events_read",
    response_model=FeedPage,
    responses={
        **sse.DOCUMENTED,
        400: {"description": "`after` is no cursor."},
        410: {"description": "Nothing can follow this cursor; `start` or `oldest` says where to."},
    },
)
async def read_events(
    request: Request,
    after: Annotated[
        str | None,
        Query(
            max_length=200,
            description="`next_cursor` of the page before; `latest`: from now on; absent: all that "
            "is kept.",
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        Query(description="Only of these types, such as `attempt.succeeded`; commas between them."),
    ] = None,
    wait_seconds: Annotated[
        float, Query(ge=0, le=3000, description="Wait so long for the first event.")
    ] = 0,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Events a page.")] = 100,
    last_event_id: LastEventId = None,
) -> Response:
    """Read the events of all attempts, in an order that loses nothing.

    Begin without `after`, or with `latest`; then give `next_cursor` of each answer to the next
    request. Nothing ever appears before a cursor that was given out, and the events of an attempt
    keep their order. With `wait_seconds` the answer comes with the first event, or at that time.

    With `Accept: text/event-stream` events come as they happen, each with its cursor as `id`; the
    stream ends by itself now and then, and is resumed with `Last-Event-ID`.
    """
    services = services_of(request)
    wanted = _event_types(types)
    if sse.is_wanted(request):
        place = await feed.place_of(services, last_event_id or after)
        query = feed.Query(place, _STREAM_PAGE, wanted)
        first = await feed.read_page(services, query)
        pages = feed.follow(services, query, first, request.is_disconnected)
        return sse.answer(_feed_frames(pages))
    query = feed.Query(await feed.place_of(services, after), page_size, wanted)
    page = await feed.wait_page(services, query, wait_seconds, request.is_disconnected)
    content = {
        "items": [body(event) for event in page.events],
        "next_cursor": page.next_cursor.encode(),
        "caught_up": page.caught_up,
    }
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(content), 200, headers, "application/json")


def _event_types(types: Sequence[str] | None) -> list[str] | None:
    if types is None:
        return None
    wanted = [one.strip() for text in types for one in text.split(",")]
    if not set(wanted) <= set(EVENT_OF_TYPE):
        detail = f"must be of: {', '.join(EVENT_OF_TYPE)}"
        raise RequestInvalid([{"pointer": pointer(("query", "types")), "detail": detail}])
    return wanted


async def _feed_frames(pages: AsyncIterator[Page]) -> AsyncIterator[bytes]:
    yield sse.RETRY
    async for page in pages:
        if page.events:
            yield b"".join(sse.frame(one.cursor.encode(), dump(one)) for one in page.events)
        else:
            yield sse.keep_alive(page.next_cursor.encode())


# --- the timeline of one attempt ------------------------------------------------------------------


@router.get(
    "/attempts/{attempt_id}/events",
    name="attempts_list_events",
    response_model=EventPage,
    responses=sse.DOCUMENTED,
    tags=["attempts"],
)
async def list_events(
    request: Request,
    attempt_id: Annotated[UUID, Path(description="The attempt.")],
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Read the timeline of an attempt, in order, with the time between its steps.

    With `Accept: text/event-stream` its events come as they happen, each with its number as `id`;
    the stream is resumed with `Last-Event-ID`.
    """
    services = services_of(request)
    if sse.is_wanted(request):
        timeline = _Timeline(services, attempt_id)
        if last_event_id is not None:
            await timeline.resume(last_event_id)
        first = await timeline.read(_STREAM_PAGE)
        return sse.answer(timeline.frames(first, request))
    filters = {"attempt_id": attempt_id}
    number, previous = _event_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    timeline = _Timeline(services, attempt_id, number, previous)
    found = await timeline.read(size + 1)
    items = found[:size]
    token = None
    if len(found) > size:
        last = items[-1]
        token = paging.encode([last.event_number, last.created_at.isoformat()], filters)
    return answer(EventPage(items=items, next_page_token=token))


def _event_place(place: list[Any] | None) -> tuple[int, datetime | None]:
    match place:
        case None:
            return 0, None
        case [int() as number, str() as moment] if 0 <= number <= _MAX_NUMBER:
            try:
                previous = datetime.fromisoformat(moment)
            except ValueError:
                raise PageTokenInvalid from None
            if previous.tzinfo is None:
                raise PageTokenInvalid
            return number, previous
        case _:
            raise PageTokenInvalid


def _frame(event: TimelineEvent) -> bytes:
    return sse.frame(str(event.event_number), event.model_dump_json().encode())


class _Timeline:
    """Reads on where it was, and knows when the event before happened."""

    def __init__(
        self,
        services: Services,
        attempt_id: UUID,
        number: int = 0,
        previous: datetime | None = None,
    ) -> None:
        self._services = services
        self._attempt_id = attempt_id
        self._number = number
        self._previous = previous

    async def resume(self, last_event_id: str) -> None:
        """Go on after this number. Raises FeedCursorInvalid, AttemptNotFound."""
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 10):  # noqa: PLR2004
            raise FeedCursorInvalid
        self._number = max(0, int(last_event_id) - 1)
        if int(last_event_id) > 0:
            await self.read(1)

    async def read(self, limit: int) -> list[TimelineEvent]:
        """The next events. Raises AttemptNotFound."""
        found = await self._services.database.run(
            lambda conn: timelines.list_events(
                conn, self._attempt_id, after=self._number, limit=limit
            )
        )
        if found is None:
            raise AttemptNotFound
        return [self._with_duration(event) for event in found]

    def _with_duration(self, event: Event) -> TimelineEvent:
        since = None if self._previous is None else event.created_at - self._previous
        self._number, self._previous = event.event_number, event.created_at
        seconds = None if since is None else since.total_seconds()
        return TimelineEvent.model_construct(**dict(event), seconds_after_previous=seconds)

    async def frames(self, first: list[TimelineEvent], request: Request) -> AsyncIterator[bytes]:
        """Events as they come, until the stream is long enough or nobody listens."""
        limits = self._services.settings.limits
        loop = asyncio.get_running_loop()
        deadline, told_at = loop.time() + limits.max_stream_seconds, loop.time()
        topic, poll = signals.attempt(self._attempt_id), self._services.settings.leases
        events = first
        yield sse.RETRY
        while True:
            if events or loop.time() - told_at >= limits.stream_keep_alive_seconds:
                told_at = loop.time()
                yield b"".join(_frame(one) for one in events) or sse.keep_alive(str(self._number))
            left = deadline - loop.time()
            if left <= 0 or self._services.signals.draining or await request.is_disconnected():
                return
            if len(events) < _STREAM_PAGE:
                await self._services.signals.wait(topic, min(left, poll.signal_every_seconds))
            try:
                events = await self.read(_STREAM_PAGE)
            except ServiceError:
                return
