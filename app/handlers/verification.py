"""Verifies what was uploaded: nothing may point at a body that is not durable and as announced.

No network in a transaction: the store is asked between them, and each step may be repeated.
"""

from __future__ import annotations

from uuid import UUID

from app import failpoints
from app.domain.errors import ArtifactMismatch, ArtifactMissing, ArtifactVerifying
from app.domain.lifecycle import UploadEnd, UploadMethod
from app.objects.store import Head
from app.services import Services
from app.store import uploads
from app.store.uploads import Ticket


async def settle(services: Services, ticket: Ticket, wait_seconds: float) -> None:
    """Return when the ticket's object is durable and has the announced size and digest.

    Complete what came in parts, compare the size, and the digest where the store keeps it;
    otherwise hash the object, which may take longer than `wait_seconds`: ArtifactVerifying. A wrong
    one closes the ticket for good: ArtifactMismatch.
    """
    if ticket.verified_at is not None or ticket.closed_reason is not None:
        return
    head = await _durable(services, ticket)
    if failpoints.ARMED:
        await failpoints.hit("output.after_head")
    sha256 = head.sha256
    if head.byte_size == ticket.byte_size and sha256 is None:
        if ticket.method is UploadMethod.KNOWN:
            sha256 = ticket.sha256  # verified when its first row was recorded
        else:
            hashed = await services.objects.hashing.hash(ticket.key, wait_seconds)
            if hashed is None:
                raise ArtifactVerifying
            sha256 = hashed.sha256
    if head.byte_size != ticket.byte_size or sha256 != ticket.sha256:
        await services.database.run(lambda conn: uploads.close(conn, ticket.id, UploadEnd.MISMATCH))
        raise ArtifactMismatch(expected_bytes=ticket.byte_size, received_bytes=head.byte_size)
    await services.database.run(lambda conn: uploads.mark_verified(conn, ticket))
    if failpoints.ARMED:
        await failpoints.hit("artifact.after_verify")


async def _durable(services: Services, ticket: Ticket) -> Head:
    """The object as the store has it. Raises ArtifactMissing."""
    if ticket.method is UploadMethod.PARTS:
        await _complete(services, ticket)
    head = await services.objects.head(ticket.key)
    if head is None:
        raise ArtifactMissing
    return head


async def _complete(services: Services, ticket: Ticket) -> None:
    """Make one object of the parts. An upload that is not there was completed before."""
    if ticket.upload_id is None:
        raise ArtifactMissing
    multipart = services.objects.multipart
    parts = await multipart.list_parts(ticket.key, ticket.upload_id)
    if parts is None:
        return
    expected = part_sizes(ticket)
    if [part.part_number for part in parts] != list(range(1, len(expected) + 1)):
        raise ArtifactMissing(
            f"{len(parts)} of {len(expected)} parts have arrived; upload the others first."
        )
    if [part.byte_size for part in parts] == expected:
        await multipart.complete(ticket.key, ticket.upload_id, parts)
        return
    await services.database.run(lambda conn: uploads.close(conn, ticket.id, UploadEnd.MISMATCH))
    await multipart.abort(ticket.key, ticket.upload_id)
    received = sum(part.byte_size for part in parts)
    raise ArtifactMismatch(expected_bytes=ticket.byte_size, received_bytes=received)


def part_sizes(ticket: Ticket) -> list[int]:
    """The sizes of the parts in which the body comes."""
    size = ticket.part_bytes or ticket.byte_size
    whole, rest = divmod(ticket.byte_size, size) if size else (0, 0)
    return [size] * whole + ([rest] if rest else [])


async def settle_ticket(
    services: Services, attempt_id: UUID, artifact_id: UUID, wait_seconds: float
) -> None:
    """Verify what is a ticket yet. An id of anything else is judged where it is pointed at."""
    ticket = await services.database.run(lambda conn: uploads.find(conn, artifact_id, attempt_id))
    if ticket is not None:
        await settle(services, ticket, wait_seconds)
