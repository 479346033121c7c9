"""Routes of operators: why it waits, the fleet, concurrency keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.identity import require, services_of
from app.api.runner import RunnerId
from app.api.schemas.operator import (
    FreedKey,
    KeyHold,
    KeyPage,
    PlacementAnswer,
    RunnerDetail,
    RunnerPage,
    RunnerStanding,
    WaitReason,
)
from app.domain.commands import GiveReason
from app.domain.lifecycle import RunnerKind
from app.domain.records import Runner
from app.handlers import fleet, placements
from app.store.holds import Hold
from app.store.placements import MAX_POSITION

_EXAMPLE_REASON = {"reason": "the host was rebuilt by hand"}

reads = APIRouter(
    prefix="/v1",
    tags=["operators"],
    dependencies=[Depends(require("control-plane", "operator"))],
)
writes = APIRouter(prefix="/v1", tags=["operators"], dependencies=[Depends(require("operator"))])

Key = Annotated[str, Path(min_length=1, max_length=200, description="The concurrency key.")]


@reads.get(
    "/attempts/{attempt_id}/placement", name="attempts_explain", response_model=PlacementAnswer
)
async def explain(
    request: Request, attempt_id: Annotated[UUID, Path(description="The attempt.")]
) -> Response:
    """Say why an attempt waits: the truest reason first, and how each runner stands to it."""
    found = await placements.explain(services_of(request), attempt_id)
    position = None
    if found.position is not None:
        beyond = found.position > MAX_POSITION
        position = f"{MAX_POSITION:,}+" if beyond else str(found.position)
    return answer(
        PlacementAnswer(
            attempt_id=attempt_id,
            status=found.waiting.status,
            reasons=[WaitReason(reason=one, sentence=text) for one, text in found.reasons],
            runner_counts=found.counts,
            nearest_runners=[RunnerStanding(**asdict(one)) for one in found.nearest],
            position=position,
            hold=None if found.hold is None else _hold(found.hold),
        )
    )


def _hold(hold: Hold) -> KeyHold:
    return KeyHold.model_validate(asdict(hold))


@reads.get("/runners", name="runners_list", response_model=RunnerPage)
async def list_runners(
    request: Request,
    runner_kind: Annotated[RunnerKind | None, Query(description="Only of this kind.")] = None,
    include_offline: Annotated[
        bool, Query(description="Also those silent for over an hour.")
    ] = False,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List runners by id, as they are shown."""
    filters = {"runner_kind": runner_kind, "include_offline": include_offline}
    after = paging.text_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await fleet.list_runners(
        services_of(request), after, runner_kind, size + 1, include_offline=include_offline
    )
    items = found[:size]
    token = paging.encode([items[-1].id], filters) if len(found) > size else None
    return answer(RunnerPage(items=items, next_page_token=token))


@reads.get("/runners/{runner_id}", name="runners_get", response_model=RunnerDetail)
async def get_runner(request: Request, runner_id: RunnerId) -> Response:
    """Read one runner and the leases that it holds."""
    runner, leases = await fleet.get_detail(services_of(request), runner_id)
    return answer(RunnerDetail(runner=runner, leases=leases))


@writes.post("/runners/{runner_id}:drain", name="runners_drain", response_model=Runner)
async def drain_runner(request: Request, runner_id: RunnerId) -> Response:
    """Give the runner no more leases. It keeps those it has; no report of its own lifts this."""
    by = request.state.identity.account
    return answer(await fleet.set_drained(services_of(request), runner_id, by, drained=True))


@writes.post("/runners/{runner_id}:resume", name="runners_resume", response_model=Runner)
async def resume_runner(request: Request, runner_id: RunnerId) -> Response:
    """Lift the drain."""
    by = request.state.identity.account
    return answer(await fleet.set_drained(services_of(request), runner_id, by, drained=False))


@writes.delete("/runners/{runner_id}", name="runners_delete", status_code=204)
async def delete_runner(request: Request, runner_id: RunnerId) -> Response:
    """Remove a runner that holds no lease. Its id stays in the history of attempts."""
    await fleet.remove(services_of(request), runner_id)
    return Response(status_code=204)


@reads.get("/concurrency-keys", name="keys_list", response_model=KeyPage)
async def list_keys(
    request: Request,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List held concurrency keys: who has each, and whether its work may still be going on."""
    after = paging.text_place(paging.decode(page_token, {}))
    size = paging.bounded(page_size)
    found = await fleet.list_holds(services_of(request), after, size + 1)
    items = [_hold(one) for one in found[:size]]
    token = paging.encode([items[-1].concurrency_key], {}) if len(found) > size else None
    return answer(KeyPage(items=items, next_page_token=token))


@writes.post(
    "/concurrency-keys/{key:path}:free",
    name="keys_free",
    response_model=FreedKey,
    openapi_extra=documented(GiveReason, _EXAMPLE_REASON),
)
async def free_key(request: Request, key: Key) -> Response:
    """Free a key whose holder ended without its runner's word, because you know that it stopped.

    Only a hold of an ended attempt can be freed (409 `key-in-use`).
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    given = validate(GiveReason, fields)
    attempt_id = await fleet.free_key(services, key, given, request.state.identity.account)
    return answer(FreedKey(concurrency_key=key, attempt_id=attempt_id))
