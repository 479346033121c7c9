"""From an envelope to its handler, and from what happened there to an outcome.

Every failure has one of four meanings (`problems.Push`): it can never succeed, it was overtaken,
it may succeed later for a reason of the message's own, or it is our fault. `outcomes` settles them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

import structlog

from app.api.bodies import validate
from app.api.carrying import Also, Carrier, Work, ours_alone
from app.api.deliveries import Received
from app.api.histories import Histories
from app.api.outcomes import Outcome, Settler
from app.api.traces import message_span, tell_outcome
from app.commands.messages import Buried, Done, End
from app.domain.envelope import Envelope
from app.domain.errors import HandlerNotAllowed, HandlerUnknown, RequestInvalid, ServiceError
from app.domain.ids import new_id
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import messages
from app.store.messages import Message

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")


class Dispatcher:
    """Dispatches deliveries of one process."""

    def __init__(self, services: Services, registry: Registry) -> None:
        """`registry`: all handlers that there are."""
        self._services = services
        self._registry = registry
        process_id = new_id()
        self._settler = Settler(services, registry, process_id)
        self._histories = Histories(services, process_id)
        self._carrier = Carrier(services, process_id)

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
                self._histories.disturb()
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
        end: Done = End.NOTED
        if work.handler.idempotent_by is None or self._histories.is_quiet:
            end = await self._carry_out(work, received, deadline)
        if end is End.NOTED:
            history = await self._histories.look_up(message, deadline)
            end = End.DUPLICATE
            if not history.processed:
                end = await self._carry_out(replace(work, known=True), received, deadline)
                if history.noted:
                    await self._carrier.tidy(lambda conn: messages.forget_failures(conn, message))
        if isinstance(end, Buried):
            self._settler.tell_buried(message, end.error)
            return Outcome(name, "dead-letter")
        return Outcome(name, end.value)

    async def _carry_out(self, work: Work, received: Received, deadline: float) -> Done:
        letter_of = self._settler.letter_of
        return await self._carrier.carry_out(
            work, deadline, bury=lambda error: letter_of(work.message, received, error)
        )

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
        with ours_alone():
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

    async def carry_out(self, work: Work, deadline: float, also: Also) -> Done:
        """As `Carrier.carry_out`, alone, whatever is known of the message."""
        return await self._carrier.carry_out(replace(work, known=True), deadline, also)

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
