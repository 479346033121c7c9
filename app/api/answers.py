"""Answers: one serialisation, by pydantic's core, of what the store read."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response


def answer(
    model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The model as JSON. Never cached: what it says may be past a moment later."""
    return Response(
        model.__pydantic_serializer__.to_json(model),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        "application/json",
    )
