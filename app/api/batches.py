"""Many commands in one request: each item is answered by position, as if it had come alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.examples import COMPLETE, CREATE_ATTEMPT, HEARTBEAT
from app.api.hot import HotRoute
from app.api.identity import require, services_of
from app.api.problems import answer_of, problem_body
from app.api.runner import live_answer
from app.api.schemas.batches import (
    AttemptItem,
    AttemptItems,
    LeaseItem,
    LeaseItems,
)
from app.api.schemas.runner import LeaseAnswer
from app.commands.attempts import Created, CreateRequest
from app.commands.leases import Completed
from app.domain.commands import (
    Command,
    CompleteLease,
    CreateAttempt,
    Heartbeat,
    StartLease,
)
from app.domain.errors import BatchTooLarge, RequestInvalid, ServiceError
from app.handlers import attempts, lease_batches
from app.handlers.leases import completion_as_sent

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


class StartOfLease(StartLease):
    """A start that names its lease itself."""


class StartBatch(Command):
    """Starts of leases."""

    starts: Annotated[list[StartOfLease], Field(min_length=1, max_length=500)]
    """At most 500; each with its `lease_id` and `lease_token`."""


class CompletionOfLease(CompleteLease):
    """A completion that names its lease itself."""


class CompletionBatch(Command):
    """Completions of leases."""

    completions: Annotated[list[CompletionOfLease], Field(min_length=1, max_length=500)]
    """At most 500; each with its `lease_id` and `lease_token`."""


_PROOF_EXAMPLE = {
    "lease_id": "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b03",
    "lease_token": "lt_…",
}
_HEARTBEAT_EXAMPLE = {**_PROOF_EXAMPLE, **HEARTBEAT}
_COMPLETION_EXAMPLE = {**_PROOF_EXAMPLE, **COMPLETE}


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

    def parse(item: Mapping[str, Any]) -> CreateRequest:
        command = validate(CreateAttempt, item)
        attempts.check_create(services, command)
        return CreateRequest(command, item)

    outcomes = await _outcomes(
        request, "attempts", parse, partial(attempts.create_attempts, services)
    )
    return answer(AttemptItems(items=[_attempt_item(request, one, 201) for one in outcomes]))


@runner.post(
    "/leases:start",
    name="leases_start_many",
    response_model=LeaseItems,
    openapi_extra=documented(StartBatch, {"starts": [_PROOF_EXAMPLE]}),
)
async def start_many(request: Request) -> Response:
    """Begin the work of many leases; `items` answers them by position.

    Only what is answered with 200 may be begun. Send this while less than half a lease has passed
    since the claim, as for a single start.
    """
    services = services_of(request)

    async def start(commands: Sequence[StartLease]) -> list[LeaseAnswer | ServiceError]:
        outcomes = await lease_batches.start_leases(services, commands)
        return [
            one
            if isinstance(one, ServiceError)
            else live_answer(services, command.lease_id, one.attempt)
            for command, one in zip(commands, outcomes, strict=True)
        ]

    outcomes = await _outcomes(request, "starts", partial(validate, StartLease), start)
    return answer(LeaseItems(items=[_lease_item(request, one) for one in outcomes]))


@runner.post(
    "/leases:heartbeat",
    name="leases_heartbeat_many",
    response_model=LeaseItems,
    openapi_extra=documented(HeartbeatBatch, {"heartbeats": [_HEARTBEAT_EXAMPLE]}),
)
async def heartbeat_many(request: Request) -> Response:
    """Show signs of life for many leases; `items` answers them by position."""
    services = services_of(request)

    async def beat(commands: Sequence[Heartbeat]) -> list[LeaseAnswer | ServiceError]:
        return [
            one if isinstance(one, ServiceError) else live_answer(services, one.lease_id, one)
            for one in await lease_batches.heartbeats(services, commands)
        ]

    outcomes = await _outcomes(request, "heartbeats", partial(validate, Heartbeat), beat)
    return answer(LeaseItems(items=[_lease_item(request, one) for one in outcomes]))


@runner.post(
    "/leases:complete",
    name="leases_complete_many",
    response_model=AttemptItems,
    openapi_extra=documented(CompletionBatch, {"completions": [_COMPLETION_EXAMPLE]}),
)
async def complete_many(request: Request) -> Response:
    """Say how the work of many leases ended; `items` answers them by position.

    Each is final, and may be repeated alone or in a batch.
    """

    def parse(item: Mapping[str, Any]) -> tuple[CompleteLease, Mapping[str, Any]]:
        return validate(CompleteLease, item), completion_as_sent(item)

    outcomes = await _outcomes(
        request,
        "completions",
        parse,
        partial(lease_batches.complete_leases, services_of(request)),
    )
    return answer(AttemptItems(items=[_attempt_item(request, one, 200) for one in outcomes]))


def _attempt_item(
    request: Request, outcome: Created | Completed | ServiceError, done: int
) -> AttemptItem:
    """One item; `done` is the status of what had not been done before."""
    if isinstance(outcome, ServiceError):
        return AttemptItem(**_refused(request, outcome), attempt=None, replayed=False)
    return AttemptItem(
        status=200 if outcome.replayed else done,
        attempt=outcome.attempt,
        replayed=outcome.replayed,
        problem=None,
    )


def _lease_item(request: Request, outcome: LeaseAnswer | ServiceError) -> LeaseItem:
    if isinstance(outcome, ServiceError):
        return LeaseItem(**_refused(request, outcome), lease=None)
    return LeaseItem(status=200, lease=outcome, problem=None)


def _refused(request: Request, error: ServiceError) -> dict[str, Any]:
    problem = problem_body(error, request.state.request_id)
    return {"status": answer_of(error).status, "problem": problem}


async def _outcomes(
    request: Request,
    name: str,
    parse: Callable[[Mapping[str, Any]], C],
    carry_out: Callable[[Sequence[C]], Awaitable[Sequence[O | ServiceError]]],
) -> list[O | ServiceError]:
    """What became of each item of the batch, by position; what is invalid costs no other."""
    items = await _items(request, name)
    valid, outcomes = _parsed(items, parse)
    done = await carry_out(list(valid.values())) if valid else []
    known: dict[int, O | ServiceError] = {**outcomes, **dict(zip(valid, done, strict=True))}
    return [known[position] for position in range(len(items))]


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
