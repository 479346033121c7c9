"""The route by which runners append to a log: raw bytes, or JSON that also names what to mask."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import answer
from app.api.bodies import DOCUMENTED, validate
from app.api.encodings import read_decoded
from app.api.examples import APPEND_LOG
from app.api.identity import require, services_of
from app.api.runner import NO_TOKEN, LeaseId, LeaseToken, proof_of
from app.api.schemas.runner import LogPosition
from app.domain import jsontext
from app.domain.commands import AppendLog
from app.domain.errors import RequestInvalid
from app.domain.lifecycle import LogStream
from app.handlers import logs as log_handlers
from app.handlers.logs import AppendLogMessage

router = APIRouter(prefix="/v1", tags=["runners"], dependencies=[Depends(require("runner"))])

_JSON = "application/json"
_IN_A_THREAD_FROM = 64 * 1024
_BESIDE_THE_DATA = 1024 * 1024

DOCUMENTED[AppendLogMessage.__name__] = AppendLogMessage


@router.post(
    "/leases/{lease_id}/logs/{stream}",
    name="leases_append_log",
    response_model=LogPosition,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                _JSON: {
                    "schema": {"$ref": f"#/components/schemas/{AppendLogMessage.__name__}"},
                    "example": APPEND_LOG,
                },
            },
        }
    },
)
async def append_log(
    request: Request,
    lease_id: LeaseId,
    stream: Annotated[LogStream, Path(description="The stream.")],
    offset: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**53 - 1,
            description="Where the bytes begin in this stream; required unless the body is JSON.",
        ),
    ] = None,
    lease_token: LeaseToken = NO_TOKEN,
    final: Annotated[
        bool | None, Query(description="Nothing follows in this stream. Not with a JSON body.")
    ] = None,
) -> Response:
    """Append bytes to one stream of the lease's log. They are masked before they are stored.

    The body is raw bytes with `offset` (`Content-Encoding`: identity, gzip, zstd), or JSON, which
    can also name values to `mask`. Offsets count the raw bytes of one stream of one lease, from 0,
    unpacked and unmasked. A chunk is accepted up to the last place at which no secret can be split:
    go on from `next_offset`. `need_more`: there is no such place yet; send the same bytes again
    with more behind them, or `final`. 64 KiB are always accepted in part, `final` takes all.

    Bytes that are stored already are answered 200 with `next_offset`. A gap is 409 `log-gap` with
    the offset expected; other bytes at the same place 409 `log-conflict`. 413 `log-limit-reached`
    means: stop sending this log; the attempt is not affected.
    """
    services = services_of(request)
    limit = services.settings.limits.max_log_chunk_bytes
    query = {"offset": offset, "final": final}
    proof = {**proof_of(lease_id, lease_token), "stream": stream}
    command: AppendLog
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _JSON:
        body = await read_decoded(request, limit * 4 // 3 + _BESIDE_THE_DATA)
        given = {**proof, **{name: value for name, value in query.items() if value is not None}}
        command = await _from_json(body, given)
    else:
        if offset is None:
            raise RequestInvalid([{"pointer": "/query/offset", "detail": "is required"}])
        data = await read_decoded(request, limit)
        fields = {"offset": offset, "final": bool(final), "data": data}
        command = validate(AppendLog, fields, proof)
    position = await log_handlers.append_log(services, command)
    return answer(
        LogPosition(
            stream=stream,
            next_offset=position.next_offset,
            need_more=position.need_more,
            final=position.final,
            mask_refused=list(position.refused),
        )
    )


async def _from_json(body: bytes, given: dict[str, Any]) -> AppendLog:
    if len(body) < _IN_A_THREAD_FROM:
        return _parsed(body, given)
    return await asyncio.to_thread(_parsed, body, given)


def _parsed(body: bytes, given: dict[str, Any]) -> AppendLog:
    value = jsontext.parse(body)
    if not isinstance(value, dict):
        raise RequestInvalid([{"pointer": "", "detail": "must be a JSON object"}])
    return validate(AppendLogMessage, value, given)
