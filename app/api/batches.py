"""Many commands in one request: each item is answered by position, as if it had come alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.examples import CREATE_ATTEMPT, HEARTBEAT
from app.api.hot import HotRoute
from app.api.identity import require, services_of
from app.api.problems import answer_of, problem_body
from app.api.runner import live_answer
from app.api.schemas.batches import (
    AttemptItem,
    AttemptItems,
    HeartbeatItem,
    HeartbeatItems,
)
from app.commands.attempts import Created, CreateRequest
from app.domain.commands import Command, CreateAttempt, Heartbeat
from app.domain.errors import BatchTooLarge, RequestInvalid, ServiceError
from app.handlers import attempts, leases
from app.services import Services
from app.store.leases import Beaten

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome

control = APIRouter(
    prefix="/v1",
    tags=["attempts"],
    dependencies=[Depends(require("control-plane"))],
    route_class=HotRoute,
)
runner = APIRouter(
    prefix="/v1", tags=["runners"], dependencies=[Depends(require("runner"))], route_class=HotRoute
)


class AttemptBatch(Command):
    """Attempts to create."""

    attempts: Annotated[list[CreateAttempt], Field(min_length=1, max_length=500)]
    """At most 500."""


class HeartbeatOfLease(Heartbeat):
    """A sign of life that names its lease itself."""


class HeartbeatBatch(Command):
    """Signs of life of one runner's leases."""

    heartbeats: Annotated[list[HeartbeatOfLease], Field(min_length=1, max_length=500)]
    """At most 500; each with its `lease_id` and `lease_token`."""


_HEARTBEAT_EXAMPLE = {
    "lease_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b03",
    "lease_token": "lt_…",
    **HEARTBEAT,
}


@control.post(
    "/attempts:batch",
    name="attempts_create_many",
    response_model=AttemptItems,
    openapi_extra=documented(AttemptBatch, {"attempts": [CREATE_ATTEMPT]}),
)
async def create_attempts(request: Request) -> Response:
    """Create many attempts; `items` answers them by position.

    Each is created, found created before, or refused by itself: one that is invalid or reuses a
    key costs the others nothing. The whole request may be repeated.
    """
    services = services_of(request)
    items = await _items(request, "attempts")

    def parse(item: Mapping[str, Any]) -> CreateRequest:
        command = validate(CreateAttempt, item)
        attempts.check_create(services, command)
        return CreateRequest(command, item)

    valid, faults = _parsed(items, parse)
    done = await attempts.create_attempts(services, list(valid.values())) if valid else []
    outcomes = _by_position(len(items), faults, dict(zip(valid, done, strict=True)))
    request_id = request.state.request_id
    return answer(AttemptItems(items=[_attempt_item(one, request_id) for one in outcomes]))


def _attempt_item(outcome: Created | ServiceError, request_id: str) -> AttemptItem:
    if isinstance(outcome, ServiceError):
        return AttemptItem(
            status=answer_of(outcome).status,
            attempt=None,
            replayed=False,
            problem=problem_body(outcome, request_id),
        )
    status = 200 if outcome.replayed else 201
    return AttemptItem(
        status=status, attempt=outcome.attempt, replayed=outcome.replayed, problem=None
    )


@runner.post(
    "/leases:heartbeat",
    name="leases_heartbeat_many",
    response_model=HeartbeatItems,
    openapi_extra=documented(HeartbeatBatch, {"heartbeats": [_HEARTBEAT_EXAMPLE]}),
)
async def heartbeat_many(request: Request) -> Response:
    """Show signs of life for many leases; `items` answers them by position."""
    services = services_of(request)
    items = await _items(request, "heartbeats")
    valid, faults = _parsed(items, lambda item: validate(Heartbeat, item))
    done = await leases.heartbeats(services, list(valid.values())) if valid else []
    outcomes = _by_position(len(items), faults, dict(zip(valid, done, strict=True)))
    request_id = request.state.request_id
    return answer(
        HeartbeatItems(items=[_heartbeat_item(services, one, request_id) for one in outcomes])
    )


def _heartbeat_item(
    services: Services, outcome: Beaten | ServiceError, request_id: str
) -> HeartbeatItem:
    if isinstance(outcome, ServiceError):
        return HeartbeatItem(
            status=answer_of(outcome).status, lease=None, problem=problem_body(outcome, request_id)
        )
    lease = live_answer(services, outcome.lease_id, outcome)
    return HeartbeatItem(status=200, lease=lease, problem=None)


async def _items(request: Request, name: str) -> list[Any]:
    """The batch's items, within its limits; only the frame of the batch is judged here."""
    settings = services_of(request).settings
    fields = await read_object(request, settings.server.max_body_bytes)
    items = fields.get(name)
    if set(fields) != {name} or not isinstance(items, list) or not items:
        raise RequestInvalid(
            [{"pointer": f"/{name}", "detail": "must be the only member, a list that is not empty"}]
        )
    if len(items) > settings.limits.max_batch:
        raise BatchTooLarge(limit=settings.limits.max_batch)
    return items


def _parsed(
    items: Sequence[Any], parse: Callable[[Mapping[str, Any]], C]
) -> tuple[dict[int, C], dict[int, ServiceError]]:
    """Valid items and faults, each by position."""
    valid: dict[int, C] = {}
    faults: dict[int, ServiceError] = {}
    for position, item in enumerate(items):
        try:
            if not isinstance(item, dict):
                raise RequestInvalid([{"pointer": "", "detail": "must be a JSON object"}])
            valid[position] = parse(item)
        except ServiceError as error:
            faults[position] = error
    return valid, faults


def _by_position(
    total: int, faults: Mapping[int, ServiceError], done: Mapping[int, O | ServiceError]
) -> list[O | ServiceError]:
    return [faults[n] if n in faults else done[n] for n in range(total)]
