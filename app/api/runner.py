"""Routes of runners: register, claim, start, beat, complete. Logs are in `api/logs.py`."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.examples import CLAIM_LEASES, COMPLETE, HEARTBEAT, REGISTER_RUNNER, REPORT_STATUS
from app.api.hot import HotRoute
from app.api.identity import require, services_of, speaks_for
from app.api.schemas.runner import (
    Claimed,
    ClaimedLease,
    CompletedAnswer,
    LeaseAnswer,
    RegisteredRunner,
)
from app.commands.claims import Claim
from app.domain.commands import (
    ClaimLeases,
    CompleteLease,
    Heartbeat,
    RegisterRunner,
    ReleaseLease,
    ReportStatus,
    StartLease,
)
from app.domain.errors import Forbidden
from app.domain.records import Attempt, Runner
from app.handlers import leases as lease_handlers
from app.handlers import runners as runner_handlers
from app.services import Services
from app.store.leases import Beaten

router = APIRouter(
    prefix="/v1", tags=["runners"], dependencies=[Depends(require("runner"))], route_class=HotRoute
)

RunnerId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$", description="Chosen by the runner.")
]
LeaseId = Annotated[UUID, Path(description="The lease.")]
LeaseToken = Annotated[
    str, Header(max_length=200, description="The secret that the claim's answer held.")
]
NO_TOKEN = ""
"""What a missing header is: a token that fits no lease, so the answer is that of a wrong one."""


def cadence(services: Services) -> dict[str, float]:
    """What every answer to a runner tells it, as durations."""
    leases = services.settings.leases
    return {
        "lease_seconds": leases.lease_seconds,
        "heartbeat_every_seconds": leases.beat_seconds,
    }


def live_answer(services: Services, lease_id: UUID, held: Attempt | Beaten) -> LeaseAnswer:
    """What a live lease is answered, whichever way its holder asked."""
    return LeaseAnswer(
        action="continue" if held.cancel_requested_at is None else "cancel",
        lease_id=lease_id,
        attempt_id=held.id if isinstance(held, Attempt) else held.attempt_id,
        attempt_status=held.status if isinstance(held, Attempt) else held.attempt_status,
        cancel_reason=held.cancel_reason,
        **cadence(services),
    )


@router.put(
    "/runners/{runner_id}",
    name="runners_register",
    response_model=RegisteredRunner,
    openapi_extra=documented(RegisterRunner, REGISTER_RUNNER),
)
async def register_runner(request: Request, runner_id: RunnerId) -> Response:
    """Register a runner, or a new session (process) of it.

    The same session again changes nothing. A new one takes over: the leases of the one before end
    as expired ones do, and a session that was replaced never comes back (409 `session-replaced`).
    """
    services = services_of(request)
    speaks_for(request, runner_id)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(RegisterRunner, fields, {"runner_id": runner_id})
    if not request.state.identity.may_register(
        command.runner_kind, command.capabilities, runner_id=runner_id
    ):
        raise Forbidden("This identity may not register that kind or those capabilities.")
    registration = await runner_handlers.register_runner(services, command)
    runner = await runner_handlers.get_runner(services, runner_id)
    return answer(
        RegisteredRunner(
            runner=runner,
            session_began=registration.began,
            claim_grace_seconds=services.settings.leases.claim_grace_seconds,
            **cadence(services),
        )
    )


@router.put(
    "/runners/{runner_id}/status",
    name="runners_report_status",
    response_model=Runner,
    openapi_extra=documented(ReportStatus, REPORT_STATUS),
)
async def report_status(request: Request, runner_id: RunnerId) -> Response:
    """Report the runner's own state and capacity. A report that is not newer changes nothing."""
    services = services_of(request)
    speaks_for(request, runner_id)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(ReportStatus, fields, {"runner_id": runner_id})
    await runner_handlers.report_status(services, command)
    return answer(await runner_handlers.get_runner(services, runner_id))


