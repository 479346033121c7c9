"""What the commands of claims and leases cause, over REST and over push."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from app.commands import claims, leases
from app.commands.claims import Claim
from app.commands.leases import Completed, CompleteRequest
from app.domain.commands import ClaimLeases, CompleteLease, Heartbeat, StartLease
from app.domain.errors import RunnerNotFound, ServiceError
from app.handlers.counting import counted
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import runners, signals
from app.store.leases import Beaten, Started

HEARTBEAT = "lease.heartbeat"
COMPLETE = "lease.complete"

Gone = Callable[[], Awaitable[bool]]


async def claim_leases(services: Services, command: ClaimLeases, gone: Gone) -> list[Claim]:
    """The leases of this request; waits up to `wait_seconds` for work, empty when there is none.

    Waiting holds no database connection. `gone` tells that the client has hung up: it then gets
    nothing, so that no lease lapses unheard. Raises RunnerNotFound, SessionReplaced,
    SessionUnknown or TokenKeyRetired.
    """
    with counted(services.metrics, "lease.claim"):
        limit = services.settings.limits.max_wait_seconds
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(command.wait_seconds, limit)
        kind: str | None = None
        while True:
            if await gone():
                return []
            outcome = await services.database.run(
                lambda conn: claims.try_claim(conn, services.claimer, command)
            )
            if isinstance(outcome, ServiceError):
                raise outcome
            left = deadline - loop.time()
            if outcome or left <= 0:
                return outcome
            kind = kind or await _kind_of(services, command)
            poll = services.settings.leases.signal_every_seconds
            await services.signals.wait(signals.work(kind), min(left, poll))


async def _kind_of(services: Services, command: ClaimLeases) -> str:
    session = await services.database.run(
        lambda conn: runners.find_session(conn, command.runner_id, command.session_id)
    )
    if session is None:
        raise RunnerNotFound
    return session.runner_kind


async def start_lease(services: Services, command: StartLease) -> Started:
    """Begin the work of a lease. Raises the one fact that stands against it."""
    with counted(services.metrics, "lease.start"):
        [outcome] = await services.database.run(
            lambda conn: leases.start(conn, services.terms, [command])
        )
        if isinstance(outcome, ServiceError):
            raise outcome
        services.signals.wake(signals.attempt(outcome.attempt.id))
        return outcome


async def heartbeat(
    services: Services, command: Heartbeat, published_at: datetime | None = None
) -> Beaten:
    """Renew a lease. Raises the one fact that stands against it."""
    with counted(services.metrics, HEARTBEAT):
        [outcome] = await services.database.run(
            lambda conn: leases.heartbeat(conn, services.terms, [command], published_at)
        )
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome


async def complete_lease(
    services: Services, command: CompleteLease, as_sent: Mapping[str, Any]
) -> Completed:
    """End an attempt by its runner's word. Raises AttemptEnded and its kin."""
    with counted(services.metrics, COMPLETE):
        request = CompleteRequest(command, as_sent)
        [outcome] = await services.database.run(
            lambda conn: leases.complete(conn, services.keys, services.terms, [request])
        )
        if isinstance(outcome, ServiceError):
            raise outcome
        services.signals.wake(signals.attempt(outcome.attempt.id))
        return outcome


def completion_as_sent(data: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a completion that its digest covers: without the proof of the lease."""
    return {name: value for name, value in data.items() if name not in {"lease_id", "lease_token"}}


def register(registry: Registry) -> None:
    """Register the handlers of this module."""

    @registry.handler(HEARTBEAT, Heartbeat, idempotent_by="sequence")
    async def beat(context: Context, command: Heartbeat) -> None:
        await heartbeat(context.services, command, context.published_at)

    @registry.handler(COMPLETE, CompleteLease, idempotent_by="lease")
    async def complete(context: Context, command: CompleteLease) -> None:
        await complete_lease(context.services, command, completion_as_sent(context.as_sent))
