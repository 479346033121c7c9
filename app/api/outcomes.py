"""What becomes of a message that was not done: waited for, given up, or nobody's fault but ours.

Only what is the message's own fault is counted, in a transaction of its own after the failure. What
could not be counted or recorded must come back, so the answer is then our trouble and not an ack.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from app.api.deliveries import Received
from app.api.problems import Push, answer_of
from app.domain.errors import (
    DatabaseUnavailable,
    RequestInvalid,
    ServiceError,
    StillRunning,
)
from app.domain.ids import new_id
from app.domain.letters import keep
from app.domain.payloads import outline_pointer
from app.handlers.registry import Registry
from app.services import Services
from app.store import dead_letters, messages
from app.store.database import Connection
from app.store.dead_letters import Burial
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

    def __init__(self, services: Services, registry: Registry) -> None:
        """For the deliveries of one process."""
        self._services = services
        self._registry = registry

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
        burial = self._burial(message, received, error, failures)
        if not await self._services.database.run(lambda conn: record(conn, burial)):
            return Outcome(handler, "duplicate")
        self._services.metrics.dead_letters.labels(error.reason()).inc()
        _LOG.warning("push.dead_letter", reason=error.reason(), message_id=message.message_id)
        return Outcome(handler, "dead-letter")

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


async def record(conn: Connection, burial: Burial) -> bool:
    """Record the letter under the message's lock; False if the message is done after all."""
    if not await messages.try_lock(conn, burial.message):
        raise StillRunning
    if await messages.is_processed(conn, burial.message):
        return False
    await dead_letters.record(conn, burial)
    return True


def shown_detail(error: ServiceError) -> str:
    """What was wrong, with names only where they cannot themselves be values."""
    if not isinstance(error, RequestInvalid):
        return error.detail
    faults = "; ".join(
        f"{outline_pointer(fault['pointer'])}: {fault['detail']}" for fault in error.errors
    )
    return f"{error.detail} {faults}".strip()[:2000]
