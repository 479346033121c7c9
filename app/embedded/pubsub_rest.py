"""The part of Pub/Sub's REST API that publishers and set-up scripts use, with Google's shapes.

Fields of a subscription that would change delivery and are not modelled are refused; those
without an effect on a running laptop (labels, retention, expiry) are accepted and ignored.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.embedded.pubsub_model import (
    Draft,
    PubSubRefused,
    RetryPolicy,
    Subscription,
    check_name,
)

MAX_BODY_BYTES = 32 * 1024 * 1024
DEFAULT_DEADLINE_SECONDS = 10
DEFAULT_ATTEMPTS = 5


class PubSub(Protocol):
    """What the REST edge calls."""

    @property
    def topics(self) -> Sequence[str]:
        """The names of all topics."""

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """All subscriptions."""

    def create_topic(self, name: str) -> None:
        """Create a topic."""

    def require_topic(self, name: str) -> None:
        """Refuse a topic that is not there."""

    def add_subscription(self, subscription: Subscription) -> None:
        """Create a subscription."""

    def get_subscription(self, name: str) -> Subscription:
        """The subscription, or a refusal."""

    async def delete_subscription(self, name: str) -> None:
        """Forget a subscription."""

    def publish_all(self, topic: str, drafts: Sequence[Draft]) -> list[str]:
        """Publish messages."""

    def state(self, name: str) -> dict[str, Any]:
        """How a subscription is doing."""


def _duration(value: str) -> str:
    if re.fullmatch(r"\d{1,6}(\.\d{1,9})?s", value) is None:
        raise ValueError('must be seconds with an s, such as "10s"')
    return value


Model = TypeVar("Model", bound=BaseModel)
Duration = Annotated[str, AfterValidator(_duration)]


class _Json(BaseModel):
    """Google's JSON: both spellings of a name, and no unknown ones."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class _OidcToken(_Json):
    service_account_email: str
    audience: str = ""


class _PushConfig(_Json):
    push_endpoint: str
    oidc_token: _OidcToken = _OidcToken(service_account_email="")
    attributes: dict[str, str] = {}


class _RetryPolicy(_Json):
    minimum_backoff: Duration = "10s"
    maximum_backoff: Duration = "600s"


class _DeadLetterPolicy(_Json):
    dead_letter_topic: str
    max_delivery_attempts: int = 0


class _Subscription(_Json):
    topic: str
    push_config: _PushConfig
    ack_deadline_seconds: int = 0
    retry_policy: _RetryPolicy | None = None
    dead_letter_policy: _DeadLetterPolicy | None = None
    enable_message_ordering: bool = False
    enable_exactly_once_delivery: Literal[False] = False
    name: str = ""
    labels: dict[str, str] = {}
    message_retention_duration: Duration = "604800s"
    expiration_policy: dict[str, str] = {}


class _Message(_Json):
    model_config = ConfigDict(extra="ignore")  # id and time are the server's and read by nobody

    data: str = ""
    attributes: dict[str, str] = {}
    ordering_key: str = ""


class _Publish(_Json):
    messages: list[_Message] = Field(default_factory=list)


def rest_app(pubsub: PubSub) -> Starlette:
    """The ASGI app. Every refusal has Google's shape of an error."""
    edge = _Edge(pubsub)
    project, topic = "/v1/projects/{project}", "/v1/projects/{project}/topics/{topic}"
    subscription = "/v1/projects/{project}/subscriptions/{subscription}"
    routes = [
        Route(f"{topic}:publish", edge.publish, methods=["POST"]),
        Route(topic, edge.put_topic, methods=["PUT"]),
        Route(topic, edge.get_topic, methods=["GET"]),
        Route(f"{project}/topics", edge.list_topics, methods=["GET"]),
        Route(subscription, edge.put_subscription, methods=["PUT"]),
        Route(subscription, edge.get_subscription, methods=["GET"]),
        Route(subscription, edge.delete_subscription, methods=["DELETE"]),
        Route(f"{project}/subscriptions", edge.list_subscriptions, methods=["GET"]),
        Route("/debug/subscriptions", edge.debug_all, methods=["GET"]),
        Route("/debug/subscriptions/{name:path}", edge.debug, methods=["GET"]),
    ]
    return Starlette(
        routes=routes, exception_handlers={PubSubRefused: _refused, HTTPException: _no_route}
    )


