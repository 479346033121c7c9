"""The OpenAPI document: what the routes declare, plus the bodies that they read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.api.bodies import DOCUMENTED
from app.api.schemas.control import Problem

_REF = "#/components/schemas/{model}"
_FROM_PATH = {
    "RegisterRunner": ("runner_id",),
    "ReportStatus": ("runner_id",),
    "ClaimLeases": ("runner_id",),
    "CancelAttempt": ("attempt_id",),
    "CancelOperation": ("operation_id",),
    "Heartbeat": ("lease_id", "lease_token"),
    "ReleaseLease": ("lease_id", "lease_token"),
    "CompleteLease": ("lease_id", "lease_token"),
    "UploadArtifact": ("lease_id", "lease_token"),
    "RecordOutput": ("lease_id", "lease_token"),
    "RecordEvidence": ("lease_id", "lease_token"),
    "AppendLogMessage": ("lease_id", "lease_token", "stream"),
}
"""Fields that REST takes from the path or a header, and push from the message."""


def document(app: FastAPI, version: str) -> dict[str, Any]:
    """The document of this app, complete and deterministic."""
    spec = get_openapi(
        title="execution-plane-service",
        version=version,
        summary="The record of every technical execution.",
        description=(app.description or "").strip(),
        routes=app.routes,
        tags=app.openapi_tags,
    )
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    _, definitions = models_json_schema(
        [(model, "validation") for model in DOCUMENTED.values()] + [(Problem, "serialization")],
        ref_template=_REF,
    )
    schemas.update(definitions["$defs"])
    for name, fields in _FROM_PATH.items():
        _without(schemas[name], fields)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    spec["components"]["securitySchemes"] = {
        "identity": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "An OIDC identity token of an account that has the role.",
        }
    }
    for operations in spec["paths"].values():
        for operation in operations.values():
            _complete(operation)
    spec["components"]["schemas"] = dict(sorted(schemas.items()))
    return spec


def _without(schema: dict[str, Any], fields: tuple[str, ...]) -> None:
    for field in fields:
        schema["properties"].pop(field, None)
    schema["required"] = [name for name in schema.get("required", []) if name not in fields]


def _complete(operation: dict[str, Any]) -> None:
    """A title; every refusal is a problem; everything but health needs an identity."""
    first = operation["description"].split("\n\n")[0].replace("\n", " ")
    operation["summary"] = first.split(". ")[0].removesuffix(".")
    responses = operation["responses"]
    if responses.get("422", {}).get("description") == "Validation Error":
        del responses["422"]
    if "health" in operation.get("tags", []):
        return
    operation["security"] = [{"identity": []}]
    if "push" in operation.get("tags", []):
        return
    problem = {
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}}
    }
    for status, sentence in (
        ("401", "A valid identity token is required."),
        ("403", "This identity or lease token may not do that."),
        ("404", "There is no such thing."),
        ("409", "It is in a state that does not allow this; `reason` says which."),
        ("413", "Larger than this service accepts."),
        ("422", "Invalid; `errors` points to each fault."),
        ("503", "Not now: try again, after `Retry-After` seconds."),
    ):
        responses.setdefault(status, {"description": sentence, **problem})
