"""Request bodies: read within limits, parsed once by our own rules, validated once.

Routes take the request and not a model, so that nothing is read before the caller is known and a
number or a nesting that would blow up later is met at the door. The models still stand in the
OpenAPI document: `documented` notes them for `api/openapi.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from app.domain import jsontext
from app.domain.errors import (
    BodyTooLarge,
    ContentEncodingUnsupported,
    RequestInvalid,
    ServiceError,
)
from app.domain.masking import Masker

M = TypeVar("M", bound=BaseModel)
_MASKER = Masker()
_PLAIN_NAME = 16
"""Names up to this length are shown as they are; no token is as short."""

DOCUMENTED: dict[str, type[BaseModel]] = {}
"""Body models by schema name, filled as routes are declared."""


def documented(model: type[BaseModel], example: Mapping[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is this model."""
    DOCUMENTED[model.__name__] = model
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": f"#/components/schemas/{model.__name__}"},
                    "example": dict(example),
                }
            },
        }
    }


async def read_bytes(
    request: Request, limit: int, too_large: type[ServiceError] = BodyTooLarge
) -> bytes:
    """The whole body, at most `limit` bytes. Raises `too_large` before it reads more."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(limit_bytes=limit)
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise too_large(limit_bytes=limit)
            pieces.append(piece)
    except ClientDisconnect:
        raise RequestInvalid([], "The request ended before its body did.") from None
    return b"".join(pieces)


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The body as a JSON object. An empty body is an empty object."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ContentEncodingUnsupported
    body = await read_bytes(request, limit)
    if not body.strip():
        return {}
    value = jsontext.parse(body)
    if not isinstance(value, dict):
        raise RequestInvalid([{"pointer": "", "detail": "must be a JSON object"}])
    return value


def validate(model: type[M], fields: Mapping[str, Any], given: Mapping[str, Any] = {}) -> M:
    """The command that `fields` make, together with what path and headers gave.

    Raises RequestInvalid with a pointer for each fault. A body cannot override the path.
    """
    doubled = [name for name in given if name in fields]
    if doubled:
        raise RequestInvalid(
            [
                {"pointer": f"/{name}", "detail": "is given by the path or a header"}
                for name in doubled
            ]
        )
    try:
        return model.model_validate({**fields, **given})
    except ValidationError as error:
        raise RequestInvalid(faults(error)) from None


def faults(error: ValidationError) -> list[dict[str, str]]:
    """What is wrong, as JSON pointers (RFC 6901) and sentences, without the input."""
    return [
        {
            "pointer": pointer(detail["loc"]),
            "detail": detail["msg"].removeprefix("Value error, "),
        }
        for detail in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def pointer(location: tuple[int | str, ...]) -> str:
    """A JSON pointer to a place in the body."""
    return "".join(f"/{_shown(part)}" for part in location)


def _shown(part: int | str) -> str:
    """One step of a pointer; a name that its sender chose may be a secret."""
    if isinstance(part, int) or part.isidentifier():
        name = str(part)
        if len(name) <= _PLAIN_NAME:
            return name
    masked, _ = _MASKER.mask_text(str(part))
    return masked[:100].replace("~", "~0").replace("/", "~1")
