"""Routes of callback subscriptions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.identity import require, services_of
from app.api.schemas.callbacks import (
    CallbackDelivery,
    CallbackDeliveryPage,
    CallbackPage,
    CallbackSubscription,
    CallbackTest,
)
from app.domain.callbacks import SENTENCES
from app.domain.subscriptions import (
    NAME_PATTERN,
    PutSubscription,
    ReplayEvents,
    RotateSecret,
)
from app.handlers import callbacks
from app.handlers.callbacks import Shown

_MAX_BODY_BYTES = 64 * 1024
_EXAMPLE_PUT: dict[str, Any] = {
    "url": "https://control-plane.example/execution-events",
    "event_types": ["attempt.succeeded", "attempt.failed", "attempt.lost"],
    "max_batch": 50,
}
_EXAMPLE_ROTATE = {"request_id": "0b0a5c2e-9a3f-4d55-8d61-8a3f3c1d9f21", "overlap_seconds": 3600}
_EXAMPLE_REPLAY = {
    "request_id": "0b0a5c2e-9a3f-4d55-8d61-8a3f3c1d9f22",
    "created_after": "2026-11-30T08:00:00Z",
    "created_before": "2026-11-30T09:00:00Z",
}
_PATH = "/callback-subscriptions/{name}"

router = APIRouter(
    prefix="/v1",
    tags=["callbacks"],
    dependencies=[Depends(require("control-plane", "operator"))],
)

Name = Annotated[str, Path(pattern=NAME_PATTERN, description="The subscription's name.")]


def _shown(shown: Shown) -> CallbackSubscription:
    subscription, standing = asdict(shown.subscription), asdict(shown.standing)
    state = "failing" if shown.standing.failures else "active"
    replay = None
    if shown.standing.replay_request_id is not None:
        replay = {
            "request_id": shown.standing.replay_request_id,
            "asked_at": shown.standing.replay_asked_at,
            "running": shown.standing.replay_running,
            "sent": shown.standing.replay_sent,
        }
    return CallbackSubscription.model_validate(
        {
            **subscription,
            **standing,
            "headers": {
                name: {"secret_ref": reference}
                for name, reference in shown.subscription.headers.items()
            },
            "signing_secret": shown.secret,
            "secret": {
                "version": shown.subscription.secret_version,
                "previous_until": shown.subscription.previous_until,
            },
            "state": "paused" if shown.standing.paused_at is not None else state,
            "cursor": shown.standing.cursor.encode(),
            "behind": shown.behind,
            "replay": replay,
        }
    )


def _replayed(shown: Shown, *, replayed: bool) -> Response:
    return answer(_shown(shown), 200, {"Idempotent-Replayed": "true"} if replayed else {})


@router.get("/callback-subscriptions", name="callbacks_list", response_model=CallbackPage)
async def list_subscriptions(
    request: Request,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List callback subscriptions by name, and how each stands."""
    after = paging.text_place(paging.decode(page_token, {}))
    size = paging.bounded(page_size)
    found = await callbacks.list_all(services_of(request), after, size + 1)
    items = [_shown(one) for one in found[:size]]
    token = paging.encode([items[-1].name], {}) if len(found) > size else None
    return answer(CallbackPage(items=items, next_page_token=token))


@router.get(_PATH, name="callbacks_get", response_model=CallbackSubscription)
async def get_subscription(request: Request, name: Name) -> Response:
    """Read one callback subscription: how far it is, what it waits for, how far behind it is."""
    return answer(_shown(await callbacks.get(services_of(request), name, count=True)))


@router.put(
    _PATH,
    name="callbacks_put",
    response_model=CallbackSubscription,
    responses={201: {"model": CallbackSubscription, "description": "It was created."}},
    openapi_extra=documented(PutSubscription, _EXAMPLE_PUT),
)
async def put_subscription(request: Request, name: Name) -> Response:
    """Create a callback subscription, or set all of one that exists.

    201 shows `signing_secret`, once: it is derived and stored nowhere. If that answer was lost,
    rotate the secret. The same PUT again changes nothing; another one keeps place and secret.
    422 `request-invalid`: the URL may not be called; 422 `secret-in-request`: something holds a
    secret that belongs behind a reference.
    """
    services = services_of(request)
    given = validate(PutSubscription, await read_object(request, _MAX_BODY_BYTES))
    shown, created = await callbacks.put(services, name, given, request.state.identity.account)
    return answer(_shown(shown), 201 if created else 200)


