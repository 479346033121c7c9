"""Tickets: what a runner is told to upload and how, and how its body is verified.

No network in a transaction: the store is asked between them, and each step may be repeated.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from app import failpoints
from app.commands.leases import key_of, refusal
from app.commands.recordings import closed_fact
from app.domain.commands import MAX_NAME_LENGTH, FindArtifact, UnderLease, UploadArtifact
from app.domain.errors import (
    ArtifactLimitReached,
    ArtifactMismatch,
    ArtifactNotFound,
    ArtifactTooLarge,
    LeaseNotFound,
    LeaseTokenInvalid,
    OutcomeUnknown,
    RequestIdReused,
    ServiceError,
)
from app.domain.ids import new_id
from app.domain.lifecycle import UploadMethod
from app.handlers.counting import counted
from app.handlers.masks import Kinds, leaks_in, masked_fields
from app.handlers.verification import settle
from app.services import Services
from app.store import artifacts, diagnoses, uploads
from app.store.database import Connection
from app.store.leaks import note
from app.store.uploads import NewTicket, Place, Ticket

ISSUE = "artifact.issue"
UPLOAD = "artifact.upload"
VERIFY = "artifact.verify"

_MOST_PARTS = 1000
_MEBIBYTE = 1024 * 1024
_ANY_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Issued:
    """A ticket, and whether the request had got it before."""

    ticket: Ticket
    replayed: bool


async def issue_ticket(services: Services, command: UploadArtifact) -> Issued:
    """The ticket of this request, made once; a repeat is how its addresses are renewed.

    Raises ArtifactTooLarge, ArtifactLimitReached, RequestIdReused, what closed the ticket, or the
    fact that stands against the lease.
    """
    with counted(services.metrics, ISSUE):
        limits = services.settings.limits
        if command.byte_size > limits.max_artifact_bytes:
            raise ArtifactTooLarge(limit_bytes=limits.max_artifact_bytes)
        command, kinds = await _masked(services, command)
        place = await live_place(services, command)
        known = await _find_by_request(services, place, command)
        if known is not None:
            return Issued(await _renewed(services, command, place, known), replayed=True)
        if place.tickets >= limits.max_artifacts_per_attempt:
            raise ArtifactLimitReached(limit=limits.max_artifacts_per_attempt)
        known_key = await _find_known(services, command, place)
        ticket = await _issue(services, command, kinds, known_key)
        if failpoints.ARMED:
            await failpoints.hit("artifact.ticket")
        if ticket is not None:
            return Issued(await _with_upload(services, ticket), replayed=False)
        known = await _find_by_request(services, place, command)
        if known is None:
            raise OutcomeUnknown
        return Issued(await _renewed(services, command, place, known), replayed=True)


async def _masked(services: Services, command: UploadArtifact) -> tuple[UploadArtifact, Kinds]:
    masked, kinds = await masked_fields(services, command, "artifact", "name", "content_type")
    changed = {"name": masked.name and masked.name[:MAX_NAME_LENGTH]}
    if masked.content_type != command.content_type:
        changed["content_type"] = _ANY_TYPE  # a masked one is none
    return masked.model_copy(update=changed), kinds


async def live_place(services: Services, command: UnderLease) -> Place:
    """The lease's attempt. Raises what stands against the lease, if it does not live."""
    place = await find_place(services, command)
    if not place.live:
        key = key_of(command)
        found = await services.database.run(lambda conn: diagnoses.diagnose(conn, [key.lease_id]))
        raise refusal(key, found.get(key.lease_id))
    return place


async def find_place(services: Services, command: UnderLease) -> Place:
    """The lease's attempt, alive or not. Raises LeaseNotFound or LeaseTokenInvalid."""
    key = key_of(command)
    place = await services.database.run(lambda conn: uploads.look(conn, key))
    if place is None:
        raise LeaseNotFound
    if not place.token_fits:
        raise LeaseTokenInvalid
    return place


async def _find_by_request(
    services: Services, place: Place, command: UploadArtifact
) -> Ticket | None:
    return await services.database.run(
        lambda conn: uploads.find_by_request(conn, place.attempt_id, command.request_id)
    )


async def _find_known(services: Services, command: UploadArtifact, place: Place) -> str | None:
    """The key of an object of this operation that has these bytes, and is really there."""
    settings = services.settings.objects
    key = await services.database.run(
        lambda conn: artifacts.find_known(
            conn,
            place.operation_id,
            command.digest,
            command.byte_size,
            command.retention_class,
            (settings.storage, settings.bucket),
        )
    )
    if key is None:
        return None
    head = await services.objects.head(key)
    return key if head is not None and head.byte_size == command.byte_size else None


async def _issue(
    services: Services, command: UploadArtifact, kinds: Kinds, known_key: str | None
) -> Ticket | None:
    """Make the ticket; None: another try of this request has just made it."""
    settings = services.settings.objects
    method, part_bytes = _method_of(services, command.byte_size)
    if known_key is not None:
        method, part_bytes = UploadMethod.KNOWN, None
    new = NewTicket(
        id=new_id(),
        request_id=command.request_id,
        name=command.name,
        storage=settings.storage,
        bucket=settings.bucket,
        prefix=settings.prefix,
        content_type=command.content_type,
        digest=command.digest,
        byte_size=command.byte_size,
        retention_class=command.retention_class,
        method=method,
        part_bytes=part_bytes,
        known_key=known_key,
    )
    key, leaks = key_of(command), leaks_in(command, kinds, "artifact")

    async def issue(conn: Connection) -> Ticket | ServiceError | None:
        if leaks:
            await note(conn, leaks)
        lives, ticket = await uploads.issue_once(conn, key, new, services.terms.lease_time)
        if lives:
            return ticket
        return refusal(key, (await diagnoses.diagnose(conn, [key.lease_id])).get(key.lease_id))

    outcome = await services.database.run(issue)
    if isinstance(outcome, ServiceError):
        raise outcome
    return outcome


