"""Routes of the control plane and of operators: schedules."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, cast
from uuid import uuid4

import orjson
import structlog
from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.identity import require, services_of
from app.api.schemas import schedules as shown
from app.api.schemas.schedules import TriggerSchedule
from app.domain.commands import CreateAttempt
from app.domain.errors import RequestInvalid
from app.domain.schedules import PLACEHOLDER, PutSchedule, render
from app.handlers import schedules
from app.handlers.attempts import check_create
from app.handlers.masks import refuse_secrets
from app.handlers.registry import Registry
from app.services import Services
from app.store import schedules as store
from app.store.schedules import Fire, Schedule

_LOG = structlog.get_logger(__name__)
_UPCOMING = 5
_EXAMPLE = {
    "cron": "0 2 * * *",
    "time_zone": "Europe/Berlin",
    "to": "attempt.create",
    "data": {
        "operation_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a01",
        "plan_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a02",
        "plan_node_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a03",
        "node_run_id": "0b0f4d0e-5b0c-4b52-9b39-6b2c5c1f8a04",
        "job_type": "verify.http",
        "job_spec_ref": {"url": "https://shop.example/health", "as_of": PLACEHOLDER},
        "timeout_seconds": 600,
    },
    "misfire": "once",
    "jitter_seconds": 300,
}

router = APIRouter(
    prefix="/v1",
    tags=["schedules"],
    dependencies=[Depends(require("control-plane", "operator"))],
)

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$", description="The schedule's name.")]


@router.get("/schedules", name="schedules_list", response_model=shown.SchedulePage)
async def list_schedules(
    request: Request,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List schedules by name."""
    after = paging.text_place(paging.decode(page_token, {}))
    size = paging.bounded(page_size)
    found = await services_of(request).database.run(
        lambda conn: store.list_after(conn, after, size + 1)
    )
    items = [shown.Schedule.model_validate(_fields(one)) for one in found[:size]]
    token = paging.encode([items[-1].name], {}) if len(found) > size else None
    return answer(shown.SchedulePage(items=items, next_page_token=token))


@router.get("/schedules/{name}", name="schedules_get", response_model=shown.ScheduleDetail)
async def get_schedule(request: Request, name: Name) -> Response:
    """Read a schedule and its coming times."""
    return _detail(await schedules.get_schedule(services_of(request), name))


@router.put(
    "/schedules/{name}",
    name="schedules_put",
    response_model=shown.ScheduleDetail,
    openapi_extra=documented(PutSchedule, _EXAMPLE),
)
async def put_schedule(request: Request, name: Name) -> Response:
    """Create or replace a schedule: 201 or 200. The same again changes nothing.

    What it would send is tried at once: data that its handler would refuse is 422, with pointers
    into `data`. While its timing stays, its next time stays too.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    given = validate(PutSchedule, fields)
    _try(services, name, given, request.app.state.registry)
    by = request.state.identity.account
    stored, created = await schedules.put_schedule(services, name, given, by)
    _LOG.info("schedule.put", name=name, by=by, version=stored.version)
    return _detail(stored, 201 if created else 200)


@router.delete("/schedules/{name}", name="schedules_delete", status_code=204)
async def delete_schedule(request: Request, name: Name) -> Response:
    """Remove a schedule. Its history stays for a while, and what it fired is still sent."""
    await schedules.delete_schedule(services_of(request), name)
    _LOG.info("schedule.deleted", name=name, by=request.state.identity.account)
    return Response(status_code=204)


@router.post(
    "/schedules/{name}:trigger",
    name="schedules_trigger",
    response_model=shown.Fire,
    openapi_extra=documented(
        TriggerSchedule, {"request_id": "0b0a5c2e-9a3f-4d55-8d61-8a3f3c1d9f11"}
    ),
)
async def trigger_schedule(request: Request, name: Name) -> Response:
    """Send the schedule's message now, out of turn, even while it is paused.

    A repeat with the same `request_id` sends nothing further and gets the same answer.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    given = validate(TriggerSchedule, fields)
    by = request.state.identity.account
    fire = await schedules.trigger_schedule(services, name, given.request_id, by)
    return answer(_fire(fire))