@router.delete(_PATH, name="callbacks_delete", status_code=204)
async def delete_subscription(request: Request, name: Name) -> Response:
    """Remove a callback subscription, with what waits at it. Its secrets are never valid again."""
    await callbacks.remove(services_of(request), name, request.state.identity.account)
    return Response(status_code=204)


@router.post(f"{_PATH}:resume", name="callbacks_resume", response_model=CallbackSubscription)
async def resume_subscription(request: Request, name: Name) -> Response:
    """Let a paused or waiting subscription go on at once, and try again what is parked.

    Nothing is skipped. Only where the events after its place were removed by age in the meantime,
    it goes on at the oldest one that is kept, and `gap_until` says so.
    """
    shown = await callbacks.resume(services_of(request), name, request.state.identity.account)
    return answer(_shown(shown))


@router.post(
    f"{_PATH}:rotate-secret",
    name="callbacks_rotate",
    response_model=CallbackSubscription,
    openapi_extra=documented(RotateSecret, _EXAMPLE_ROTATE),
)
async def rotate_secret(request: Request, name: Name) -> Response:
    """Begin a new version of the signing secret and show it; the one before stays valid a while.

    Both sign meanwhile. A repeat with the same `request_id` shows the same secret. There are never
    more than two: a further rotation ends the older one.
    """
    given = validate(RotateSecret, await read_object(request, _MAX_BODY_BYTES))
    account = request.state.identity.account
    shown, replayed = await callbacks.rotate(services_of(request), name, given, account)
    return _replayed(shown, replayed=replayed)


@router.post(
    f"{_PATH}:replay",
    name="callbacks_replay",
    response_model=CallbackSubscription,
    openapi_extra=documented(ReplayEvents, _EXAMPLE_REPLAY),
)
async def replay_events(request: Request, name: Name) -> Response:
    """Send events again: after a cursor, of one attempt, or of a time.

    They come with the ids that they had, up to where the subscription stands now, beside what is
    new. 409 `replay-running`: there is another one.
    """
    given = validate(ReplayEvents, await read_object(request, _MAX_BODY_BYTES))
    account = request.state.identity.account
    shown, replayed = await callbacks.replay(services_of(request), name, given, account)
    return _replayed(shown, replayed=replayed)


@router.post(f"{_PATH}:test", name="callbacks_test", response_model=CallbackTest)
async def test_subscription(request: Request, name: Name) -> Response:
    """Send an event of type `callback.test` now, signed like all others, and say how it ended.

    It belongs to no attempt and changes nothing; a paused subscription is tested too.
    """
    sent = await callbacks.test(services_of(request), name, request.state.identity.account)
    shown = CallbackTest(
        webhook_id=sent.webhook_id,
        result=sent.answer.result,
        sentence=SENTENCES[sent.answer.result],
        status=sent.answer.status,
        milliseconds=round(sent.answer.seconds * 1000),
    )
    return answer(shown)


@router.get(f"{_PATH}/deliveries", name="callbacks_deliveries", response_model=CallbackDeliveryPage)
async def list_deliveries(
    request: Request,
    name: Name,
    accepted: Annotated[
        bool | None, Query(description="Only those that were accepted, or were not.")
    ] = None,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List the requests that were made to the receiver, newest first."""
    filters = {"name": name, "accepted": accepted}
    before = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await callbacks.list_deliveries(
        services_of(request), name, before, size + 1, accepted=accepted
    )
    token = None
    if len(found) > size:
        last = found[size - 1]
        token = paging.encode([last.sent_at.isoformat(), last.id], filters)
    items = [
        CallbackDelivery.model_validate({**asdict(one), "sentence": SENTENCES[one.result]})
        for one in found[:size]
    ]
    return answer(CallbackDeliveryPage(items=items, next_page_token=token))