def _method_of(services: Services, byte_size: int) -> tuple[UploadMethod, int | None]:
    """How a body of this size comes into this store, and the size of its parts.

    What cannot be bound to its digest comes through this service or in parts: an object made of
    parts cannot be written again under its address after it was verified.
    """
    settings, limits = services.settings.objects, services.settings.limits
    if services.objects.signer.binds_content:
        if byte_size <= settings.single_put_bytes:
            return UploadMethod.SINGLE, None
    elif byte_size <= limits.max_artifact_body_bytes:
        return UploadMethod.SERVICE, None
    least = -(-byte_size // _MOST_PARTS)
    rounded = -(-least // _MEBIBYTE) * _MEBIBYTE
    return UploadMethod.PARTS, max(settings.part_bytes, rounded)


async def _renewed(
    services: Services, command: UploadArtifact, place: Place, ticket: Ticket
) -> Ticket:
    """The ticket of a repeated request. An object that it counted on may have gone since."""
    asked = (command.name, command.content_type, command.digest, command.byte_size)
    if asked != (ticket.name, ticket.content_type, ticket.digest, ticket.byte_size) or (
        command.retention_class != ticket.retention_class
    ):
        raise RequestIdReused
    fact = closed_fact(ticket.closed_reason)
    if fact is not None:
        raise fact
    if ticket.closed_reason is not None:
        return ticket
    if ticket.method is UploadMethod.KNOWN and await _find_known(services, command, place) is None:
        method, part_bytes = _method_of(services, ticket.byte_size)
        prefix = services.settings.objects.prefix
        changed = await services.database.run(
            lambda conn: uploads.give_own_key(conn, ticket.id, method, part_bytes, prefix)
        )
        ticket = changed or await _find(services, ticket.id, ticket.attempt_id)
    return await _with_upload(services, ticket)


async def _with_upload(services: Services, ticket: Ticket) -> Ticket:
    """The ticket, with the store's upload begun where it is uploaded in parts."""
    if ticket.method is not UploadMethod.PARTS or ticket.upload_id is not None:
        return ticket
    multipart = services.objects.multipart
    upload_id = await multipart.begin(ticket.key, ticket.content_type)
    noted = await services.database.run(
        lambda conn: uploads.note_upload_once(conn, ticket.id, upload_id)
    )
    if noted is not None:
        return noted
    await multipart.abort(ticket.key, upload_id)
    return await _find(services, ticket.id, ticket.attempt_id)


async def _find(services: Services, ticket_id: UUID, attempt_id: UUID) -> Ticket:
    ticket = await services.database.run(lambda conn: uploads.find(conn, ticket_id, attempt_id))
    if ticket is None:
        raise ArtifactNotFound
    return ticket


async def get_ticket(services: Services, command: FindArtifact) -> Ticket:
    """A ticket of the lease's attempt, open or recorded, while the lease lives.

    Raises ArtifactNotFound, what closed it otherwise, or what stands against the lease.
    """
    place = await live_place(services, command)
    ticket = await _find(services, command.artifact_id, place.attempt_id)
    fact = closed_fact(ticket.closed_reason)
    if fact is not None:
        raise fact
    return ticket


async def upload_body(
    services: Services, command: FindArtifact, read: Callable[[], Awaitable[bytes]]
) -> Ticket:
    """Store a small body under its ticket. `read` is called once it is known to be wanted.

    Raises ArtifactMismatch (the ticket stays open), ArtifactTooLarge for one that comes in parts.
    """
    with counted(services.metrics, UPLOAD):
        ticket = await get_ticket(services, command)
        if ticket.method is UploadMethod.PARTS:
            limit = services.settings.limits.max_artifact_body_bytes
            raise ArtifactTooLarge(
                "Upload this artifact in the parts of its ticket.", limit_bytes=limit
            )
        data = await read()
        sha256 = hashlib.sha256(data)
        if len(data) != ticket.byte_size or sha256.hexdigest() != ticket.sha256:
            raise ArtifactMismatch(expected_bytes=ticket.byte_size, received_bytes=len(data))
        if ticket.verified_at is None and ticket.method is not UploadMethod.KNOWN:
            checksum = base64.b64encode(sha256.digest()).decode()
            await services.objects.put_at(ticket.key, data, checksum, ticket.content_type)
            if failpoints.ARMED:
                await failpoints.hit("artifact.after_put")
            await services.database.run(lambda conn: uploads.mark_verified(conn, ticket))
        return await _find(services, ticket.id, ticket.attempt_id)


async def verify_artifact(services: Services, command: FindArtifact, wait_seconds: float) -> Ticket:
    """Finish an upload and verify it; after this it can be recorded at once.

    Raises ArtifactMissing, ArtifactMismatch, or ArtifactVerifying when it takes longer.
    """
    with counted(services.metrics, VERIFY):
        ticket = await get_ticket(services, command)
        await settle(services, ticket, wait_seconds)
        return await _find(services, ticket.id, ticket.attempt_id)
