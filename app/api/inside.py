"""Messages of this service to itself: what schedules send where no topic is configured.

They go the way of a pushed message, with its deduplication and its dead letters. Creations are
carried out together, since ten thousand may come due at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.api.bodies import validate
from app.api.deliveries import Delivery, Received
from app.api.dispatch import Dispatcher
from app.api.outcomes import Outcome
from app.commands.attempts import CreateRequest
from app.domain import jsontext
from app.domain.commands import CreateAttempt
from app.domain.envelope import Envelope
from app.domain.errors import ServiceError
from app.domain.sent import Sent
from app.handlers.attempts import CREATE, check_create, create_attempts, keyed
from app.services import Services

SUBSCRIPTION = "schedules"
"""Stands where dead letters name the subscription."""
_AT_ONCE = 4
_AT_MOST = 24
"""In one go, of those that are carried out one by one: a bound on its time."""
_SETTLED = frozenset({"done", "duplicate", "overtaken", "dead-letter", "poison"})


@dataclass(frozen=True, slots=True)
class Inside:
    """Hands envelopes to the handlers of this process."""

    services: Services
    dispatcher: Dispatcher

    async def deliver(self, envelopes: Sequence[Envelope]) -> list[Sent | None]:
        """Carry the messages out; one result each, by position, None: not tried for want of time.

        Never raises ServiceError.
        """
        results = await self._create(envelopes)
        rest = [place for place in range(len(envelopes)) if place not in results][:_AT_MOST]
        for start in range(0, len(rest), _AT_ONCE):
            places = rest[start : start + _AT_ONCE]
            outcomes = await asyncio.gather(*(self._dispatch(envelopes[p]) for p in places))
            results.update(zip(places, map(_sent, outcomes), strict=True))
        return [results.get(place) for place in range(len(envelopes))]

    async def _create(self, envelopes: Sequence[Envelope]) -> dict[int, Sent]:
        """Carry out the creations in one go; those that are refused are left for the other way."""
        requests: dict[int, CreateRequest] = {}
        if CREATE not in self.services.settings.scheduler.handlers:
            return {}
        for place, envelope in enumerate(envelopes):
            if envelope.to == CREATE and isinstance(envelope.data, dict):
                fields = keyed(envelope.data, envelope.id)
                try:
                    command = validate(CreateAttempt, fields)
                    check_create(self.services, command)
                except ServiceError:
                    continue
                requests[place] = CreateRequest(command, fields)
        if len(requests) < 2:  # noqa: PLR2004 - nothing is gained
            return {}
        try:
            made = await create_attempts(self.services, list(requests.values()))
        except ServiceError as error:
            return {place: Sent(None, error.reason()) for place in requests}
        return {
            place: Sent("duplicate" if outcome.replayed else "done")
            for place, outcome in zip(requests, made, strict=True)
            if not isinstance(outcome, ServiceError)
        }

    async def _dispatch(self, envelope: Envelope) -> Outcome:
        text = jsontext.dumps(
            {"v": envelope.v, "to": envelope.to, "id": envelope.id, "data": envelope.data}
        )
        delivery = Delivery(SUBSCRIPTION, envelope.id, None, {}, text.encode(), None)
        received = Received(delivery, envelope, None, envelope.digests(self.services.keys))
        settings = self.services.settings
        deadline = asyncio.get_running_loop().time() + settings.push.handler_timeout_seconds
        return await self.dispatcher.dispatch(received, settings.scheduler.handlers, deadline)


def _sent(outcome: Outcome) -> Sent:
    if outcome.word in _SETTLED:
        return Sent(outcome.word)
    return Sent(None, outcome.error.reason() if outcome.error else outcome.word)
