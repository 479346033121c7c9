"""Appending to logs: the records of chunks whose bytes are masked and in the store already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app import failpoints
from app.store import leaks, logs
from app.store.database import Connection
from app.store.leaks import Leak
from app.store.leases import Key
from app.store.logs import Chunk, Recorded, Terms


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """A stored chunk, with what was masked in it."""

    key: Key
    chunk: Chunk
    leak: Leak | None = None


async def append(
    conn: Connection, terms: Terms, requests: Sequence[AppendRequest]
) -> list[Recorded]:
    """Record chunks, at most one a lease; outcomes by position.

    The events of what was masked come first: they lock attempts, the rest only leases.
    """
    noted = [request.leak for request in requests if request.leak is not None]
    if noted:
        await leaks.note(conn, noted)
    outcomes = await logs.record(
        conn, terms, [(request.key, request.chunk) for request in requests]
    )
    if failpoints.ARMED:
        await failpoints.hit("log.after_rows")
    return outcomes
