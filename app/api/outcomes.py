"""What becomes of a message that was not done: waited for, given up, or nobody's fault but ours.

Only what is the message's own fault is counted, in a transaction of its own after the failure. What
could not be counted or recorded must come back, so the answer is then our trouble and not an ack.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import structlog

from app.api.deliveries import Received
from app.api.problems import Push, answer_of
from app.commands.messages import bury
from app.domain.errors import DatabaseUnavailable, RequestInvalid, ServiceError
from app.domain.ids import new_id
from app.domain.letters import keep
from app.domain.payloads import outline_pointer
from app.handlers.registry import Registry
from app.services import Services
from app.store import messages
from app.store.dead_letters import Burial
from app.store.gathering import Gatherer
from app.store.messages import Message

_LOG = structlog.get_logger(__name__)
SETTLE_SECONDS = 1.5
"""Time for what follows a handler; with the handler's own it stays below the ack deadline."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a delivery came to. `error` is None when it is done, or had been done before."""

    handler: str
    word: str
    error: ServiceError | None = None


class Settler:
    """Settles what did not get done."""

    def __init__(self, services: Services, registry: Registry, process_id: UUID) -> None:
        """For the deliveries of one process, by the name that it marks messages with."""
        self._services = services
        self._registry = registry
        self._burying: Gatherer[Burial, bool] = services.gathered.also(
            "push.bury",
            lambda conn, batch: bury(conn, process_id, batch),
            lambda burial: burial.message.digest,
            lambda burial: burial.message.digest,
        )

    async def settle(
        self, handler: str, message: Message, received: Received, error: ServiceError
    ) -> Outcome:
        """Count what is the message's own fault, give up what can never succeed."""
        meaning = answer_of(error).push
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                if meaning is Push.LATER:
                    return await self._count(handler, message, received, error)
                if meaning is Push.POISON:
                    if self._services.settings.push.poison == "nack":
                        return Outcome(handler, "poison", error)
                    return await self._bury(handler, message, received, error, 0)
        except ServiceError as trouble:
            return Outcome(handler, "ours", trouble)
        except TimeoutError:
            return Outcome(handler, "ours", DatabaseUnavailable())
        return Outcome(handler, meaning.name.lower(), error)

    async def _count(
        self, handler: str, message: Message, received: Received, error: ServiceError
    ) -> Outcome:
        failures, lasting = await self._services.database.run(
            lambda conn: messages.count_failure(conn, message, error.reason())
        )
        push = self._services.settings.push
        longest = timedelta(seconds=push.failure_seconds_before_dead_letter)
        if failures < push.failures_before_dead_letter or lasting < longest:
            return Outcome(handler, "later", error)
        return await self._bury(handler, message, received, error, failures)

    async def _bury(
        self,
        handler: str,
        message: Message,
        received: Received,
        error: ServiceError,
        failures: int,
    ) -> Outcome:
        """Record a dead letter, unless the message is done or at work somewhere after all."""
        buried = await self._burying.run(self._burial(message, received, error, failures))
        if isinstance(buried, ServiceError):
            raise buried
        if not buried:
            return Outcome(handler, "duplicate")
        self.tell_buried(message, error)
        return Outcome(handler, "dead-letter")

    def tell_buried(self, message: Message, error: ServiceError) -> None:
        """Count and log a dead letter that is committed."""
        self._services.metrics.dead_letters.labels(error.reason()).inc()
        _LOG.warning("push.dead_letter", reason=error.reason(), message_id=message.message_id)

    def letter_of(self, message: Message, received: Received, error: ServiceError) -> Burial | None:
        """The letter of a message that is refused by this error; None if it gets none for it."""
        poison = answer_of(error).push is Push.POISON
        if not poison or self._services.settings.push.poison == "nack":
            return None
        return self._burial(message, received, error, 0)

    def _burial(
        self, message: Message, received: Received, error: ServiceError, failures: int
    ) -> Burial:
        envelope, masker = received.envelope, self._services.masker
        kept = None
        if envelope is not None:
            known = self._registry.find(envelope.to)
            under_lease = known is not None and known.under_lease
            kept = keep(
                envelope.data,
                lambda value: masker.mask_json(value)[0],
                under_lease=under_lease,
            )
        return Burial(
            id=new_id(),
            message=message,
            reason=error.reason(),
            detail=shown_detail(error),
            payload=None if kept is None else kept.payload,
            payload_bytes=len(received.delivery.data or b""),
            redrivable=kept is not None and kept.redrivable and message.handler is not None,
            failures=failures,
        )


def shown_detail(error: ServiceError) -> str:
    """What was wrong, with names only where they cannot themselves be values."""
    if not isinstance(error, RequestInvalid):
        return error.detail
    faults = "; ".join(
        f"{outline_pointer(fault['pointer'])}: {fault['detail']}" for fault in error.errors
    )
    return f"{error.detail} {faults}".strip()[:2000]
