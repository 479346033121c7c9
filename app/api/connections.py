"""HTTP connections within limits: nobody may be silent, slow, too large or too many for ever.

The server underneath bounds nothing of a request before the application sees it: a head may grow
without end, and take seconds of the event loop while it does, and a connection that sends a byte
now and then stays open for good. So this protocol counts the bytes and fields of a head before it
parses them, and gives the first byte, the whole head and the body's progress a time each.

What it answers has no body and no request id, for no request was read: 408 for too slow, 431 for
too large a head. A connection that never sent anything is closed without a word, and so is one
more of a source that has too many.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.corked import Corked
from app.settings import ServerSettings

_LOG = structlog.get_logger(__name__)
_QUIET_SECONDS = 10.0
_FAREWELL_SECONDS = 0.5


@dataclass
class Doorkeeper:
    """What all connections of one server share. `refused` is told the cause of each refusal."""

    settings: ServerSettings
    refused: Callable[[str], None]
    sources: Counter[str] = field(default_factory=Counter)
    _quiet_until: dict[str, float] = field(default_factory=dict)

    def admit(self, source: str) -> bool:
        """Count one more connection of this address; False if it has too many already."""
        limit = self.settings.max_connections_per_source
        if limit and self.sources[source] >= limit:
            return False
        self.sources[source] += 1
        return True

    def leave(self, source: str) -> None:
        """One connection of this address is over."""
        self.sources[source] -= 1
        if self.sources[source] <= 0:
            del self.sources[source]

    def tell(self, cause: str) -> None:
        """Count a refusal; a flood of them makes one line in a while."""
        self.refused(cause)
        now = time.monotonic()
        if now >= self._quiet_until.get(cause, 0.0):
            self._quiet_until[cause] = now + _QUIET_SECONDS
            _LOG.warning("connection.refused", cause=cause)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A timer runs only while something is awaited from the other side."""

    def __init__(self, *, doorkeeper: Doorkeeper, **server: Any) -> None:
        """`server`: what uvicorn gives to its protocols."""
        super().__init__(**server)
        self._door = doorkeeper
        self._limits = doorkeeper.settings
        self._source: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._heard = False
        self._unheard_bytes = 0
        self._was_paused = False
        self._answered_early_bytes = 0
        self._over = False

    # --- the life of a connection ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or end it before anything is read."""
        peer = transport.get_extra_info("peername")
        source = str(peer[0]) if isinstance(peer, (tuple, list)) else "local"
        if not self._door.admit(source):
            self._over = True
            self._door.tell("too-many")
            transport.abort()
            return
        self._source = source
        super().connection_made(cast("asyncio.Transport", Corked(transport)))
        self._await(self._limits.first_byte_timeout_seconds, self._on_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        if self._source is None:
            return
        self._door.leave(self._source)
        self._source = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close an idle connection now, a busy one after its answer; called when we stop."""
        super().shutdown()
        self._expect_farewell()

    def on_response_complete(self) -> None:
        """An answer was sent; it may have been the connection's last."""
        super().on_response_complete()
        self._expect_farewell()

    def _expect_farewell(self) -> None:
        """Do not wait for a client's farewell: over TLS a silent one would hold up our own end."""
        if self.transport.is_closing():
            self.loop.call_later(_FAREWELL_SECONDS, self._part)

    def _part(self) -> None:
        """Part from a client that has all of its answer and does not say goodbye."""
        if self._source is None:
            return
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_FAREWELL_SECONDS, self._part)
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser no more of a head than a head may have."""
        if self._over:
            return
        self._unset_keepalive_if_required()
        if not (self._in_head or self._in_body):
            self._stop_timer()
        view = memoryview(data)
        while view and not self._over:
            if self._in_body:
                self._feed_body(view)
                view = view[len(view) :]
            else:
                room = self._limits.max_head_bytes - self._head_bytes
                self._feed_head(view[:room])
                view = view[room:]
        if not self._over:
            self._watch()

    def _feed_head(self, piece: memoryview) -> None:
        """Parse no more than a head may have. Empty lines before one count as well."""
        self._in_head = True
        self._head_bytes += len(piece)
        self._feed(piece)
        if self._in_head and self._head_bytes >= self._limits.max_head_bytes:
            self._refuse("head-too-large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _feed_body(self, piece: memoryview) -> None:
        """Parse; what is no body (a chunk's extensions, trailers) may be no larger than a head."""
        self._body_bytes += len(piece)
        self._heard = False
        self._feed(piece)
        self._unheard_bytes = 0 if self._heard else self._unheard_bytes + len(piece)
        if self._unheard_bytes > self._limits.max_head_bytes:
            self._refuse("head-too-large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _feed(self, piece: memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except httptools.HttpParserError:
            self._refuse("not-http", HTTPStatus.BAD_REQUEST)

    # --- the parser's words ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a field."""
        super().on_header(name, value)
        if len(self.headers) > self._limits.max_head_fields:
            self._refuse("head-too-large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            raise ValueError("too many fields")

    def on_headers_complete(self) -> None:
        """The head is whole; what follows is a body."""
        self._stop_timer()
        self._in_head, self._in_body = False, True
        self._head_bytes = self._body_bytes = 0
        self._unheard_bytes = self._answered_early_bytes = 0
        self._was_paused = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a piece on; after the answer the rest is read and thrown away, but not for ever."""
        self._heard = True
        super().on_body(body)
        if self.cycle.response_complete:
            self._answered_early_bytes += len(body)
            if self._answered_early_bytes > self._limits.max_body_bytes:
                self._end("body-after-answer")

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._heard = True

    def on_chunk_complete(self) -> None:
        """A chunk is whole."""
        self._heard = True

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._stop_timer()
        self._in_head = self._in_body = False
        self._heard = True
        super().on_message_complete()

    # --- deadlines ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for what is still to come of this request, if anything is."""
        if self._in_body:
            self._was_paused = self._was_paused or self.flow.read_paused
            if self._timer is None:
                self._await(self._limits.body_window_seconds, self._on_body_window)
        elif self._in_head:
            if self._timer is None:
                self._await(self._limits.head_timeout_seconds, self._on_head_late)
        else:
            self._stop_timer()

    def _on_silent(self) -> None:
        self._end("silent")

    def _on_head_late(self) -> None:
        self._refuse("head-too-slow", HTTPStatus.REQUEST_TIMEOUT)

    def _on_body_window(self) -> None:
        """The window is over: begin a new one, unless too little came although it could."""
        self._timer = None
        least = self._limits.min_body_bytes_per_second * self._limits.body_window_seconds
        held_up_by_us = self._was_paused or self.flow.read_paused
        if self._body_bytes < least and not held_up_by_us:
            self._refuse("body-too-slow", HTTPStatus.REQUEST_TIMEOUT)
            return
        self._body_bytes = 0
        self._was_paused = self.flow.read_paused
        self._await(self._limits.body_window_seconds, self._on_body_window)

    def _await(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- refusals -------------------------------------------------------------------------------

    def _refuse(self, cause: str, status: HTTPStatus) -> None:
        """Answer, if no answer has begun, and end the connection. Only the first refusal counts."""
        if self._over:
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if not (answering and self.cycle.response_started) and not self.transport.is_closing():
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            self.transport.write(
                f"{head}content-length: 0\r\nconnection: close\r\n\r\n".encode("ascii")
            )
        self._end(cause)

    def _end(self, cause: str) -> None:
        if self._over:
            return
        self._over = True
        self._stop_timer()
        if self.cycle is not None:
            # Whoever waits for the rest of the body learns that it will not come.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._door.tell(cause)
        self.transport.close()
