"""Routes that read logs: one stream or all, a range, the last lines, as it grows, a word in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.api import paging
from app.api.answers import answer
from app.api.control import AttemptId
from app.api.identity import require, services_of
from app.api.ranges import parse_range
from app.api.schemas.control import LogMatch, LogMatchPage, LogPage, LogStreamState
from app.domain.errors import PageTokenInvalid, RangeNotSatisfiable, RequestInvalid
from app.domain.lifecycle import LogStream
from app.domain.log_text import Characters
from app.handlers import attempts as attempt_handlers
from app.handlers import log_searching, log_views
from app.handlers.log_following import Follower, lay_out_settled
from app.handlers.log_searching import Place
from app.handlers.log_views import Layout
from app.services import Services
from app.store import log_reads, logs
from app.store.log_reads import View

router = APIRouter(
    prefix="/v1",
    tags=["attempts"],
    dependencies=[Depends(require("control-plane", "operator"))],
)

ALL = "all"
_MAX_NUMBER = 2**31 - 1
_MAX_OFFSET = 2**53 - 1
_EVENTS = "text/event-stream"
_HEADERS = {
    "Accept-Ranges": "bytes",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}

LeaseNumber = Annotated[
    int | None,
    Query(ge=1, le=_MAX_NUMBER, alias="lease_number", description="Only what this lease printed."),
]


@router.get("/attempts/{attempt_id}/logs", name="attempts_list_logs", response_model=LogPage)
async def list_logs(
    request: Request,
    attempt_id: AttemptId,
    stream: Annotated[LogStream | None, Query(description="Only of this stream.")] = None,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List the stored chunks of an attempt's log: where each lies and how large it is.

    `streams` says how far every stream of every lease has come, and whether it is complete.
    """
    services = services_of(request)
    await attempt_handlers.get_attempt(services, attempt_id)
    filters = {"attempt_id": attempt_id, "stream": stream}
    after = _chunk_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services.database.run(
        lambda conn: logs.list_refs(conn, attempt_id, stream=stream, after=after, limit=size + 1)
    )
    streams = await services.database.run(lambda conn: log_reads.list_streams(conn, attempt_id))
    items = found[:size]
    token = None
    if len(found) > size:
        last = items[-1]
        token = paging.encode([last.lease_number, last.stream, last.stream_offset], filters)
    states = [LogStreamState.model_validate(one, from_attributes=True) for one in streams]
    return answer(LogPage(items=items, next_page_token=token, streams=states))


def _chunk_place(place: list[Any] | None) -> tuple[int, str, int] | None:
    match place:
        case None:
            return None
        case [int() as number, str() as stream, int() as offset] if (
            0 <= number <= _MAX_NUMBER and stream in set(LogStream) and 0 <= offset <= _MAX_OFFSET
        ):
            return number, stream, offset
        case _:
            raise PageTokenInvalid


@router.get(
    "/attempts/{attempt_id}/logs/{stream}",
    name="attempts_read_log",
    response_class=Response,
    responses={
        200: {
            "content": {"text/plain": {}, _EVENTS: {}},
            "description": "The log; `Log-Offset` says at which byte of it the answer begins.",
        },
        206: {"content": {"text/plain": {}}, "description": "A range of it."},
        416: {"description": "The range or offset lies beyond the end."},
    },
)
async def read_log(
    request: Request,
    attempt_id: AttemptId,
    stream: Annotated[
        LogStream | Literal["all"],
        Path(description="The stream; `all`: every stream, in the order in which chunks came."),
    ],
    lease_number: LeaseNumber = None,
    offset: Annotated[
        int | None, Query(ge=0, le=_MAX_OFFSET, description="Begin at this byte.")
    ] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=1_000_000, description="Begin so many lines before the end.")
    ] = None,
    follow: Annotated[bool, Query(description="Go on with what comes.")] = False,
) -> Response:
    """Read a log, masked as it is stored, also while it is written.

    The leases of an attempt follow each other with a line between them; a line also stands where
    something is missing and where the log was cut off. One `Range` of bytes is understood, or
    `offset`, or `tail`. Nothing stored yet is an empty answer.

    `follow` goes on until nothing more can come, or for `limits.max_follow_seconds`: ask again with
    `offset`. With `Accept: text/event-stream` it comes as events whose ids are the offsets to go on
    from (`Last-Event-ID`); their text never breaks a character. An `end` event says whether the
    log is `complete`.
    """
    services = services_of(request)
    view = View(attempt_id, None if stream == ALL else stream, lease_number)
    as_events = follow and _EVENTS in request.headers.get("accept", "")
    if as_events and offset is None and tail is None:
        offset = _last_event(request.headers.get("last-event-id"))
    if offset is not None and tail is not None:
        raise RequestInvalid([{"pointer": "/query/tail", "detail": "cannot be given with offset"}])
    layout = await (lay_out_settled if follow else log_views.lay_out)(services, view)
    if not follow and offset is None and tail is None:
        return await _whole_or_range(services, layout, request.headers.get("range"))
    begin = offset or 0
    if tail is not None:
        begin = await log_views.find_tail(services, layout, tail)
    if begin > layout.total:
        raise RangeNotSatisfiable(total_bytes=layout.total)
    if not follow:
        return await _bytes(services, layout, begin, layout.total - 1, 200, {})
    return _following(services, layout, begin, as_events=as_events)


