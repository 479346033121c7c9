"""Routes of artifacts, outputs and evidence: runners upload and record, others read."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import Response

from app.api import paging
from app.api.answers import answer
from app.api.bodies import documented, read_bytes, read_object, validate
from app.api.downloads import CONTENT, content
from app.api.examples import RECORD_EVIDENCE, RECORD_OUTPUT, UPLOAD_ARTIFACT
from app.api.identity import require, services_of
from app.api.runner import NO_TOKEN, LeaseId, LeaseToken
from app.api.schemas.artifacts import (
    ArtifactTicket,
    EvidencePage,
    OutputPage,
    RecordedEvidence,
    RecordedOutput,
)
from app.api.tickets import told
from app.domain.commands import FindArtifact, RecordEvidence, RecordOutput, UploadArtifact
from app.domain.errors import PageTokenInvalid
from app.domain.records import Artifact
from app.handlers import artifacts as artifact_handlers
from app.handlers import attempts as attempt_handlers
from app.handlers import recordings, uploads
from app.store import evidence, outputs

writes = APIRouter(prefix="/v1", tags=["runners"], dependencies=[Depends(require("runner"))])
reads = APIRouter(
    prefix="/v1",
    tags=["artifacts"],
    dependencies=[Depends(require("control-plane", "operator"))],
)

ArtifactId = Annotated[UUID, Path(description="The artifact.")]
AttemptId = Annotated[UUID, Path(description="The attempt.")]

_VERIFY_SECONDS = 30.0
_REPLAYED = {"Idempotent-Replayed": "true"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@writes.post(
    "/leases/{lease_id}/artifacts",
    name="leases_upload_artifact",
    response_model=ArtifactTicket,
    status_code=201,
    responses={200: {"model": ArtifactTicket, "description": "The same ticket, renewed."}},
    openapi_extra=documented(UploadArtifact, UPLOAD_ARTIFACT),
)
async def upload_artifact(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Ask to upload the body of an artifact: a ticket, with signed addresses for its bytes.

    The same `request_id` again gives the same ticket with fresh addresses. What the operation has
    already, by its digest, needs no upload. A ticket that nothing names is closed a day after its
    lease has ended, and its object removed.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(UploadArtifact, fields, _proof(lease_id, lease_token))
    issued = await uploads.issue_ticket(services, command)
    ticket = await told(services, lease_id, issued.ticket)
    return answer(ticket, 200, _REPLAYED) if issued.replayed else answer(ticket, 201)


@writes.put(
    "/leases/{lease_id}/artifacts/{artifact_id}/content",
    name="leases_upload_artifact_content",
    response_model=ArtifactTicket,
    openapi_extra=_BODY,
)
async def upload_content(
    request: Request,
    lease_id: LeaseId,
    artifact_id: ArtifactId,
    lease_token: LeaseToken = NO_TOKEN,
) -> Response:
    """Send a small body through this service, for runners that cannot reach the store.

    A body without the announced size and digest is refused with 422, and the ticket stays open.
    """
    services = services_of(request)
    command = validate(FindArtifact, {}, _named(lease_id, artifact_id, lease_token))
    limit = services.settings.limits.max_artifact_body_bytes
    ticket = await uploads.upload_body(services, command, lambda: read_bytes(request, limit))
    return answer(await told(services, lease_id, ticket))


@writes.post(
    "/leases/{lease_id}/artifacts/{artifact_id}:verify",
    name="leases_verify_artifact",
    response_model=ArtifactTicket,
)
async def verify_artifact(
    request: Request,
    lease_id: LeaseId,
    artifact_id: ArtifactId,
    lease_token: LeaseToken = NO_TOKEN,
) -> Response:
    """Finish an upload and verify it, before something names it. Never needed, but of use.

    A large body that came in parts is hashed once; while that lasts the answer is 503
    `artifact-verifying`, and so it is for an output or evidence that names it.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(FindArtifact, fields, _named(lease_id, artifact_id, lease_token))
    ticket = await uploads.verify_artifact(services, command, _VERIFY_SECONDS)
    return answer(await told(services, lease_id, ticket))


@writes.get(
    "/leases/{lease_id}/artifacts/{artifact_id}/content",
    name="leases_read_artifact",
    response_class=Response,
    responses=CONTENT,
)
async def read_for_lease(
    request: Request,
    lease_id: LeaseId,
    artifact_id: ArtifactId,
    lease_token: LeaseToken = NO_TOKEN,
) -> Response:
    """Read an artifact of the same operation, such as the plan that this job is to apply."""
    services = services_of(request)
    command = validate(FindArtifact, {}, _named(lease_id, artifact_id, lease_token))
    return await content(request, await artifact_handlers.readable_for_lease(services, command))


