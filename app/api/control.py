"""Routes of the control plane and of operators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import asyncpg
from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.examples import CREATE_ATTEMPT
from app.api.hot import HotRoute
from app.api.identity import require, services_of
from app.api.schemas.control import (
    AttemptPage,
    HeartbeatPage,
    LeasePage,
)
from app.api.schemas.operator import CancelledOperation
from app.domain.commands import CancelAttempt, CancelOperation, CreateAttempt
from app.domain.errors import (
    AttemptNotFound,
    DatabaseUnavailable,
    FilterTooWide,
    RequestInvalid,
)
from app.domain.lifecycle import RunnerKind, Status
from app.domain.records import Attempt
from app.handlers import attempts as attempt_handlers
from app.services import Services
from app.store import diagnoses, listing, timelines

router = APIRouter(
    prefix="/v1",
    tags=["attempts"],
    dependencies=[Depends(require("control-plane", "operator"))],
    route_class=HotRoute,
)

_MAX_NUMBER = 2**31 - 1

AttemptId = Annotated[UUID, Path(description="The attempt.")]


@router.post(
    "/attempts",
    name="attempts_create",
    response_model=Attempt,
    status_code=201,
    responses={200: {"model": Attempt, "description": "It was created before by this request."}},
    openapi_extra=documented(CreateAttempt, CREATE_ATTEMPT),
)
async def create_attempt(request: Request) -> Response:
    """Create one attempt: one technical execution, queued for a runner.

    Idempotent on `idempotency_key`, for ever: the same request again answers 200 with the same
    attempt and `Idempotent-Replayed: true`; another request under a used key 409
    `idempotency-key-reused`.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(CreateAttempt, fields)
    created = await attempt_handlers.create_attempt(services, command, fields)
    if created.replayed:
        return answer(created.attempt, 200, {"Idempotent-Replayed": "true"})
    return answer(created.attempt, 201, {"Location": f"/v1/attempts/{created.attempt.id}"})


@router.get("/attempts/{attempt_id}", name="attempts_get", response_model=Attempt)
async def get_attempt(
    request: Request,
    attempt_id: AttemptId,
    wait_seconds: Annotated[
        float, Query(ge=0, le=3000, description="Wait so long for its end.")
    ] = 0,
) -> Response:
    """Read one attempt. With `wait_seconds` the answer comes when it ends, or at that time."""
    return answer(
        await attempt_handlers.get_attempt(services_of(request), attempt_id, wait_seconds)
    )


@router.get("/attempts", name="attempts_list", response_model=AttemptPage)
async def list_attempts(
    request: Request,
    status: Annotated[Status | None, Query(description="Only of this status.")] = None,
    job_type: Annotated[
        str | None,
        Query(pattern=r"^[a-z0-9_.]{1,200}$", description="Only of this type, exact."),
    ] = None,
    runner_kind: Annotated[RunnerKind | None, Query(description="Only for this kind.")] = None,
    operation_id: Annotated[UUID | None, Query(description="Only of this operation.")] = None,
    plan_id: Annotated[UUID | None, Query(description="Only of this plan.")] = None,
    plan_node_id: Annotated[UUID | None, Query(description="Only of this node.")] = None,
    runner_instance_id: Annotated[
        str | None,
        Query(
            pattern=r"^[A-Za-z0-9._-]{1,128}$",
            description="Only those last held by this runner.",
        ),
    ] = None,
    created_after: Annotated[datetime | None, Query(description="Created at or after.")] = None,
    created_before: Annotated[datetime | None, Query(description="Created before.")] = None,
    page_size: paging.PageSize = 50,
    page_token: paging.PageToken = None,
) -> Response:
    """List attempts, newest first.

    Without `operation_id`, `plan_id` or `plan_node_id` only the last 24 hours are read, unless
    `created_after` says otherwise. A list that would read too much is refused with
    `filter-too-wide` and never answered in part.
    """
    services = services_of(request)
    narrowed = listing.Filter(
        status=status,
        job_type=job_type,
        runner_kind=runner_kind,
        operation_id=operation_id,
        plan_id=plan_id,
        plan_node_id=plan_node_id,
        runner_instance_id=runner_instance_id,
        created_after=_moment("created_after", created_after),
        created_before=_moment("created_before", created_before),
    )
    filters = {name: getattr(narrowed, name) for name in listing.Filter.__dataclass_fields__}
    place = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await _list(services, _windowed(narrowed), place, size + 1)
    items = found[:size]
    token = None
    if len(found) > size:
        token = paging.encode([items[-1].created_at.isoformat(), items[-1].id], filters)
    return answer(AttemptPage(items=items, next_page_token=token), headers={"Page-Size": str(size)})


