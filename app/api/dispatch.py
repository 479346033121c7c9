"""From an envelope to its handler, and from what happened there to an outcome.

Every failure has one of four meanings (`problems.Push`): it can never succeed, it was overtaken,
it may succeed later for a reason of the message's own, or it is our fault. `outcomes` settles them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from opentelemetry import trace

from app import failpoints
from app.api.bodies import validate
from app.api.deliveries import Received
from app.api.outcomes import SETTLE_SECONDS, Outcome, Settler
from app.api.traces import form_of, message_span, tell_outcome
from app.domain.commands import Command
from app.domain.envelope import Envelope
from app.domain.errors import (
    DatabaseUnavailable,
    HandlerFailed,
    HandlerNotAllowed,
    HandlerUnknown,
    RequestInvalid,
    ServiceError,
    StillRunning,
)
from app.domain.ids import new_id
from app.handlers.registry import Context, Handler, Registry
from app.services import Services
from app.store import messages
from app.store.database import Connection
from app.store.messages import Message

_LOG = structlog.get_logger(__name__)
_MARK_AFTER_SECONDS = 1.0
_MARK_ABOVE_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")

Also = Callable[[Connection], Awaitable[None]]


class AlreadyDone(Exception):
    """The message was processed before."""


@dataclass(frozen=True, slots=True)
class Work:
    """A message whose handler is known and whose data is valid."""

    message: Message
    handler: Handler
    context: Context
    command: Command
    size: int


class Dispatcher:
    """Dispatches deliveries of one process."""

    def __init__(self, services: Services, registry: Registry) -> None:
        """`registry`: all handlers that there are."""
        self._services = services
        self._registry = registry
        self._settler = Settler(services, registry)
        self._process_id: UUID = new_id()
        push = services.settings.push
        # Longer than any delivery lives: a mark that old was left by a process that died.
        self._patience = timedelta(seconds=push.handler_timeout_seconds + 5)

    async def dispatch(
        self, received: Received, allowed: tuple[str, ...], deadline: float
    ) -> Outcome:
        """Carry the message out, once, and say what it came to. Never raises ServiceError.

        `deadline`, of the loop's clock, is when the handler is broken off.
        """
        delivery, envelope = received.delivery, received.envelope
        name = self._known_name(envelope)
        envelope_id = None if envelope is None else envelope.id
        structlog.contextvars.bind_contextvars(envelope_id=envelope_id, handler=name)
        message_id = "" if self._is_secret(delivery.message_id) else delivery.message_id
        message = Message(
            received.digests[0],
            received.digests,
            self._storable_name(envelope),
            envelope_id,
            message_id,
            delivery.subscription,
        )
        with message_span(name, delivery.attributes, envelope_id, message_id) as span:
            try:
                outcome = await self._try(name, message, received, allowed, deadline)
            except ServiceError as error:
                outcome = await self._settler.settle(name, message, received, error)
            tell_outcome(
                span, outcome.word, None if outcome.error is None else outcome.error.reason()
            )
        return outcome

    async def _try(
        self,
        name: str,
        message: Message,
        received: Received,
        allowed: tuple[str, ...],
        deadline: float,
    ) -> Outcome:
        envelope, delivery = received.envelope, received.delivery
        if envelope is None:
            assert received.fault is not None  # noqa: S101 - one of the two is there
            raise received.fault
        size = len(delivery.data or b"")
        work = self.prepare(message, envelope, allowed, delivery.published_at, size)
        history = await self._look_up(message, deadline)
        if history.processed:
            return Outcome(name, "duplicate")
        try:
            await self.carry_out(work, deadline)
        except AlreadyDone:
            return Outcome(name, "duplicate")
        if history.noted:
            await self._tidy(lambda conn: messages.forget_failures(conn, message))
        return Outcome(name, "done")

    def prepare(
        self,
        message: Message,
        envelope: Envelope,
        allowed: tuple[str, ...],
        published_at: datetime | None = None,
        size: int = 0,
    ) -> Work:
        """Find the handler and validate the data.

        Raises HandlerNotAllowed, HandlerUnknown or RequestInvalid.
        """
        if envelope.to not in allowed:
            raise HandlerNotAllowed
        handler = self._registry.find(envelope.to)
        if handler is None:
            raise HandlerUnknown
        data = envelope.data
        if not isinstance(data, dict):
            raise RequestInvalid([{"pointer": "", "detail": "must be a JSON object"}])
        with _told():
            fields = data if handler.prepare is None else handler.prepare(data, envelope.id)
            command = validate(handler.model, fields)
        context = Context(
            self._services,
            envelope,
            fields,
            published_at,
            structlog.get_logger(handler.name).bind(envelope_id=envelope.id),
            connection=None,
        )
        return Work(message, handler, context, command, size)

    async def carry_out(self, work: Work, deadline: float, also: Also | None = None) -> None:
        """Run the handler; its effect and the note that the message is done are one transaction.

        `also` is run in that transaction, before the handler; of a handler that is idempotent by
        its own key it is not run at all. Raises AlreadyDone, StillRunning, what the handler raises
        of our errors, and HandlerFailed for anything else or when the time is over.
        """
        with _told():
            async with asyncio.timeout_at(deadline), self._marked(work):
                await self._run(work, also)
        if failpoints.ARMED:
            await failpoints.hit("push.after_commit")

    async def _run(self, work: Work, also: Also | None) -> None:
        context = replace(work.context, span=trace.get_current_span())
        if work.handler.idempotent_by is not None:
            await work.handler.run(context, work.command)
        else:
            await self._services.database.run(
                lambda conn: _once(conn, work, replace(context, connection=conn), also)
            )

    async def _look_up(self, message: Message, deadline: float) -> messages.History:
        """What is known of the message. One that keeps killing its process raises."""
        database, push = self._services.database, self._services.settings.push
        try:
            async with asyncio.timeout_at(deadline):
                history = await database.run(
                    lambda conn: messages.find_history(
                        conn, message.digests, self._process_id, self._patience
                    )
                )
                deaths = history.deaths
                if history.abandoned and not history.processed:
                    deaths = await database.run(
                        lambda conn: messages.count_death(
                            conn, message, self._process_id, self._patience
                        )
                    )
        except TimeoutError:
            raise DatabaseUnavailable from None
        if deaths >= push.deaths_before_dead_letter and not history.processed:
            raise RequestInvalid([], "Processes died while they worked on this message.")
        return history

    @contextlib.asynccontextmanager
    async def _marked(self, work: Work) -> AsyncIterator[None]:
        """Mark the message while it is worked on for long, in case this process dies of it."""
        marking: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal marking
            marking = asyncio.create_task(
                self._tidy(lambda conn: messages.mark_working(conn, work.message, self._process_id))
            )

        later = asyncio.get_running_loop().call_later(_MARK_AFTER_SECONDS, begin)
        if work.size > _MARK_ABOVE_BYTES:
            later.cancel()
            begin()
        try:
            if marking is not None:
                await asyncio.wait([marking])
            yield
        finally:
            later.cancel()
            if marking is not None:
                await asyncio.wait([marking])
                await self._tidy(
                    lambda conn: messages.clear_working(conn, work.message, self._process_id)
                )

    async def _tidy(self, command: Also) -> None:
        """Write a note that nothing rests on, or do without it."""
        with contextlib.suppress(ServiceError, TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._services.database.run(command)

    def _known_name(self, envelope: Envelope | None) -> str:
        """The handler's name for logs, spans and metrics: never a text that a stranger chose."""
        known = None if envelope is None else self._registry.find(envelope.to)
        return "unknown" if known is None else known.name

    def _storable_name(self, envelope: Envelope | None) -> str | None:
        """The name that was called, where it looks like one and like no secret."""
        if envelope is None or not _NAME.fullmatch(envelope.to):
            return None
        return None if self._is_secret(envelope.to) else envelope.to

    def _is_secret(self, text: str) -> bool:
        return not text.isdecimal() and self._services.masker.mask_text(text)[1].count > 0


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn whatever a handler raises that is not an error of ours into HandlerFailed."""
    try:
        yield
    except (ServiceError, AlreadyDone):
        raise
    except TimeoutError:
        _LOG.warning("push.handler_too_slow")
        raise HandlerFailed("The handler did not end within its time.") from None
    except Exception as error:  # noqa: BLE001 - told by its form, never by its words
        _LOG.error("push.handler_failed", **form_of(error))
        raise HandlerFailed from None


async def _once(conn: Connection, work: Work, context: Context, also: Also | None) -> None:
    """The effect and the note that the message is done, in one transaction."""
    if not await messages.try_lock(conn, work.message):
        raise StillRunning
    if not await messages.mark_processed_once(conn, work.message):
        raise AlreadyDone
    if failpoints.ARMED:
        await failpoints.hit("push.after_dedupe")
    if also is not None:
        await also(conn)
    try:
        await work.handler.run(context, work.command)
    except OSError as error:
        # Its own trouble with files or networks, unless it is the connection that was lost.
        if conn.is_closed():
            raise
        _LOG.error("push.handler_failed", **form_of(error))
        raise HandlerFailed from None
    if failpoints.ARMED:
        await failpoints.hit("push.after_handler")
