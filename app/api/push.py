"""The push endpoint: `POST /push/pubsub`.

Order of checks: identity, then limits, then the body, then the envelope. Answers have no body, for
Pub/Sub ignores it; 204 acknowledges, everything else brings the message back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.api.bodies import read_bytes
from app.api.deliveries import parse_delivery
from app.api.dispatch import Dispatcher, Outcome
from app.api.identity import authenticate, services_of
from app.api.problems import answer_of
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
        return await _receive(request)
    except ServiceError as error:
        return _refuse(request, "unknown", error)


async def _receive(request: Request) -> Response:
    services = services_of(request)
    identity = await authenticate(request)
    identity.require("pubsub")
    if request.app.state.draining.is_set():
        raise Draining
    limit = services.settings.server.max_body_bytes
    declared = request.headers.get("content-length", "")
    expected = min(int(declared), limit) if declared.isdecimal() else limit
    in_flight: InFlight = request.app.state.in_flight
    with in_flight.admitted(expected):
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ContentEncodingUnsupported
        delivery = parse_delivery(await read_bytes(request, limit))
        allowed = services.settings.push.subscriptions.get(delivery.subscription)
        if allowed is None:
            raise Forbidden("This subscription is not named in the settings.", cause="subscription")
        dispatcher: Dispatcher = request.app.state.dispatcher
        return _answer(request, await dispatcher.dispatch(delivery, allowed))


def _answer(request: Request, outcome: Outcome) -> Response:
    services_of(request).metrics.pushes.labels(outcome.handler, outcome.word).inc()
    if outcome.error is None or outcome.word == "overtaken":
        return Response(status_code=204)
    answer = answer_of(outcome.error)
    _LOG.warning("push.not_acknowledged", outcome=outcome.word, reason=outcome.error.reason())
    # A nack of a message that can never succeed is a 4xx; all others say "again" with a 503.
    return Response(status_code=answer.status if outcome.word == "poison" else 503)


def _refuse(request: Request, handler: str, error: ServiceError) -> Response:
    """An error before there was a message to settle. Which cause stays in logs and metrics."""
    answer = answer_of(error)
    known = (EnvelopeInvalid, BodyTooLarge, ContentEncodingUnsupported, Overloaded, Draining)
    word = error.reason() if isinstance(error, known) else "refused"
    services_of(request).metrics.pushes.labels(handler, word).inc()
    _LOG.warning("push.refused", reason=error.reason(), cause=getattr(error, "cause", None))
    response = Response(status_code=answer.status)
    if answer.status == 401:  # noqa: PLR2004 - RFC 6750
        sent = getattr(error, "token_sent", False)
        response.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"' if sent else "Bearer"
    return response