class _Edge:
    """One method a route."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    async def put_topic(self, request: Request) -> Response:
        name = _topic_name(request)
        self._pubsub.create_topic(name)
        return JSONResponse({"name": name})

    async def get_topic(self, request: Request) -> Response:
        name = _topic_name(request)
        self._pubsub.require_topic(name)
        return JSONResponse({"name": name})

    async def list_topics(self, request: Request) -> Response:
        prefix = f"projects/{request.path_params['project']}/"
        names = [name for name in self._pubsub.topics if name.startswith(prefix)]
        return JSONResponse({"topics": [{"name": name} for name in names]})

    async def put_subscription(self, request: Request) -> Response:
        given = _parse(_Subscription, await _body(request))
        subscription = _subscription_of(_subscription_name(request), given)
        self._pubsub.add_subscription(subscription)
        return JSONResponse(_json_of(subscription))

    async def get_subscription(self, request: Request) -> Response:
        return JSONResponse(_json_of(self._pubsub.get_subscription(_subscription_name(request))))

    async def delete_subscription(self, request: Request) -> Response:
        await self._pubsub.delete_subscription(_subscription_name(request))
        return JSONResponse({})

    async def list_subscriptions(self, request: Request) -> Response:
        prefix = f"projects/{request.path_params['project']}/"
        found = [s for s in self._pubsub.subscriptions if s.name.startswith(prefix)]
        return JSONResponse({"subscriptions": [_json_of(s) for s in found]})

    async def publish(self, request: Request) -> Response:
        given = _parse(_Publish, await _body(request))
        drafts = [
            Draft(_decode(number, message.data), message.attributes, message.ordering_key)
            for number, message in enumerate(given.messages)
        ]
        return JSONResponse({"messageIds": self._pubsub.publish_all(_topic_name(request), drafts)})

    async def debug_all(self, request: Request) -> Response:  # noqa: ARG002  Starlette's shape
        states = [self._pubsub.state(s.name) for s in self._pubsub.subscriptions]
        return JSONResponse({"subscriptions": states})

    async def debug(self, request: Request) -> Response:
        return JSONResponse(self._pubsub.state(request.path_params["name"]))


def _topic_name(request: Request) -> str:
    return "projects/{project}/topics/{topic}".format(**request.path_params)


def _subscription_name(request: Request) -> str:
    return "projects/{project}/subscriptions/{subscription}".format(**request.path_params)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise PubSubRefused(413, f"the request exceeds {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _parse(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise PubSubRefused(400, f"{where} is unknown, or not modelled here") from None
        raise PubSubRefused(400, f"{where or 'body'}: {first['msg']}") from None


def _decode(number: int, data: str) -> bytes:
    """Decode base64 of either alphabet, padded or not."""
    standard = data.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise PubSubRefused(400, f"messages[{number}]: data is not base64") from None


def _subscription_of(name: str, given: _Subscription) -> Subscription:
    check_name(name, "subscriptions")
    deadline = given.ack_deadline_seconds or DEFAULT_DEADLINE_SECONDS
    if deadline < DEFAULT_DEADLINE_SECONDS:
        raise PubSubRefused(400, "ackDeadlineSeconds must be 10 to 600")
    dead = given.dead_letter_policy
    attempts = (dead.max_delivery_attempts if dead else 0) or DEFAULT_ATTEMPTS
    if attempts < DEFAULT_ATTEMPTS:
        raise PubSubRefused(400, "maxDeliveryAttempts must be 5 to 100")
    return Subscription(
        name=name,
        topic=given.topic,
        push_endpoint=given.push_config.push_endpoint,
        service_account=given.push_config.oidc_token.service_account_email,
        audience=given.push_config.oidc_token.audience,
        ack_deadline_seconds=float(deadline),
        retry=_retry_of(given.retry_policy),
        dead_letter_topic=dead.dead_letter_topic if dead else None,
        max_delivery_attempts=attempts,
        ordered=given.enable_message_ordering,
    )


def _retry_of(given: _RetryPolicy | None) -> RetryPolicy | None:
    if given is None:
        return None
    return RetryPolicy(float(given.minimum_backoff[:-1]), float(given.maximum_backoff[:-1]))


def _json_of(subscription: Subscription) -> dict[str, Any]:
    push: dict[str, Any] = {"pushEndpoint": subscription.push_endpoint}
    if subscription.service_account:
        push["oidcToken"] = {
            "serviceAccountEmail": subscription.service_account,
            "audience": subscription.token_audience,
        }
    body: dict[str, Any] = {
        "name": subscription.name,
        "topic": subscription.topic,
        "pushConfig": push,
        "ackDeadlineSeconds": subscription.ack_deadline_seconds,
        "state": "ACTIVE",
    }
    if subscription.retry is not None:
        body["retryPolicy"] = {
            "minimumBackoff": f"{subscription.retry.minimum_seconds:g}s",
            "maximumBackoff": f"{subscription.retry.maximum_seconds:g}s",
        }
    if subscription.dead_letter_topic is not None:
        body["deadLetterPolicy"] = {
            "deadLetterTopic": subscription.dead_letter_topic,
            "maxDeliveryAttempts": subscription.max_delivery_attempts,
        }
    if subscription.ordered:
        body["enableMessageOrdering"] = True
    return body


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, PubSubRefused)  # noqa: S101
    return _error(error.code, error.message, error.status)


async def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    phrase = HTTPStatus(error.status_code).name
    return _error(error.status_code, f"{error.detail}: not a method of this Pub/Sub", phrase)


def _error(code: int, message: str, status: str) -> Response:
    body = {"error": {"code": code, "message": message, "status": status}}
    return JSONResponse(body, status_code=code)