@writes.post(
    "/leases/{lease_id}/outputs",
    name="leases_record_output",
    response_model=RecordedOutput,
    status_code=201,
    responses={200: {"model": RecordedOutput, "description": "It was recorded before."}},
    openapi_extra=documented(RecordOutput, RECORD_OUTPUT),
)
async def record_output(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Record an output: an artifact under a name that is written once within the attempt.

    The same again is 200 with `Idempotent-Replayed: true`, another one of that name 409
    `output-conflict`. One whose artifact cannot be verified is refused, and costs nothing else.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(RecordOutput, fields, _proof(lease_id, lease_token))
    recorded = await recordings.record_output(services, command)
    stands = RecordedOutput(output=recorded.record)
    return answer(stands, 200, _REPLAYED) if recorded.replayed else answer(stands, 201)


@writes.post(
    "/leases/{lease_id}/evidence",
    name="leases_record_evidence",
    response_model=RecordedEvidence,
    status_code=201,
    responses={200: {"model": RecordedEvidence, "description": "It was recorded before."}},
    openapi_extra=documented(RecordEvidence, RECORD_EVIDENCE),
)
async def record_evidence(
    request: Request, lease_id: LeaseId, lease_token: LeaseToken = NO_TOKEN
) -> Response:
    """Append an evidence: what shows that a condition holds or does not.

    It may name an artifact, an output of the attempt, both or neither. The same `request_id` again
    is 200 with `Idempotent-Replayed: true`, for something else 409 `request-id-reused`.
    """
    services = services_of(request)
    fields = await read_object(request, services.settings.server.max_body_bytes)
    command = validate(RecordEvidence, fields, _proof(lease_id, lease_token))
    recorded = await recordings.record_evidence(services, command)
    stands = RecordedEvidence(evidence=recorded.record)
    return answer(stands, 200, _REPLAYED) if recorded.replayed else answer(stands, 201)


@reads.get("/artifacts/{artifact_id}", name="artifacts_get", response_model=Artifact)
async def get_artifact(request: Request, artifact_id: ArtifactId) -> Response:
    """Read what is recorded of an artifact."""
    return answer(await artifact_handlers.get_artifact(services_of(request), artifact_id))


@reads.get(
    "/artifacts/{artifact_id}/content",
    name="artifacts_read",
    response_class=Response,
    responses=CONTENT,
)
async def read_artifact(request: Request, artifact_id: ArtifactId) -> Response:
    """Read the body of an artifact, or where the store has it, with its digest.

    One `Range` of bytes is understood. A whole body is verified while it is read: one that no
    longer has its digest is 502, or breaks off before its end.
    """
    services = services_of(request)
    return await content(request, await artifact_handlers.readable_artifact(services, artifact_id))


@reads.get(
    "/attempts/{attempt_id}/outputs", name="attempts_list_outputs", response_model=OutputPage
)
async def list_outputs(
    request: Request,
    attempt_id: AttemptId,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List the outputs of an attempt. What a failed one got done is there too: see its status."""
    services = services_of(request)
    attempt = await attempt_handlers.get_attempt(services, attempt_id)
    filters = {"attempt_id": attempt_id}
    after = _name_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services.database.run(
        lambda conn: outputs.list_of_attempt(conn, attempt_id, after=after, limit=size + 1)
    )
    items = found[:size]
    token = paging.encode([items[-1].name], filters) if len(found) > size else None
    return answer(OutputPage(items=items, attempt_status=attempt.status, next_page_token=token))


@reads.get(
    "/attempts/{attempt_id}/evidence", name="attempts_list_evidence", response_model=EvidencePage
)
async def list_evidence(
    request: Request,
    attempt_id: AttemptId,
    page_size: paging.PageSize = 100,
    page_token: paging.PageToken = None,
) -> Response:
    """List the evidence of an attempt, in the order of its recording."""
    services = services_of(request)
    attempt = await attempt_handlers.get_attempt(services, attempt_id)
    filters = {"attempt_id": attempt_id}
    after = paging.time_place(paging.decode(page_token, filters))
    size = paging.bounded(page_size)
    found = await services.database.run(
        lambda conn: evidence.list_of_attempt(conn, attempt_id, after=after, limit=size + 1)
    )
    items = found[:size]
    token = None
    if len(found) > size:
        token = paging.encode([items[-1].recorded_at.isoformat(), items[-1].id], filters)
    return answer(EvidencePage(items=items, attempt_status=attempt.status, next_page_token=token))


def _proof(lease_id: UUID, lease_token: str) -> dict[str, Any]:
    return {"lease_id": lease_id, "lease_token": lease_token}


def _named(lease_id: UUID, artifact_id: UUID, lease_token: str) -> dict[str, Any]:
    return {**_proof(lease_id, lease_token), "artifact_id": artifact_id}


def _name_place(place: list[Any] | None) -> str | None:
    match place:
        case None:
            return None
        case [str() as name] if "\x00" not in name:
            return name
        case _:
            raise PageTokenInvalid
