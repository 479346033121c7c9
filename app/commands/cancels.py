"""Cancellation: at once where nothing runs, otherwise asked for and then waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from app.domain.commands import CancelAttempt
from app.domain.errors import AlreadyTerminal, AttemptNotFound, ServiceError
from app.domain.lifecycle import FailureCategory, Status, is_terminal
from app.domain.records import Attempt
from app.store import attempts, cancels, ends
from app.store.database import Connection
from app.store.ends import Cause, End, Rules

_OPERATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The attempt after the wish was noted, and what ended by it at once."""

    attempt: Attempt
    ended: tuple[End, ...]


async def cancel(
    conn: Connection, rules: Rules, commands: Sequence[CancelAttempt]
) -> list[Cancellation | ServiceError]:
    """Cancel attempts; one outcome per command by position, at most one command an attempt.

    Queued ones end as `cancelled`, those that wait for a further runner as `lost`, in this very
    transaction; those that a runner holds are marked, and it learns it with every answer. A repeat
    changes nothing. AttemptNotFound, or AlreadyTerminal for one that ended otherwise.
    """
    locked = await ends.lock(conn, [command.attempt_id for command in commands])
    reasons = {command.attempt_id: command.reason for command in commands}
    await cancels.mark_once(conn, locked, [reasons[one] for one in locked], rules.cancel_grace)
    ended = {end.attempt_id: end for end in await ends.decide(conn, locked, Cause.CANCEL, rules)}
    outcomes: list[Cancellation | ServiceError] = []
    for command in commands:
        found = await attempts.find(conn, command.attempt_id)
        end = ended.get(command.attempt_id)
        outcomes.append(_outcome(found, end))
    return outcomes


def _outcome(found: Attempt | None, end: End | None) -> Cancellation | ServiceError:
    if found is None:
        return AttemptNotFound()
    if end is None and is_terminal(found.status) and not _ended_by_cancel(found):
        return AlreadyTerminal(attempt={"id": str(found.id), "status": found.status.value})
    return Cancellation(found, () if end is None else (end,))


def _ended_by_cancel(found: Attempt) -> bool:
    """Also one that no runner held when it was cancelled: its repeat is answered alike."""
    return (
        found.status in {Status.CANCELLED, Status.LOST}
        and found.failure_category is FailureCategory.CANCELLED
    )


async def cancel_operation(
    conn: Connection, rules: Rules, operation_id: UUID, reason: str
) -> tuple[int, list[UUID], list[End]]:
    """Cancel a batch of an operation's open attempts.

    Returns how many there were to look at (0: none is left), those that this call marked, and what
    ended by it. Some may end by themselves between the look and the lock.
    """
    open_ids = await cancels.list_open_of_operation(conn, operation_id, _OPERATION_BATCH)
    locked = await ends.lock(conn, open_ids)
    marked = await cancels.mark_once(conn, locked, [reason] * len(locked), rules.cancel_grace)
    return len(open_ids), marked, await ends.decide(conn, locked, Cause.CANCEL, rules)
