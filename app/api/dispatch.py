"""From an envelope to its handler, and from what happened there to an outcome.

Every failure has one of four meanings (`problems.Push`): it can never succeed, it was overtaken,
it may succeed later for a reason of the message's own, or it is our fault. Only the third is
counted, in a transaction of its own after the failure, and only it ends in a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from app.api.bodies import validate
from app.api.deliveries import Delivery
from app.api.problems import Push, answer_of
from app.domain import envelope as envelopes
from app.domain.commands import Command
from app.domain.envelope import Envelope
from app.domain.errors import (
    EnvelopeInvalid,
    HandlerFailed,
    HandlerNotAllowed,
    HandlerUnknown,
    RequestInvalid,
    ServiceError,
    StillRunning,
)
from app.domain.ids import new_id
from app.domain.payloads import outline, outline_pointer
from app.handlers.registry import Context, Handler, Registry
from app.services import Services
from app.store import messages
from app.store.database import Connection
from app.store.messages import DeadLetter, Message

_LOG = structlog.get_logger(__name__)
_MARK_AFTER_SECONDS = 1.0
_MARK_ABOVE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a delivery came to. `error` is None when it is done, or had been done before."""

    handler: str
    word: str
    error: ServiceError | None = None

    @property
    def push(self) -> Push | None:
        """What the error means for the message; None: done."""
        return None if self.error is None else answer_of(self.error).push


class AlreadyDone(Exception):
    """The message was processed before."""


