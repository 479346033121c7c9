"""Pushed messages with their effects: the lock, the note that it is done, the effect, the letter.

All of a batch is one transaction. A message that is refused leaves no note and no effect, and does
not keep the others from theirs: a handler says so by an outcome and does not raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

from app import failpoints
from app.domain.errors import ServiceError, StillRunning
from app.store import dead_letters, messages
from app.store.database import Connection
from app.store.dead_letters import Burial
from app.store.messages import Message

W = TypeVar("W")


class End(Enum):
    """What became of a message that was not refused."""

    DONE = "done"
    DUPLICATE = "duplicate"
    NOTED = "noted"
    """Nothing was done: there is more to know of it first."""


@dataclass(frozen=True, slots=True)
class Buried:
    """A message that was refused for good, with the dead letter in the same transaction."""

    error: ServiceError


Done: TypeAlias = End | Buried
Outcome: TypeAlias = Done | ServiceError


@dataclass(frozen=True, slots=True)
class Pushed(Generic[W]):
    """A message to carry out. `bury` makes the letter of a refusal, None where it gets none."""

    message: Message
    work: W
    bury: Callable[[ServiceError], Burial | None] = lambda _: None
    known: bool = False
    """Whether what is noted of it has been looked at."""


Effect = Callable[[Connection, Sequence[W]], Awaitable[Sequence[ServiceError | None]]]


async def carry_out(
    conn: Connection, process_id: UUID, batch: Sequence[Pushed[W]], effect: Effect[W]
) -> list[Outcome]:
    """Carry messages out once each, at most one a digest; outcomes by position.

    StillRunning for one that is being worked on elsewhere. `effect` is given those that are to be
    done and says of each, by position, whether it was refused; then its effect must be none.
    """
    outcomes = await _begin(conn, process_id, batch)
    places = [place for place, end in enumerate(outcomes) if end is End.DONE]
    if failpoints.ARMED:
        await failpoints.hit("push.after_dedupe")
    if places:
        errors = await effect(conn, [batch[place].work for place in places])
        refused = {p: error for p, error in zip(places, errors, strict=True) if error is not None}
        for place, end in (await _refuse(conn, batch, refused)).items():
            outcomes[place] = end
    if failpoints.ARMED:
        await failpoints.hit("push.after_handler")
    return outcomes


async def _begin(conn: Connection, process_id: UUID, batch: Sequence[Pushed[W]]) -> list[Outcome]:
    """Lock the messages and note them as done; DONE for those whose effect is to follow."""
    outcomes: list[Outcome] = [End.DONE] * len(batch)
    entered = await messages.enter(conn, [one.message for one in batch], process_id)
    for place, (one, found) in enumerate(zip(batch, entered, strict=True)):
        if not found.gained:
            outcomes[place] = StillRunning()
        elif found.noted and not one.known:
            outcomes[place] = End.NOTED
    places = [place for place, end in enumerate(outcomes) if end is End.DONE]
    if places:
        marked = await messages.mark_processed_once(conn, [batch[p].message for p in places])
        for place, new in zip(places, marked, strict=True):
            outcomes[place] = End.DONE if new else End.DUPLICATE
    return outcomes


async def _refuse(
    conn: Connection, batch: Sequence[Pushed[W]], refused: Mapping[int, ServiceError]
) -> dict[int, Outcome]:
    """Take their notes back, record the letters of those that can never succeed; their outcomes."""
    if not refused:
        return {}
    await messages.unmark_processed(conn, [batch[place].message for place in refused])
    burials = {place: batch[place].bury(error) for place, error in refused.items()}
    letters = [burial for burial in burials.values() if burial is not None]
    if letters:
        await dead_letters.record(conn, letters)
    return {
        place: error if burials[place] is None else Buried(error)
        for place, error in refused.items()
    }


async def bury(
    conn: Connection, process_id: UUID, burials: Sequence[Burial]
) -> list[bool | ServiceError]:
    """Record letters under the messages' locks; False by position for one that is done after all.

    StillRunning for one that is being worked on.
    """
    batch = [burial.message for burial in burials]
    entered = await messages.enter(conn, batch, process_id)
    done = await messages.list_processed(conn, batch)
    outcomes: list[bool | ServiceError] = [
        not processed if found.gained else StillRunning()
        for found, processed in zip(entered, done, strict=True)
    ]
    kept = [burial for burial, end in zip(burials, outcomes, strict=True) if end is True]
    if kept:
        await dead_letters.record(conn, kept)
    return outcomes
