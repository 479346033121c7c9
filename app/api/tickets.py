"""How a ticket is told to its holder, with signed addresses while there is something to send."""

from __future__ import annotations

from uuid import UUID

from app.api.schemas.artifacts import ArtifactTicket, SignedRequest, UploadPart
from app.domain.lifecycle import UploadMethod
from app.handlers.verification import part_sizes
from app.objects.signing import Signed
from app.services import Services
from app.store.uploads import Ticket


async def told(services: Services, lease_id: UUID, ticket: Ticket) -> ArtifactTicket:
    """The ticket as its holder is told of it, with addresses while there is something to send."""
    wanted = ticket.verified_at is None and ticket.closed_reason is None
    direct = {UploadMethod.SINGLE, UploadMethod.SERVICE}
    small = ticket.byte_size <= services.settings.limits.max_artifact_body_bytes
    path = f"/v1/leases/{lease_id}/artifacts/{ticket.id}/content"
    upload = None
    if wanted and ticket.method is UploadMethod.SINGLE:
        upload = _request(
            await services.objects.signer.sign_put(
                ticket.key, ticket.content_type, ticket.byte_size, ticket.sha256
            )
        )
    return ArtifactTicket(
        artifact_id=ticket.id,
        name=ticket.name,
        content_type=ticket.content_type,
        digest=ticket.digest,
        byte_size=ticket.byte_size,
        retention_class=ticket.retention_class,
        method=ticket.method,
        verified=ticket.verified_at is not None or ticket.method is UploadMethod.KNOWN,
        recorded=ticket.closed_reason is not None,
        upload=upload,
        parts=await _parts(services, ticket) if wanted else [],
        content_path=path if wanted and small and ticket.method in direct else None,
        url_seconds=services.settings.objects.url_seconds,
    )


async def _parts(services: Services, ticket: Ticket) -> list[UploadPart]:
    if ticket.method is not UploadMethod.PARTS or ticket.upload_id is None:
        return []
    parts: list[UploadPart] = []
    offset = 0
    for number, size in enumerate(part_sizes(ticket), 1):
        signed = await services.objects.signer.sign_part(ticket.key, ticket.upload_id, number, size)
        parts.append(
            UploadPart(part_number=number, offset=offset, byte_size=size, request=_request(signed))
        )
        offset += size
    return parts


def _request(signed: Signed) -> SignedRequest:
    return SignedRequest(method=signed.method, url=signed.url, headers=signed.headers)
