"""What `attempt.create` causes, over REST and over push."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from app import failpoints
from app.commands import attempts, cancels
from app.commands.attempts import Created, CreateRequest
from app.domain.commands import CancelAttempt, CancelOperation, CreateAttempt
from app.domain.errors import AttemptNotFound, ServiceError
from app.domain.lifecycle import is_terminal
from app.domain.records import Attempt
from app.handlers.aftermath import move_up, tell
from app.handlers.counting import counted
from app.handlers.masks import masked_fields, refuse_secrets
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import attempts as store
from app.store import signals
from app.store.batches import rounds, run_batch
from app.telemetry import TRACER

CREATE = "attempt.create"
CANCEL = "attempt.cancel"


async def create_attempt(
    services: Services, command: CreateAttempt, as_sent: Mapping[str, Any]
) -> Created:
    """Create the attempt, or find it created before by the same request, and wake who waits.

    Raises SecretInRequest, or IdempotencyKeyReused for another request under a used key.
    """
    with counted(services.metrics, CREATE):
        check_create(services, command)
        outcome = await services.gathered.create.run(CreateRequest(command, as_sent))
        if failpoints.ARMED:
            await failpoints.hit("create.after_commit")
        if isinstance(outcome, ServiceError):
            raise outcome
        if not outcome.replayed:
            await announce(services, outcome)
        return outcome


def check_create(services: Services, command: CreateAttempt) -> None:
    """Raise SecretInRequest where a secret stands in what would be stored for ever."""
    refuse_secrets(
        services,
        command.job_spec_ref,
        idempotency_key=command.idempotency_key,
        requested_by_service=command.requested_by_service,
        job_type=command.job_type,
        concurrency_key=command.concurrency_key,
        placement={"zone": command.placement.zone, "labels": command.placement.labels},
    )


async def create_attempts(
    services: Services, requests: Sequence[CreateRequest]
) -> list[Created | ServiceError]:
    """Create many attempts, each once; outcomes by position, each as if it had come alone."""
    limit = services.settings.limits.max_placement_classes_per_kind
    outcomes: dict[int, Created | ServiceError] = {}
    with TRACER.start_as_current_span("attempt.create_many"):
        for positions in rounds(requests, lambda one: one.command.idempotency_key):
            done = await run_batch(
                services.database,
                lambda conn, batch: attempts.create(conn, services.keys, batch, limit),
                [requests[position] for position in positions],
            )
            outcomes.update(zip(positions, done, strict=True))
            if failpoints.ARMED:
                await failpoints.hit("batch.mid_rows")
    for outcome in outcomes.values():
        if isinstance(outcome, ServiceError):
            services.metrics.commands.labels(CREATE, outcome.reason()).inc()
            continue
        services.metrics.commands.labels(CREATE, "ok").inc()
        if not outcome.replayed:
            await announce(services, outcome)
    return [outcomes[position] for position in range(len(requests))]


async def announce(services: Services, created: Created) -> None:
    """Let a waiting runner know; one with a key first takes its place in the key's line."""
    attempt = created.attempt
    services.signals.wake(signals.FEED)
    if attempt.concurrency_key is not None:
        await move_up(services, [attempt.concurrency_key])
    else:
        services.signals.wake_for_work(attempt.runner_kind, created.placement_class_id)


async def cancel_attempt(services: Services, command: CancelAttempt) -> Attempt:
    """Cancel an attempt, or ask its runner to. Raises AttemptNotFound or AlreadyTerminal."""
    with counted(services.metrics, CANCEL):
        command, _ = await masked_fields(services, command, "cancel", "reason")
        [outcome] = await services.database.run(
            lambda conn: cancels.cancel(conn, services.rules, [command])
        )
        if failpoints.ARMED:
            await failpoints.hit("cancel.after_commit")
        if isinstance(outcome, ServiceError):
            raise outcome
        services.signals.wake(signals.attempt(command.attempt_id))
        services.signals.wake(signals.FEED)
        await tell(services, outcome.ended)
        return outcome.attempt


async def cancel_operation(services: Services, command: CancelOperation) -> int:
    """Cancel all open attempts of an operation; return how many wishes were noted by this call."""
    with counted(services.metrics, "operation.cancel"):
        command, _ = await masked_fields(services, command, "cancel", "reason")
        operation_id, reason = command.operation_id, command.reason
        total = 0
        while True:
            found, marked, ended = await services.database.run(
                lambda conn: cancels.cancel_operation(conn, services.rules, operation_id, reason)
            )
            for attempt_id in marked:
                services.signals.wake(signals.attempt(attempt_id))
            await tell(services, ended)
            if not found:
                return total
            services.signals.wake(signals.FEED)
            total += len(marked)


async def get_attempt(services: Services, attempt_id: UUID, wait_seconds: float = 0) -> Attempt:
    """The attempt; with `wait_seconds` when it ends, or after that time. Raises AttemptNotFound.

    Waiting holds no database connection.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(wait_seconds, services.settings.limits.max_wait_seconds)
    while True:
        found = await services.database.run(lambda conn: store.find(conn, attempt_id))
        if found is None:
            raise AttemptNotFound
        left = deadline - loop.time()
        if is_terminal(found.status) or left <= 0 or services.signals.draining:
            return found
        poll = services.settings.leases.signal_every_seconds
        await services.signals.wait(signals.attempt(attempt_id), min(left, poll))


def keyed(data: Mapping[str, Any], envelope_id: str) -> Mapping[str, Any]:
    """The data of a creation; without a key it is keyed by its envelope: its repeats are one."""
    return data if "idempotency_key" in data else {**data, "idempotency_key": envelope_id}


def register(registry: Registry) -> None:
    """Register the handlers of this module."""

    @registry.handler(CREATE, CreateAttempt, idempotent_by="idempotency_key")
    async def create(context: Context, command: CreateAttempt) -> None:
        await create_attempt(context.services, command, context.as_sent)

    registry.prepare(CREATE)(keyed)

    @registry.handler(CANCEL, CancelAttempt, idempotent_by="attempt_id")
    async def cancel(context: Context, command: CancelAttempt) -> None:
        await cancel_attempt(context.services, command)