@router.post(
    "/runners/{runner_id}/leases:claim",
    name="leases_claim",
    response_model=Claimed,
    openapi_extra=documented(ClaimLeases, CLAIM_LEASES),
)
async def claim_leases(request: Request, runner_id: RunnerId) -> Response:
    """Claim leases, waiting up to `wait_seconds` for work.

    The same `request_id` again gives the same leases with their tokens. An empty list means that
    there is nothing to claim; ask again with a new `request_id`.
    """
    services = services_of(request)
    speaks_for(request, runner_id)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(ClaimLeases, fields, {"runner_id": runner_id})
    claims = await lease_handlers.claim_leases(services, command, request.is_disconnected)
    return answer(
        Claimed(
            leases=[_claimed(claim) for claim in claims],
            claim_grace_seconds=services.settings.leases.claim_grace_seconds,
            **cadence(services),
        )
    )


def _claimed(claim: Claim) -> ClaimedLease:
    return ClaimedLease(
        lease=claim.leased.lease,
        lease_token=claim.token,
        attempt=claim.leased.attempt,
        continuation=claim.leased.continuation,
    )


@router.post(
    "/leases/{lease_id}:start",
    name="leases_start",
    response_model=LeaseAnswer,
)
async def start_lease(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Begin the work. Nothing may be touched before this is answered with 200.

    A 200 always means: begin. 409 with `action: "stop"` means: do not.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(StartLease, fields, proof_of(lease_id, lease_token))
    started = await lease_handlers.start_lease(services, command)
    return answer(live_answer(services, lease_id, started.attempt))


@router.post(
    "/leases/{lease_id}:heartbeat",
    name="leases_heartbeat",
    response_model=LeaseAnswer,
    openapi_extra=documented(Heartbeat, HEARTBEAT),
)
async def heartbeat(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Show a sign of life, which renews the lease.

    `action: "cancel"` asks the runner to stop its work and to complete with outcome `cancelled`.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(Heartbeat, fields, proof_of(lease_id, lease_token))
    beaten = await lease_handlers.heartbeat(services, command)
    return answer(live_answer(services, lease_id, beaten))


@router.post(
    "/leases/{lease_id}:complete",
    name="leases_complete",
    response_model=CompletedAnswer,
    openapi_extra=documented(CompleteLease, COMPLETE),
)
async def complete_lease(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Say how the work ended. The first word is final.

    The same completion again gets the same 200, with `Idempotent-Replayed: true`; a different one
    409 `attempt-ended`. Retry until one of these is the answer.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(CompleteLease, fields, proof_of(lease_id, lease_token))
    completed = await lease_handlers.complete_lease(services, command, fields)
    headers = {"Idempotent-Replayed": "true"} if completed.replayed else {}
    return answer(CompletedAnswer(attempt=completed.attempt), 200, headers)


@router.post(
    "/leases/{lease_id}:release",
    name="leases_release",
    response_model=Attempt,
    openapi_extra=documented(ReleaseLease, {"reason": "the host is going down"}),
)
async def release_lease(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Give the lease back without having worked. A repeat is answered alike.

    After the start only where the job may be begun again elsewhere (409 `already-started`).
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(ReleaseLease, fields, proof_of(lease_id, lease_token))
    return answer(await lease_handlers.release_lease(services, command))


@router.get("/leases/{lease_id}/signals", name="leases_wait_signals", response_model=LeaseAnswer)
async def wait_signals(
    request: Request,
    lease_id: LeaseId,
    lease_token: LeaseToken = NO_TOKEN,
    wait_seconds: Annotated[float, Query(ge=0, le=3000, description="Wait so long.")] = 0,
) -> Response:
    """Wait for a cancellation or the end of the lease. Does not renew it.

    200 `continue` after the wait, 200 `cancel` at once, 409 as soon as the lease has ended.
    """
    services = services_of(request)
    proof = validate(StartLease, {}, proof_of(lease_id, lease_token))
    found = await lease_handlers.wait_signals(
        services, proof, wait_seconds, request.is_disconnected
    )
    return answer(live_answer(services, lease_id, found.attempt))


def proof_of(lease_id: UUID, lease_token: str) -> dict[str, Any]:
    """What path and header say of a lease."""
    return {"lease_id": lease_id, "lease_token": lease_token}
