"""Commands for many leases in one request, each answered by position, as if it had come alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from app.commands import leases
from app.commands.leases import Completed, CompleteRequest, Word
from app.domain.commands import CompleteLease, Heartbeat, StartLease
from app.domain.errors import ServiceError
from app.handlers.aftermath import move_up
from app.handlers.leases import COMPLETE, HEARTBEAT, START, masked_beat, masked_completion
from app.services import Services
from app.store import signals
from app.store.batches import Work, rounds, run_batch
from app.store.database import Connection
from app.store.leases import Beaten, Started

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome


async def start_leases(
    services: Services, commands: Sequence[StartLease]
) -> list[Started | ServiceError]:
    """Begin the work of many leases; outcomes by position, each as if it had come alone."""
    outcomes = await _many(
        services,
        START,
        lambda conn, batch: leases.start(conn, services.terms, batch),
        [(command.lease_id, command) for command in commands],
    )
    services.signals.wake(signals.FEED)
    for outcome in outcomes:
        if not isinstance(outcome, ServiceError):
            services.signals.wake(signals.attempt(outcome.attempt.id))
    return outcomes


async def heartbeats(
    services: Services, commands: Sequence[Heartbeat]
) -> list[Beaten | ServiceError]:
    """Renew many leases; outcomes by position, each as if it had come alone."""
    outcomes = await _many(
        services,
        HEARTBEAT,
        lambda conn, batch: leases.heartbeat(conn, services.terms, batch),
        [(one.lease_id, await masked_beat(services, one)) for one in commands],
    )
    if any(command.phase is not None for command in commands):
        services.signals.wake(signals.FEED)
    return outcomes


async def complete_leases(
    services: Services, commands: Sequence[tuple[CompleteLease, Mapping[str, Any]]]
) -> list[Completed | ServiceError]:
    """End many attempts, each with its completion as it was sent; outcomes by position."""
    words = await _many(
        services,
        COMPLETE,
        lambda conn, batch: _complete_all(conn, services, batch),
        [(one.lease_id, await masked_completion(services, one, sent)) for one, sent in commands],
    )
    services.signals.wake(signals.FEED)
    freed = {word.freed_key for word in words if isinstance(word, Word)} - {None}
    await move_up(services, [key for key in freed if key is not None])
    outcomes = [word.outcome if isinstance(word, Word) else word for word in words]
    for outcome in outcomes:
        if not isinstance(outcome, ServiceError):
            services.signals.wake(signals.attempt(outcome.attempt.id))
    return outcomes


async def _complete_all(
    conn: Connection, services: Services, batch: Sequence[CompleteRequest]
) -> list[Word | ServiceError]:
    return [*await leases.complete(conn, services.keys, services.terms, batch)]


async def _many(
    services: Services, name: str, work: Work[C, O], requests: Sequence[tuple[UUID, C]]
) -> list[O | ServiceError]:
    """Carry out one command for each of many leases, and count each; outcomes by position."""
    outcomes: dict[int, O | ServiceError] = {}
    for positions in rounds(requests, lambda request: request[0]):
        batch = [requests[position][1] for position in positions]
        done = await run_batch(services.database, work, batch)
        outcomes.update(zip(positions, done, strict=True))
    for outcome in outcomes.values():
        refused = outcome.outcome if isinstance(outcome, Word) else outcome
        word = refused.reason() if isinstance(refused, ServiceError) else "ok"
        services.metrics.commands.labels(name, word).inc()
    return [outcomes[position] for position in range(len(requests))]