def _moment(name: str, moment: datetime | None) -> datetime | None:
    """The time in UTC, which one without a zone is taken to be in. Raises RequestInvalid."""
    if moment is None:
        return None
    if not paging.is_usable(moment):
        fault = {"pointer": f"/query/{name}", "detail": "must lie between the years 1970 and 9998"}
        raise RequestInvalid([fault])
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _windowed(narrowed: listing.Filter) -> listing.Filter:
    """The default window of a list that names no operation, plan or node."""
    named = narrowed.operation_id or narrowed.plan_id or narrowed.plan_node_id
    if named or narrowed.created_after is not None:
        return narrowed
    values = {name: getattr(narrowed, name) for name in listing.Filter.__dataclass_fields__}
    end = narrowed.created_before or datetime.now(UTC)
    return listing.Filter(**{**values, "created_after": end - timedelta(days=1)})


async def _list(
    services: Services,
    narrowed: listing.Filter,
    place: tuple[datetime, UUID] | None,
    limit: int,
) -> list[Attempt]:
    timeout = int(services.settings.limits.list_statement_timeout_seconds * 1000)
    try:
        return await services.database.run(
            lambda conn: listing.list_attempts(
                conn, narrowed, before=place, limit=limit, timeout_milliseconds=timeout
            )
        )
    except DatabaseUnavailable as error:
        if isinstance(error.__cause__, asyncpg.QueryCanceledError):
            raise FilterTooWide from None
        raise


@router.post(
    "/attempts/{attempt_id}:cancel",
    name="attempts_cancel",
    response_model=Attempt,
    openapi_extra=documented(CancelAttempt, {"reason": "superseded by a newer plan"}),
)
async def cancel_attempt(request: Request, attempt_id: AttemptId) -> Response:
    """Cancel an attempt: at once where nothing runs, otherwise its runner is told to stop.

    A cancelled attempt again is 200; one that ended otherwise 409 `already-terminal`.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(CancelAttempt, fields, {"attempt_id": attempt_id})
    return answer(await attempt_handlers.cancel_attempt(services, command))


@router.post(
    "/operations/{operation_id}:cancel",
    name="operations_cancel",
    response_model=CancelledOperation,
    openapi_extra=documented(CancelOperation, {"reason": "the operation was called off"}),
)
async def cancel_operation(
    request: Request, operation_id: Annotated[UUID, Path(description="The operation.")]
) -> Response:
    """Cancel every open attempt of an operation."""
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(CancelOperation, fields, {"operation_id": operation_id})
    cancelled = await attempt_handlers.cancel_operation(services, command)
    return answer(CancelledOperation(operation_id=operation_id, cancelled=cancelled))


@router.get("/attempts/{attempt_id}/leases", name="attempts_list_leases", response_model=LeasePage)
async def list_leases(request: Request, attempt_id: AttemptId) -> Response:
    """Read all leases of an attempt: who held it, and how each ended."""
    services = services_of(request)
    await attempt_handlers.get_attempt(services, attempt_id)
    found = await services.database.run(lambda conn: diagnoses.list_of_attempt(conn, attempt_id))
    return answer(LeasePage(items=found, next_page_token=None))


@router.get(
    "/attempts/{attempt_id}/heartbeats",
    name="attempts_list_heartbeats",
    response_model=HeartbeatPage,
)
async def list_heartbeats(
    request: Request,
    attempt_id: AttemptId,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """Read the signs of life of an attempt, newest first."""
    filters = {"attempt_id": attempt_id}
    place = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services_of(request).database.run(
        lambda conn: timelines.list_heartbeats(conn, attempt_id, before=place, limit=size + 1)
    )
    if found is None:
        raise AttemptNotFound
    items = found[:size]
    token = None
    if len(found) > size:
        token = paging.encode([items[-1].created_at.isoformat(), items[-1].id], filters)
    return answer(HeartbeatPage(items=items, next_page_token=token))