@router.post("/schedules/{name}:pause", name="schedules_pause", response_model=shown.ScheduleDetail)
async def pause_schedule(request: Request, name: Name) -> Response:
    """Let the schedule come due no more. What fell due before is still sent."""
    by = request.state.identity.account
    paused = await schedules.pause_schedule(services_of(request), name, by)
    _LOG.info("schedule.paused", name=name, by=by)
    return _detail(paused)


@router.post(
    "/schedules/{name}:resume", name="schedules_resume", response_model=shown.ScheduleDetail
)
async def resume_schedule(request: Request, name: Name) -> Response:
    """Let the schedule come due again. What fell into the pause is not made up for.

    Only a single time (`at`) that passed meanwhile is settled, by its misfire policy.
    """
    resumed = await schedules.resume_schedule(services_of(request), name)
    _LOG.info("schedule.resumed", name=name, by=request.state.identity.account)
    return _detail(resumed)


@router.get("/schedules/{name}/fires", name="schedules_fires", response_model=shown.FirePage)
async def list_fires(
    request: Request,
    name: Name,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List what a schedule has sent and skipped, newest first; also of one that was removed."""
    filters = {"name": name}
    before = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services_of(request).database.run(
        lambda conn: store.list_fires(conn, name, before, size + 1)
    )
    token = None
    if len(found) > size:
        last = found[size - 1]
        token = paging.encode([last.fired_at.isoformat(), last.id], filters)
    items = [_fire(one) for one in found[:size]]
    return answer(shown.FirePage(items=items, next_page_token=token))


def _fields(schedule: Schedule) -> dict[str, Any]:
    return {**asdict(schedule), "data": orjson.loads(schedule.data)}


def _detail(schedule: Schedule, status: int = 200) -> Response:
    upcoming: list[datetime] = []
    if schedule.next_due_at is not None:
        rest = islice(schedule.timing.after(schedule.next_due_at), _UPCOMING - 1)
        upcoming = [schedule.next_due_at, *rest]
    detail = {**_fields(schedule), "upcoming": upcoming}
    return answer(shown.ScheduleDetail.model_validate(detail), status)


def _fire(fire: Fire) -> shown.Fire:
    return shown.Fire.model_validate(asdict(fire))


# --- trying what would be sent -------------------------------------------------------------------


def _try(services: Services, name: str, given: PutSchedule, registry: Registry) -> None:
    """Refuse what its handler would refuse when its time comes. Raises RequestInvalid."""
    allowed = services.settings.scheduler.handlers
    handler = registry.find(given.to) if given.to in allowed else None
    if handler is None or handler.under_lease:
        detail = f"must be one of the handlers that schedules may call: {', '.join(allowed)}"
        raise RequestInvalid([{"pointer": "/to", "detail": detail}])
    now = datetime.now(UTC).replace(microsecond=0)
    data = cast("dict[str, Any]", render(given.data, given.at or now))
    fields = data if handler.prepare is None else handler.prepare(data, str(uuid4()))
    try:
        command = validate(handler.model, fields)
        if isinstance(command, CreateAttempt):
            check_create(services, command)
    except RequestInvalid as error:
        moved = [{**fault, "pointer": f"/data{fault['pointer']}"} for fault in error.errors]
        raise type(error)(moved) from None
    refuse_secrets(services, name=name, data=given.data)
    _refuse_one_key(given)


def _refuse_one_key(given: PutSchedule) -> None:
    """With the same key every time only the first message would have an effect."""
    key = given.data.get("idempotency_key")
    if given.cron is not None and key is not None and PLACEHOLDER not in str(key):
        detail = f"must hold {PLACEHOLDER}, or be left out: with one key only the first would count"
        raise RequestInvalid([{"pointer": "/data/idempotency_key", "detail": detail}])
