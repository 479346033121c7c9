"""What the commands of claims and leases cause, over REST and over push."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from app import failpoints
from app.commands import claims, leases
from app.commands.claims import Claim, ClaimRequest
from app.commands.leases import BeatRequest, Completed, CompleteRequest
from app.domain.commands import (
    ClaimLeases,
    CompleteLease,
    Heartbeat,
    ReleaseLease,
    StartLease,
    UnderLease,
)
from app.domain.errors import (
    Draining,
    RunnerNotFound,
    ServiceError,
    SessionReplaced,
    SessionUnknown,
    Superseded,
)
from app.domain.lifecycle import LeaseStatus
from app.domain.placement import Offer
from app.domain.records import Attempt
from app.handlers.aftermath import move_up, tell
from app.handlers.counting import counted
from app.handlers.masks import leaks_in, masked_fields
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import diagnoses, runners, signals
from app.store.diagnoses import Diagnosis
from app.store.leases import Beaten, Started

START = "lease.start"
HEARTBEAT = "lease.heartbeat"
COMPLETE = "lease.complete"
RELEASE = "lease.release"

Gone = Callable[[], Awaitable[bool]]


async def claim_leases(services: Services, command: ClaimLeases, gone: Gone) -> list[Claim]:
    """The leases of this request; waits up to `wait_seconds` for work, empty when there is none.

    Waiting holds no database connection. `gone` tells that the client has hung up: it then gets
    nothing, so that no lease lapses unheard. A newer try of the same request takes over from one
    that waits here. Raises RunnerNotFound, SessionReplaced, SessionUnknown, TokenKeyRetired,
    Superseded or Draining.
    """
    request = (command.runner_id, command.session_id, command.request_id)
    with (
        counted(services.metrics, "lease.claim"),
        services.signals.newest(request) as is_newest,
    ):
        limit = services.settings.limits.max_wait_seconds
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(command.wait_seconds, limit)
        claim = ClaimRequest(command, await _offer_of(services, command))
        while not await gone():
            outcome = await _try_claim(services, claim)
            left = deadline - loop.time()
            if outcome or left <= 0:
                return outcome
            if services.signals.draining:
                raise Draining
            if not is_newest():
                raise Superseded
            poll = services.settings.leases.signal_every_seconds
            await services.signals.wait_for_work(
                claim.offer.runner_kind,
                partial(services.classes.may_take, claim.offer),
                min(left, poll),
            )
        if failpoints.ARMED:
            await failpoints.hit("claim.client_gone")
        return []


async def _try_claim(services: Services, claim: ClaimRequest) -> list[Claim]:
    outcome = await services.gathered.claim.run(claim)
    if failpoints.ARMED and outcome:
        await failpoints.hit("claim.after_commit")
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


async def _offer_of(services: Services, command: ClaimLeases) -> Offer:
    """What this session of the runner offers; read once, for a session never changes it."""
    known = services.offers.find(command.runner_id, command.session_id)
    if known is not None:
        return known
    session = await services.database.run(
        lambda conn: runners.find_session(conn, command.runner_id, command.session_id)
    )
    if session is None:
        raise RunnerNotFound
    if session.session_id != command.session_id:
        raise SessionReplaced(action="stop") if session.known else SessionUnknown
    return services.offers.note(command.runner_id, command.session_id, claims.offer_of(session))


async def start_lease(services: Services, command: StartLease) -> Started:
    """Begin the work of a lease. Raises the one fact that stands against it."""
    with counted(services.metrics, START):
        outcome = await services.gathered.start.run(command)
        if failpoints.ARMED:
            await failpoints.hit("start.after_commit")
        services.signals.wake(signals.FEED)
        if isinstance(outcome, ServiceError):
            raise outcome
        services.signals.wake(signals.attempt(outcome.attempt.id))
        return outcome


async def heartbeat(
    services: Services, command: Heartbeat, published_at: datetime | None = None
) -> Beaten:
    """Renew a lease. Raises the one fact that stands against it."""
    with counted(services.metrics, HEARTBEAT):
        request = await masked_beat(services, command, published_at)
        outcome = await services.gathered.heartbeat.run(request)
        if failpoints.ARMED:
            await failpoints.hit("heartbeat.after_commit")
        if isinstance(outcome, ServiceError):
            raise outcome
        if command.phase is not None:
            services.signals.wake(signals.FEED)
        return outcome


async def masked_beat(
    services: Services, command: Heartbeat, published_at: datetime | None = None
) -> BeatRequest:
    """The beat as it may be stored."""
    command, kinds = await masked_fields(services, command, "heartbeat", "message")
    return BeatRequest(command, leaks_in(command, kinds, "heartbeat"), published_at)


async def complete_lease(
    services: Services, command: CompleteLease, as_sent: Mapping[str, Any]
) -> Completed:
    """End an attempt by its runner's word. Raises AttemptEnded and its kin."""
    with counted(services.metrics, COMPLETE):
        request = await masked_completion(services, command, as_sent)
        word = await services.gathered.complete.run(request)
        if isinstance(word, ServiceError):
            raise word
        if failpoints.ARMED:
            await failpoints.hit("complete.after_commit")
        services.signals.wake(signals.FEED)  # a refused one may have left its late word
        await move_up(services, [] if word.freed_key is None else [word.freed_key])
        if isinstance(word.outcome, ServiceError):
            raise word.outcome
        services.signals.wake(signals.attempt(word.outcome.attempt.id))
        return word.outcome


async def masked_completion(
    services: Services, command: CompleteLease, as_sent: Mapping[str, Any]
) -> CompleteRequest:
    """The completion as it may be stored; its digest covers what was sent."""
    command, kinds = await masked_fields(
        services, command, "completion", "failure_message", "result"
    )
    return CompleteRequest(command, as_sent, leaks_in(command, kinds, "completion"))


async def release_lease(services: Services, command: ReleaseLease) -> Attempt:
    """Give a lease back. Raises AlreadyStarted where the work cannot be begun again elsewhere."""
    with counted(services.metrics, RELEASE):
        command, kinds = await masked_fields(services, command, "release", "reason")
        leaks = leaks_in(command, kinds, "release")
        outcome, ended = await services.database.run(
            lambda conn: leases.release(conn, services.rules, command, leaks)
        )
        if failpoints.ARMED:
            await failpoints.hit("release.after_commit")
        services.signals.wake(signals.FEED)
        await tell(services, ended)
        if isinstance(outcome, ServiceError):
            raise outcome
        return outcome


async def wait_signals(
    services: Services, proof: UnderLease, wait_seconds: float, gone: Gone
) -> Diagnosis:
    """The lease's state as soon as there is something to tell, or after `wait_seconds`.

    Raises the fact that ended the lease. Waiting holds no database connection.
    """
    key = leases.key_of(proof)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait_seconds, services.settings.limits.max_wait_seconds)
    while True:
        found = await services.database.run(lambda conn: diagnoses.diagnose(conn, [key.lease_id]))
        state = found.get(key.lease_id)
        if (
            state is None
            or state.token_hash != key.token_hash
            or state.status is not LeaseStatus.ACTIVE
        ):
            raise leases.refusal(key, state)
        left = deadline - loop.time()
        if state.attempt.cancel_requested_at is not None or left <= 0 or await gone():
            return state
        if services.signals.draining:
            raise Draining
        poll = services.settings.leases.signal_every_seconds
        await services.signals.wait(signals.attempt(state.attempt.id), min(left, poll))


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

    @registry.handler(RELEASE, ReleaseLease, idempotent_by="lease")
    async def release(context: Context, command: ReleaseLease) -> None:
        await release_lease(context.services, command)
