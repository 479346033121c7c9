"""Routes of operators: legal holds, and what the next removal would take."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from app.api import previews
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.identity import require, services_of
from app.api.schemas.retention import ConfirmedEpoch, ConfirmObjects, Hold, RetentionPreview
from app.domain.commands import GiveReason
from app.handlers import removal

_LOG = structlog.get_logger(__name__)
_EXAMPLE_HOLD = {"reason": "case 2031-17, asked for by the legal department"}
_EXAMPLE_UNHOLD = {"reason": "case 2031-17 is closed"}

router = APIRouter(prefix="/v1", tags=["operators"], dependencies=[Depends(require("operator"))])

ArtifactId = Annotated[UUID, Path(description="The artifact.")]
AttemptId = Annotated[UUID, Path(description="The attempt.")]


@router.post(
    "/artifacts/{artifact_id}:hold",
    name="artifacts_hold",
    response_model=Hold,
    openapi_extra=documented(GiveReason, _EXAMPLE_HOLD),
)
async def hold_artifact(request: Request, artifact_id: ArtifactId) -> Response:
    """Put an artifact under legal hold: nothing removes it until the hold is lifted.

    410 `artifact-gone`: its removal had begun. A repeat changes nothing.
    """
    return await _artifact(request, artifact_id, held=True)


@router.post(
    "/artifacts/{artifact_id}:unhold",
    name="artifacts_unhold",
    response_model=Hold,
    openapi_extra=documented(GiveReason, _EXAMPLE_UNHOLD),
)
async def unhold_artifact(request: Request, artifact_id: ArtifactId) -> Response:
    """Lift the legal hold of an artifact. Its retention class counts again, as if never held."""
    return await _artifact(request, artifact_id, held=False)


@router.post(
    "/attempts/{attempt_id}:hold",
    name="attempts_hold",
    response_model=Hold,
    openapi_extra=documented(GiveReason, _EXAMPLE_HOLD),
)
async def hold_attempt(request: Request, attempt_id: AttemptId) -> Response:
    """Put everything that an attempt has stored by now under legal hold, its logs too.

    What comes later is not held by it: repeat it after the end of an attempt that is still open.
    """
    return await _attempt(request, attempt_id, held=True)


@router.post(
    "/attempts/{attempt_id}:unhold",
    name="attempts_unhold",
    response_model=Hold,
    openapi_extra=documented(GiveReason, _EXAMPLE_UNHOLD),
)
async def unhold_attempt(request: Request, attempt_id: AttemptId) -> Response:
    """Lift every legal hold on what the attempt has stored, single artifacts among them."""
    return await _attempt(request, attempt_id, held=False)


async def _reason(request: Request) -> GiveReason:
    limit = services_of(request).settings.server.max_body_bytes
    return validate(GiveReason, await read_object(request, limit))


async def _artifact(request: Request, artifact_id: UUID, *, held: bool) -> Response:
    given, by = await _reason(request), request.state.identity.account
    attempt_id, changed, standing = await removal.hold_artifact(
        services_of(request), artifact_id, given, held=held, by=by
    )
    shown = Hold(
        attempt_id=attempt_id, artifact_id=artifact_id, changed=changed, **asdict(standing)
    )
    return answer(shown)


async def _attempt(request: Request, attempt_id: UUID, *, held: bool) -> Response:
    given, by = await _reason(request), request.state.identity.account
    changed, standing = await removal.hold_attempt(
        services_of(request), attempt_id, given, held=held, by=by
    )
    shown = Hold(attempt_id=attempt_id, artifact_id=None, changed=changed, **asdict(standing))
    return answer(shown)


@router.post("/retention:preview", name="retention_preview", response_model=RetentionPreview)
async def preview(request: Request) -> Response:
    """Say what the next run would remove, and how much. Nothing is changed by it."""
    return answer(await previews.preview(services_of(request)))


@router.post(
    "/retention:confirm",
    name="retention_confirm",
    response_model=ConfirmedEpoch,
    openapi_extra=documented(ConfirmObjects, {"feed_epoch": 2}),
)
async def confirm(request: Request) -> Response:
    """Let objects be removed again, after the database was restored or another one took over.

    Until then none is: a database that lacks rows or holds would take objects for orphans. Look at
    the preview first. 409 `feed-epoch-mismatch`: another epoch is the current one.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    given = validate(ConfirmObjects, fields)
    account = request.state.identity.account
    await removal.confirm(services, given.feed_epoch, account)
    _LOG.warning("retention.confirmed", feed_epoch=given.feed_epoch, by=account)
    return answer(ConfirmedEpoch(feed_epoch=given.feed_epoch))
