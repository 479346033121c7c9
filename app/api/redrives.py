"""Sending a dead letter to its handler again, with its effect exactly once.

It goes the way of a pushed message. Where the effect and the note that the message is done are one
transaction, closing the letter is part of it; where the handler is idempotent by its own key, the
letter is closed after it, and a repeat after a crash in between has no second effect. The caller's
`request_id` tells its own repeat, which gets the same answer, from another's attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

from app.api import inside
from app.api.carrying import Work
from app.api.dispatch import Dispatcher
from app.api.outcomes import shown_detail
from app.api.problems import Push, answer_of
from app.commands.messages import End
from app.domain import jsontext
from app.domain.envelope import VERSION, Envelope
from app.domain.errors import (
    AlreadyClosed,
    DeadLetterNotFound,
    NotRedrivable,
    ServiceError,
)
from app.services import Services
from app.store import dead_letters
from app.store.database import Connection
from app.store.dead_letters import Letter
from app.store.messages import Message

_OF_ITS_OWN = (Push.POISON, Push.LATER)


@dataclass(frozen=True, slots=True)
class Redrive:
    """Who wants which letter redriven, and by which request."""

    letter_id: UUID
    request_id: UUID
    by: str


async def redrive(services: Services, dispatcher: Dispatcher, asked: Redrive) -> Letter:
    """Redrive the letter and return it closed; the same for a repeat of the same request.

    Raises DeadLetterNotFound, NotRedrivable, AlreadyClosed, StillRunning, or what the handler
    says; then the letter stays open.
    """
    letter = await get_letter(services, asked.letter_id)
    if letter.redrive_request_id == asked.request_id:
        return letter
    if letter.state != "open":
        raise AlreadyClosed
    work = _work(services, dispatcher, letter)
    try:
        outcome = await _carry_out(services, dispatcher, work, asked)
    except AlreadyClosed:
        return await _closed_by(services, asked)
    except ServiceError as error:
        if answer_of(error).push in _OF_ITS_OWN:
            reason, detail = error.reason(), shown_detail(error)
            await services.database.run(
                lambda conn: dead_letters.note_failed_redrive(conn, letter.id, reason, detail)
            )
        raise
    if work.handler.idempotent_by is None and outcome == "done":
        return await _closed_by(services, asked)
    return await _close(services, asked, outcome)


async def get_letter(services: Services, letter_id: UUID) -> Letter:
    """The letter. Raises DeadLetterNotFound."""
    found = await services.database.run(lambda conn: dead_letters.find(conn, letter_id))
    if found is None:
        raise DeadLetterNotFound
    return found


def _work(services: Services, dispatcher: Dispatcher, letter: Letter) -> Work:
    """The message of the letter, as it was sent. NotRedrivable if that is not to be had."""
    if not letter.redrivable or None in {letter.payload, letter.handler, letter.envelope_id}:
        raise NotRedrivable
    data = jsontext.parse(str(letter.payload))
    envelope = Envelope(VERSION, str(letter.handler), str(letter.envelope_id), data)
    digests = envelope.digests(services.keys)
    # Under a key that has left the settings the letter's own digest cannot be made again.
    key_id = letter.message_digest.split(":")[1]
    if key_id in services.keys.secrets and letter.message_digest not in digests:
        raise NotRedrivable
    message = Message(
        digests[0],
        digests,
        letter.handler,
        letter.envelope_id,
        letter.message_id,
        letter.subscription,
    )
    allowed = services.settings.push.subscriptions.get(letter.subscription, ())
    if letter.subscription == inside.SUBSCRIPTION:
        allowed = services.settings.scheduler.handlers
    return dispatcher.prepare(message, envelope, allowed)


async def _carry_out(services: Services, dispatcher: Dispatcher, work: Work, asked: Redrive) -> str:
    """Run the handler. The word for what it came to: `done`, `duplicate` or `overtaken`."""

    async def close(conn: Connection) -> None:
        closed = await dead_letters.mark_redriven(
            conn, asked.letter_id, asked.by, asked.request_id, "done", even_discarded=False
        )
        if closed is None:
            raise AlreadyClosed

    loop = asyncio.get_running_loop()
    deadline = loop.time() + services.settings.push.handler_timeout_seconds
    try:
        end = await dispatcher.carry_out(work, deadline, close)
    except ServiceError as error:
        if answer_of(error).push is not Push.OVERTAKEN:
            raise
        return "overtaken"
    return "duplicate" if end is End.DUPLICATE else "done"


async def _close(services: Services, asked: Redrive, outcome: str) -> Letter:
    """Close the letter after its effect; somebody who did so first may have been this request."""
    closed = await services.database.run(
        lambda conn: dead_letters.mark_redriven(
            conn, asked.letter_id, asked.by, asked.request_id, outcome, even_discarded=True
        )
    )
    return closed or await _closed_by(services, asked)


async def _closed_by(services: Services, asked: Redrive) -> Letter:
    letter = await get_letter(services, asked.letter_id)
    if letter.redrive_request_id != asked.request_id:
        raise AlreadyClosed
    return letter


async def discard(services: Services, letter_id: UUID, by: str) -> Letter:
    """Close the letter without an effect; one that is discarded already stays as it is.

    Raises DeadLetterNotFound, or AlreadyClosed if it was redriven.
    """
    closed = await services.database.run(lambda conn: dead_letters.discard(conn, letter_id, by))
    if closed is not None:
        return closed
    letter = await get_letter(services, letter_id)
    if letter.state != "discarded":
        raise AlreadyClosed
    return letter