class Dispatcher:
    """Dispatches deliveries of one process."""

    def __init__(self, services: Services, registry: Registry) -> None:
        """`registry`: all handlers that there are."""
        self._services = services
        self._registry = registry
        self._process_id: UUID = new_id()
        push = services.settings.push
        # Longer than any delivery lives: a mark that old was left by a process that died.
        self._patience = timedelta(seconds=push.handler_timeout_seconds + 5)

    async def dispatch(self, delivery: Delivery, allowed: tuple[str, ...]) -> Outcome:
        """Carry the delivery out, once, and say what it came to. Never raises ServiceError."""
        try:
            envelope = self._envelope(delivery)
        except EnvelopeInvalid as error:
            message = self._unreadable(delivery)
            return await self._settle(delivery, message, None, error)
        structlog.contextvars.bind_contextvars(envelope_id=envelope.id, handler=envelope.to)
        digests = envelope.digests(self._services.keys)
        message = Message(
            digests[0],
            digests,
            envelope.to,
            envelope.id,
            delivery.message_id,
            delivery.subscription,
        )
        try:
            handler = self._handler(envelope, allowed)
            context, command = self._command(delivery, envelope, handler)
            if await self._finished_before(message):
                return Outcome(envelope.to, "duplicate")
            async with asyncio.timeout(self._services.settings.push.handler_timeout_seconds):
                await self._run(handler, context, command, message, delivery)
        except AlreadyDone:
            return Outcome(envelope.to, "duplicate")
        except ServiceError as error:
            return await self._settle(delivery, message, envelope, error)
        except TimeoutError:
            failed = HandlerFailed("The handler did not end within its time.")
            return await self._settle(delivery, message, envelope, failed)
        except Exception:  # noqa: BLE001 - a handler's bug is counted, never a 500
            _LOG.exception("push.handler_failed")
            return await self._settle(delivery, message, envelope, HandlerFailed())
        return Outcome(envelope.to, "done")

    def _envelope(self, delivery: Delivery) -> Envelope:
        if delivery.data is None:
            raise EnvelopeInvalid(delivery.fault)
        return envelopes.parse(delivery.data)

    def _unreadable(self, delivery: Delivery) -> Message:
        """A message that is no envelope is known by its bytes, or its id when it has none."""
        content = delivery.data or delivery.message_id.encode()
        digest = self._services.keys.mac_text("unreadable-message", content)
        return Message(digest, [digest], None, None, delivery.message_id, delivery.subscription)

    def _handler(self, envelope: Envelope, allowed: tuple[str, ...]) -> Handler:
        if envelope.to not in allowed:
            raise HandlerNotAllowed
        handler = self._registry.find(envelope.to)
        if handler is None:
            raise HandlerUnknown
        return handler

    def _command(
        self, delivery: Delivery, envelope: Envelope, handler: Handler
    ) -> tuple[Context, Command]:
        data = envelope.data
        if not isinstance(data, dict):
            raise RequestInvalid([{"pointer": "", "detail": "must be a JSON object"}])
        fields = handler.prepare(data, envelope.id) if handler.prepare else data
        command = validate(handler.model, fields)
        logger = structlog.get_logger(handler.name)
        context = Context(
            self._services, envelope, fields, delivery.published_at, logger, connection=None
        )
        return context, command

    async def _finished_before(self, message: Message) -> bool:
        """Whether it is done already. A message that keeps killing its process raises."""
        database, push = self._services.database, self._services.settings.push
        history = await database.run(
            lambda conn: messages.find_history(
                conn, message.digests, self._process_id, self._patience
            )
        )
        if history.processed:
            return True
        deaths = history.deaths
        if history.abandoned:
            deaths = await database.run(
                lambda conn: messages.count_death(conn, message, self._process_id, self._patience)
            )
        if deaths >= push.deaths_before_dead_letter:
            raise RequestInvalid([], "Processes died while they worked on this message.")
        return False

    async def _run(
        self,
        handler: Handler,
        context: Context,
        command: Command,
        message: Message,
        delivery: Delivery,
    ) -> None:
        size = len(delivery.data or b"")
        async with self._marked(message, at_once=size > _MARK_ABOVE_BYTES):
            if handler.idempotent_by is not None:
                await handler.run(context, command)
            else:
                await self._services.database.run(
                    lambda conn: self._once(conn, handler, context, command, message)
                )

    async def _once(
        self,
        conn: Connection,
        handler: Handler,
        context: Context,
        command: Command,
        message: Message,
    ) -> None:
        """The effect and the note that the message is done, in one transaction."""
        if not await messages.try_lock(conn, message):
            raise StillRunning
        if not await messages.mark_processed_once(conn, message):
            raise AlreadyDone
        with_transaction = Context(
            context.services,
            context.envelope,
            context.as_sent,
            context.published_at,
            context.logger,
            conn,
        )
        try:
            await handler.run(with_transaction, command)
        except OSError as error:
            # Its own trouble with files or networks, unless it is the connection that was lost.
            if conn.is_closed():
                raise
            raise HandlerFailed from error

    @contextlib.asynccontextmanager
    async def _marked(self, message: Message, *, at_once: bool) -> AsyncIterator[None]:
        """Mark the message while it is worked on for long, in case this process dies of it."""
        marked = asyncio.Event()

        async def mark() -> None:
            if not at_once:
                await asyncio.sleep(_MARK_AFTER_SECONDS)
            marked.set()
            await self._services.database.run(
                lambda conn: messages.mark_working(conn, message, self._process_id)
            )

        marking = asyncio.create_task(mark())
        if at_once:
            await asyncio.wait([marking])
        try:
            yield
        finally:
            if marked.is_set():
                await asyncio.wait([marking])
                with contextlib.suppress(ServiceError):
                    await asyncio.shield(
                        self._services.database.run(
                            lambda conn: messages.clear_working(conn, message, self._process_id)
                        )
                    )
            else:
                marking.cancel()
            if marking.done() and not marking.cancelled():
                marking.exception()

    async def _settle(
        self,
        delivery: Delivery,
        message: Message,
        envelope: Envelope | None,
        error: ServiceError,
    ) -> Outcome:
        """Count what is the message's own fault, bury what can never succeed."""
        name = self._known_name(message)
        meaning = answer_of(error).push
        try:
            if meaning is Push.LATER:
                failures, lasting = await self._services.database.run(
                    lambda conn: messages.count_failure(conn, message, error.reason())
                )
                if not self._is_hopeless(failures, lasting):
                    return Outcome(name, "later", error)
                await self._bury(delivery, message, envelope, error, failures)
                return Outcome(name, "dead-letter")
            if meaning is Push.POISON:
                if self._services.settings.push.poison == "nack":
                    return Outcome(name, "poison", error)
                await self._bury(delivery, message, envelope, error, 0)
                return Outcome(name, "dead-letter")
        except ServiceError as trouble:
            # What could not be recorded must come back: the answer is the trouble, not an ack.
            return Outcome(name, "ours", trouble)
        return Outcome(name, meaning.name.lower(), error)

    def _known_name(self, message: Message) -> str:
        """The handler's name for metrics: never a text that a stranger chose."""
        known = message.handler is not None and self._registry.find(message.handler) is not None
        return str(message.handler) if known else "unknown"

    def _is_hopeless(self, failures: int, lasting: timedelta) -> bool:
        push = self._services.settings.push
        return (
            failures >= push.failures_before_dead_letter
            and lasting.total_seconds() >= push.failure_seconds_before_dead_letter
        )

    async def _bury(
        self,
        delivery: Delivery,
        message: Message,
        envelope: Envelope | None,
        error: ServiceError,
        failures: int,
    ) -> None:
        detail = error.detail
        if isinstance(error, RequestInvalid):
            faults = "; ".join(
                f"{outline_pointer(fault['pointer'])}: {fault['detail']}" for fault in error.errors
            )
            detail = f"{detail} {faults}".strip()[:2000]
        letter = DeadLetter(
            id=new_id(),
            message=message,
            reason=error.reason(),
            detail=detail,
            payload=None if envelope is None else outline(envelope.data),
            payload_bytes=len(delivery.data or b""),
            redrivable=False,
            failures=failures,
        )
        await self._services.database.run(lambda conn: messages.record_dead_letter(conn, letter))
        self._services.metrics.dead_letters.labels(error.reason()).inc()
        _LOG.warning("push.dead_letter", reason=error.reason(), message_id=delivery.message_id)