def _last_event(header: str | None) -> int | None:
    if header is None:
        return None
    if not header.isascii() or not header.isdecimal() or int(header[:20]) > _MAX_OFFSET:
        detail = "must be the id of an event of this log"
        raise RequestInvalid([{"pointer": "/header/last-event-id", "detail": detail}])
    return int(header)


async def _whole_or_range(services: Services, layout: Layout, header: str | None) -> Response:
    wanted = parse_range(header, layout.total)
    first, last = wanted or (0, layout.total - 1)
    if wanted is None:
        return await _bytes(services, layout, first, last, 200, {})
    content_range = {"Content-Range": f"bytes {first}-{last}/{layout.total}"}
    return await _bytes(services, layout, first, last, 206, content_range)


async def _bytes(
    services: Services,
    layout: Layout,
    first: int,
    last: int,
    status: int,
    headers: dict[str, str],
) -> Response:
    """The first piece is fetched before the answer begins: a store that is away is a 503."""
    headers = {
        **_HEADERS,
        **headers,
        "Log-Offset": str(first),
        "Content-Length": str(last - first + 1),
    }
    pieces = log_views.read(services, layout, first, last)
    begun = await anext(pieces, b"")

    async def body() -> AsyncGenerator[bytes, None]:
        async with aclosing(pieces):
            yield begun
            async for piece in pieces:
                yield piece

    return StreamingResponse(body(), status, headers, "text/plain; charset=utf-8")


def _following(
    services: Services, layout: Layout, begin: int, *, as_events: bool
) -> StreamingResponse:
    follower = Follower(services, layout.view, begin)
    headers = {**_HEADERS, "Log-Offset": str(begin), "X-Accel-Buffering": "no"}
    if not as_events:
        body = follower.pieces(layout)
        return StreamingResponse(body, 200, headers, "text/plain; charset=utf-8")
    return StreamingResponse(_events(follower, layout), 200, headers, _EVENTS)


async def _events(follower: Follower, layout: Layout) -> AsyncGenerator[bytes, None]:
    """Events of whole characters; the id of each is the offset behind its text."""
    characters = Characters()
    start = follower.offset
    async with aclosing(follower.pieces(layout)) as pieces:
        async for piece in pieces:
            text = characters.feed(piece)
            if not text:
                yield b": waiting\n\n"
                continue
            end = follower.offset - characters.held_back
            yield _event("log", end, {"offset": start, "text": text})
            start = end
    if follower.complete and characters.held_back:
        end = follower.offset
        yield _event("log", end, {"offset": start, "text": characters.end()})
        start = end
    yield _event("end", start, {"offset": start, "complete": follower.complete})


def _event(name: str, offset: int, data: dict[str, Any]) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), offset, orjson.dumps(data))


@router.get(
    "/attempts/{attempt_id}/logs:search",
    name="attempts_search_logs",
    response_model=LogMatchPage,
)
async def search_logs(
    request: Request,
    attempt_id: AttemptId,
    q: Annotated[
        str, Query(min_length=1, max_length=200, description="The text to find, exactly.")
    ],
    stream: Annotated[LogStream | None, Query(description="Only in this stream.")] = None,
    lease_number: LeaseNumber = None,
    page_size: paging.PageSize = 50,
    page_token: paging.PageToken = None,
) -> Response:
    """Find the lines of an attempt's logs that hold a text, stream after stream.

    One match a line, at its first place in it, with the byte at which it begins in that stream as
    it is read. A page may hold fewer matches than asked for, or none, while there is a
    `next_page_token`: go on until there is none.
    """
    services = services_of(request)
    if "\n" in q:
        raise RequestInvalid([{"pointer": "/query/q", "detail": "must be within one line"}])
    filters = {"attempt_id": attempt_id, "q": q, "stream": stream, "lease_number": lease_number}
    after = _search_place(paging.decode(page_token, filters))
    await attempt_handlers.get_attempt(services, attempt_id)
    names = [stream] if stream else list(LogStream)
    views = [View(attempt_id, name, lease_number) for name in names]
    word = q.encode("utf-8", "surrogatepass")
    size = paging.bounded(page_size)
    page = await log_searching.search(services, views, word, after=after, limit=size)
    items = [
        LogMatch(
            stream=LogStream(hit.stream),
            lease_number=hit.lease_number,
            line_number=hit.line.line_number,
            offset=hit.line.offset,
            text=hit.line.text,
        )
        for hit in page.hits
    ]
    more = page.more
    place = None if more is None else [more.stream, more.offset, more.line_number, more.found]
    token = None if place is None else paging.encode(place, filters)
    return answer(LogMatchPage(items=items, next_page_token=token))


def _search_place(place: list[Any] | None) -> Place | None:
    match place:
        case None:
            return None
        case [str() as stream, int() as offset, int() as line, bool() as found] if (
            stream in set(LogStream) and 0 <= offset <= _MAX_OFFSET and 1 <= line <= _MAX_OFFSET
        ):
            return Place(stream, offset, line, found)
        case _:
            raise PageTokenInvalid
