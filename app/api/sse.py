"""Server-sent events (the HTML standard, section 9.2): frames, and what a reader resumes after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

MEDIA_TYPE = "text/event-stream"
RETRY = b"retry: 1000\n\n"
"""How long a reader waits before it resumes."""

DOCUMENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        "description": "As JSON; or, with `Accept: text/event-stream`, as they come.",
    }
}


def is_wanted(request: Request) -> bool:
    """Whether the caller accepts a stream of events."""
    accepted = request.headers.get("accept", "").lower().split(",")
    return any(one.split(";")[0].strip() == MEDIA_TYPE for one in accepted)


def frame(event_id: str, data: bytes) -> bytes:
    """One event; its data is on one line."""
    return b"id: %b\ndata: %b\n\n" % (event_id.encode(), data)


def keep_alive(event_id: str) -> bytes:
    """Nothing happened; but the place has moved on, and a reader that resumes may use it."""
    return b": keep-alive\nid: %b\n\n" % event_id.encode()


def answer(frames: AsyncIterator[bytes]) -> StreamingResponse:
    """The stream; no proxy may gather it."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(frames, 200, headers, MEDIA_TYPE)
