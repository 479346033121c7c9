"""The push endpoint: `POST /push/pubsub`.

Order of checks: identity, then limits, then the body, then the envelope. Answers have no body, for
Pub/Sub ignores it; 204 acknowledges, everything else brings the message back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app import failpoints
from app.api.bodies import read_bytes
from app.api.deliveries import Received, read
from app.api.dispatch import Dispatcher
from app.api.identity import authenticate, services_of
from app.api.outcomes import Outcome
from app.api.problems import answer_of
from app.api.traces import form_of
from app.domain.errors import (
    BodyTooLarge,
    ContentEncodingUnsupported,
    Draining,
    EnvelopeInvalid,
    Forbidden,
    Overloaded,
    ServiceError,
)
from app.settings import PushSettings

_LOG = structlog.get_logger(__name__)
_IN_A_THREAD_BYTES = 256 * 1024
_MAX_DIGITS = 18
_OUR_WORDS = (EnvelopeInvalid, BodyTooLarge, ContentEncodingUnsupported, Overloaded, Draining)
"""Refusals that say nothing of the caller's identity."""

router = APIRouter(tags=["push"])


class InFlight:
    """How many deliveries, and how many bytes of them, are being worked on here."""

    def __init__(self, settings: PushSettings) -> None:
        """Limits from the settings."""
        self._settings = settings
        self.count = 0
        self.size = 0

    @contextmanager
    def admitted(self, declared: int) -> Iterator[None]:
        """Count one delivery for as long as the block lasts. Raises Overloaded when full."""
        settings = self._settings
        full = self.count >= settings.max_in_flight
        if full or (self.count and self.size + declared > settings.max_in_flight_bytes):
            raise Overloaded
        self.count += 1
        self.size += declared
        try:
            yield
        finally:
            self.count -= 1
            self.size -= declared


@router.post(
    "/push/pubsub",
    name="push_receive",
    status_code=204,
    response_class=Response,
    responses={
        400: {"description": "Not a wrapped Pub/Sub message."},
        401: {"description": "No acceptable token."},
        403: {"description": "A good token of an account that may not push here."},
        413: {"description": "Larger than any Pub/Sub message can be."},
        503: {"description": "Not now: delivered again later."},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["message", "subscription"],
                        "properties": {
                            "message": {"type": "object"},
                            "subscription": {"type": "string"},
                        },
                    },
                    "example": {
                        "message": {
                            "data": "eyJ2IjogMSwgLi4ufQ==",
                            "messageId": "2070443601311540",
                            "publishTime": "2021-02-26T19:13:55.749Z",
                        },
                        "subscription": "projects/example/subscriptions/execution-plane",
                    },
                }
            },
        }
    },
)
async def receive(request: Request) -> Response:
    """Take one message from Google Pub/Sub.

    The token must be signed by Google for an account of the role `pubsub`, and the subscription
    must be named in the settings together with the handlers that it may call. 204: done, done
    before, overtaken, or recorded as a dead letter. 503: delivered again.
    """
    try:
        return _answer(request, await _receive(request))
    except ServiceError as error:
        return _refuse(request, error)
    except Exception as error:  # noqa: BLE001 - told by its form, never by its words
        _LOG.error("push.failed", **form_of(error))
        services_of(request).metrics.pushes.labels("unknown", "error").inc()
        return Response(status_code=500)


async def _receive(request: Request) -> Outcome:
    services = services_of(request)
    deadline = asyncio.get_running_loop().time() + services.settings.push.handler_timeout_seconds
    identity = await authenticate(request)
    identity.require("pubsub")
    if failpoints.ARMED:
        await failpoints.hit("push.after_verify")
    if request.app.state.draining.is_set():
        raise Draining
    limit = services.settings.server.max_body_bytes
    in_flight: InFlight = request.app.state.in_flight
    with in_flight.admitted(min(_declared(request, limit), limit)):
        received = await _read(request, limit, deadline)
        allowed = services.settings.push.subscriptions.get(received.delivery.subscription)
        if allowed is None:
            raise Forbidden("This subscription is not named in the settings.", cause="subscription")
        dispatcher: Dispatcher = request.app.state.dispatcher
        return await dispatcher.dispatch(received, allowed, deadline)


def _declared(request: Request, limit: int) -> int:
    """The length that the request declares; one that declares none may be as long as any."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) <= _MAX_DIGITS else limit


async def _read(request: Request, limit: int, deadline: float) -> Received:
    """The delivery in the body, which must be here within the time that the whole has."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ContentEncodingUnsupported
    keys = services_of(request).keys
    try:
        async with asyncio.timeout_at(deadline):
            body = await read_bytes(request, limit)
            if len(body) > _IN_A_THREAD_BYTES:
                return await asyncio.to_thread(read, body, keys)
    except TimeoutError:
        raise Overloaded("The body did not arrive in time.") from None
    return read(body, keys)


def _answer(request: Request, outcome: Outcome) -> Response:
    services_of(request).metrics.pushes.labels(outcome.handler, outcome.word).inc()
    if outcome.error is None or outcome.word == "overtaken":
        return Response(status_code=204)
    answer = answer_of(outcome.error)
    _LOG.warning("push.not_acknowledged", outcome=outcome.word, reason=outcome.error.reason())
    # A nack of a message that can never succeed is a 4xx; all others say "again" with a 503.
    return Response(status_code=answer.status if outcome.word == "poison" else 503)


def _refuse(request: Request, error: ServiceError) -> Response:
    """An error before there was a message to settle. Which cause stays in logs and metrics."""
    answer = answer_of(error)
    known = isinstance(error, _OUR_WORDS)
    word = error.reason() if known else "refused"
    services_of(request).metrics.pushes.labels("unknown", word).inc()
    cause = getattr(error, "cause", None) or error.context.get("cause")
    detail = error.detail if known else None
    _LOG.warning("push.refused", reason=error.reason(), cause=cause, detail=detail)
    response = Response(status_code=answer.status)
    if answer.status == 401:  # noqa: PLR2004 - RFC 6750
        sent = getattr(error, "token_sent", False)
        response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if sent else "Bearer"
    return response
