"""State documents: what a handler or an operator wants to find again, by key.

A document is replaced only by who knows its version, so two who change it at once never lose one
of the changes: the later one gets StateChanged, reads again and repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.errors import ServiceError, StateChanged, StateNotFound
from app.services import Services
from app.store import states
from app.store.database import Connection
from app.store.states import Document

__all__ = ["Document", "StateDocuments", "get_state", "put_state"]


class StateDocuments:
    """The documents as a handler sees them: within its transaction, with its effects."""

    def __init__(self, connection: Connection) -> None:
        """`connection`: in the handler's transaction."""
        self._connection = connection

    async def get(self, key: str) -> Document | None:
        """The document, or None. It is not locked: a put says whether it is still this one."""
        return await states.find(self._connection, key)

    async def put(self, key: str, document: Mapping[str, Any], version: int | None) -> Document:
        """Store the document in place of that version (None: of none).

        Raises StateChanged if there is another version; the message then comes again, and nothing
        of this attempt remains.
        """
        stored = await states.put(self._connection, key, document, version)
        if stored is None:
            raise StateChanged
        return stored


async def get_state(services: Services, key: str) -> Document:
    """The document. Raises StateNotFound."""
    found = await services.database.run(lambda conn: states.find(conn, key))
    if found is None:
        raise StateNotFound
    return found


async def put_state(
    services: Services, key: str, document: Mapping[str, Any], version: int | None
) -> Document:
    """Store the document in place of that version (None: of none).

    Raises StateChanged, or StateNotFound where a version was expected and there is no document.
    """
    outcome = await services.database.run(lambda conn: _put(conn, key, document, version))
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


async def _put(
    conn: Connection, key: str, document: Mapping[str, Any], version: int | None
) -> Document | ServiceError:
    stored = await states.put(conn, key, document, version)
    if stored is not None:
        return stored
    found = await states.find(conn, key)
    return StateNotFound() if found is None else StateChanged(version=found.version)
