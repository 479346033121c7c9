"""What operators send and get about dead letters and state documents."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.commands import Command, JsonObject
from app.store.dead_letters import State


class DeadLetter(Answer):
    """A message that could not be processed."""

    id: UUID
    """Made by this service."""
    state: State
    """`open` until an operator redrives or discards it."""
    reason: str
    """Why it was given up: the `reason` of the error."""
    detail: str
    """The same for people."""
    subscription: str
    """The Pub/Sub subscription that delivered it."""
    message_id: str
    """The id that Pub/Sub gave it."""
    envelope_id: UUID | None
    """The envelope's `id`; null: it was no envelope."""
    handler: str | None
    """The handler that the envelope named; null: none that could be one."""
    payload: Any
    """The envelope's data, masked, or only its form; never a lease token."""
    payload_bytes: int
    """The size of the message's data."""
    redrivable: bool
    """Whether what is kept is the whole message, so that `:redrive` may be tried."""
    failures: int
    """How often it had failed when it was given up."""
    deliveries: int
    """How often it was delivered and given up."""
    first_at: datetime
    """When it failed first."""
    last_at: datetime
    """When it failed last."""
    redrives: int
    """How often an operator redrove it."""
    redriven_at: datetime | None
    """When that succeeded."""
    redriven_by: str | None
    """Whose redrive succeeded."""
    redrive_outcome: str | None
    """`done`, `duplicate` (done before) or `overtaken` (it could change nothing any more)."""
    discarded_at: datetime | None
    """When it was discarded."""
    discarded_by: str | None
    """Who discarded it."""


class DeadLetterPage(Page):
    """Dead letters, those that failed last first."""

    items: list[DeadLetter]
    """The dead letters of this page."""


class RedriveLetter(Command):
    """Send a dead letter to its handler again."""

    request_id: UUID
    """Made by the caller: a repeat with the same one has no second effect and the same answer."""


class StateDocument(Answer):
    """A JSON document under a key."""

    key: str
    """The key."""
    document: dict[str, Any]
    """The document."""
    version: int
    """Counts its changes from 1; in quotes it is the `ETag`."""
    updated_at: datetime
    """When it was changed last."""


class PutState(Command):
    """Store a JSON document under a key."""

    document: JsonObject
    """The document, at most 256 KiB."""
