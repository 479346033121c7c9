"""Routes of operators: dead letters, and the documents that handlers keep."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging, redrives
from app.api.answers import answer
from app.api.bodies import documented, read_object, validate
from app.api.identity import require, services_of
from app.api.redrives import Redrive
from app.api.schemas.dead_letters import (
    DeadLetter,
    DeadLetterPage,
    PutState,
    RedriveLetter,
    StateDocument,
)
from app.domain import jsontext
from app.domain.commands import GiveReason
from app.domain.errors import PreconditionMissing, ServiceError
from app.handlers import states
from app.handlers.masks import masked_fields, refuse_secrets
from app.handlers.states import Document
from app.store import dead_letters
from app.store.dead_letters import Letter, State

_LOG = structlog.get_logger(__name__)
_MAX_DOCUMENT_BYTES = 256 * 1024
_EXAMPLE_REDRIVE = {"request_id": "0b0a5c2e-9a3f-4d55-8d61-8a3f3c1d9f10"}

router = APIRouter(prefix="/v1", tags=["operators"], dependencies=[Depends(require("operator"))])

Reason = Annotated[
    str | None, Query(pattern=r"^[a-z-]{1,100}$", description="Only those given up for this.")
]
HandlerName = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9_.-]{1,128}$", description="Only those for this handler."),
]
LetterId = Annotated[UUID, Path(description="The dead letter.")]
Key = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,200}$", description="The document's key.")]
Tag = Annotated[
    str | None, Header(max_length=100, description='The `ETag` of the version to replace: `"7"`.')
]
NoTag = Annotated[str | None, Header(max_length=100, description="`*`: only if there is none yet.")]


@router.get("/dead-letters", name="letters_list", response_model=DeadLetterPage)
async def list_letters(
    request: Request,
    reason: Reason = None,
    handler: HandlerName = None,
    state: Annotated[State | None, Query(description="Only those in this state.")] = None,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List messages that could not be processed, those that failed last first."""
    filters = {"reason": reason, "handler": handler, "state": state}
    before = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services_of(request).database.run(
        lambda conn: dead_letters.list_letters(
            conn, reason=reason, handler=handler, state=state, before=before, limit=size + 1
        )
    )
    token = None
    if len(found) > size:
        last = found[size - 1]
        token = paging.encode([last.first_at.isoformat(), last.id], filters)
    items = [_shown(letter) for letter in found[:size]]
    return answer(DeadLetterPage(items=items, next_page_token=token))


def _shown(letter: Letter) -> DeadLetter:
    payload = None
    if letter.payload is not None:
        payload = jsontext.map_text(json.loads(letter.payload), jsontext.clean)
    return DeadLetter.model_validate({**asdict(letter), "state": letter.state, "payload": payload})


@router.get("/dead-letters/{letter_id}", name="letters_get", response_model=DeadLetter)
async def get_letter(request: Request, letter_id: LetterId) -> Response:
    """Read one dead letter."""
    return answer(_shown(await redrives.get_letter(services_of(request), letter_id)))


@router.post(
    "/dead-letters/{letter_id}:redrive",
    name="letters_redrive",
    response_model=DeadLetter,
    openapi_extra=documented(RedriveLetter, _EXAMPLE_REDRIVE),
)
async def redrive(request: Request, letter_id: LetterId) -> Response:
    """Send the message to its handler again, with its effect exactly once.

    A repeat with the same `request_id` gets the same answer. 409 `not-redrivable`: what is kept is
    not the whole message; 409 `already-closed`: somebody redrove or discarded it. Any other refusal
    is the handler's, and the dead letter stays open.
    """
    services = services_of(request)
    given = validate(
        RedriveLetter, await read_object(request, services.settings.server.max_body_bytes)
    )
    account = request.state.identity.account
    asked = Redrive(letter_id, given.request_id, account)
    closed = services.metrics.dead_letters_closed
    try:
        letter = await redrives.redrive(services, request.app.state.dispatcher, asked)
    except ServiceError:
        closed.labels("redrive-failed").inc()
        raise
    closed.labels("redriven").inc()
    _LOG.info("dead_letter.redriven", id=str(letter_id), by=account, outcome=letter.redrive_outcome)
    return answer(_shown(letter))


@router.post(
    "/dead-letters/{letter_id}:discard",
    name="letters_discard",
    response_model=DeadLetter,
    openapi_extra=documented(GiveReason, {"reason": "published again with the field corrected"}),
)
async def discard(request: Request, letter_id: LetterId) -> Response:
    """Close a dead letter without any effect. It stays readable until its time is over."""
    services = services_of(request)
    given = validate(
        GiveReason, await read_object(request, services.settings.server.max_body_bytes)
    )
    given, _ = await masked_fields(services, given, "reason", "reason")
    account = request.state.identity.account
    letter = await redrives.discard(services, letter_id, account)
    services.metrics.dead_letters_closed.labels("discarded").inc()
    _LOG.warning("dead_letter.discarded", id=str(letter_id), by=account, reason=given.reason)
    return answer(_shown(letter))


# --- state documents -----------------------------------------------------------------------------


@router.get("/state/{key}", name="state_get", response_model=StateDocument)
async def get_state(request: Request, key: Key) -> Response:
    """Read a state document and, as `ETag`, its version."""
    return _stored(await states.get_state(services_of(request), key), 200)


@router.put(
    "/state/{key}",
    name="state_put",
    response_model=StateDocument,
    openapi_extra=documented(PutState, {"document": {"window": "nightly"}}),
)
async def put_state(
    request: Request, key: Key, if_match: Tag = None, if_none_match: NoTag = None
) -> Response:
    """Store a state document: in place of the version that `If-Match` names, or as the first one.

    422 `secret-in-request`: it is kept as it is, so it must not hold secrets;
    412 `state-changed`: there is another version; 428 `precondition-missing`: neither header. A
    document that holds what looks like a secret is refused.
    """
    version = _expected(if_match, if_none_match)
    services = services_of(request)
    given = validate(PutState, await read_object(request, _MAX_DOCUMENT_BYTES))
    refuse_secrets(services, key=key, document=given.document)
    stored = await states.put_state(services, key, given.document, version)
    return _stored(stored, 201 if version is None else 200)


def _expected(if_match: str | None, if_none_match: str | None) -> int | None:
    """The version to replace; None for the first one. A tag that is not ours matches nothing."""
    if if_match is None and if_none_match == "*":
        return None
    if if_match is None or if_none_match is not None or if_match == "*":
        raise PreconditionMissing
    digits = if_match.removeprefix('"').removesuffix('"')
    ours = if_match == f'"{digits}"' and digits.isascii() and digits.isdecimal()
    return int(digits) if ours and len(digits) <= 18 else 0  # noqa: PLR2004 - fits a bigint


def _stored(document: Document, status: int) -> Response:
    tag = {"ETag": f'"{document.version}"'}
    return answer(StateDocument.model_validate(asdict(document)), status, tag)
