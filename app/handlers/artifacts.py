"""Reading artifacts back: what is recorded of one, and its body, never as good when it is not."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

import structlog

from app.domain.commands import FindArtifact
from app.domain.errors import ArtifactGone, ArtifactNotFound, DigestMismatch
from app.domain.lifecycle import ArtifactState
from app.domain.records import Artifact
from app.handlers.uploads import live_place
from app.objects.signing import Signed
from app.services import Services
from app.store import artifacts

_LOG = structlog.get_logger(__name__)
_CHECK_FIRST_BYTES = 1024 * 1024


async def get_artifact(services: Services, artifact_id: UUID) -> Artifact:
    """What is recorded of an artifact. Raises ArtifactNotFound."""
    found = await services.database.run(lambda conn: artifacts.find(conn, artifact_id))
    if found is None:
        raise ArtifactNotFound
    return found


async def readable_artifact(services: Services, artifact_id: UUID) -> Artifact:
    """An artifact whose body can be read now. Raises ArtifactNotFound or ArtifactGone."""
    artifact = await get_artifact(services, artifact_id)
    if artifact.state is not ArtifactState.READY:
        raise ArtifactGone
    head = await services.objects.head(artifact.key)
    if head is None:
        _LOG.error("artifact.object_missing", artifact_id=str(artifact.id))
        raise ArtifactGone("The store has lost the body; it was not removed by this service.")
    if head.byte_size != artifact.byte_size:
        _LOG.error("artifact.object_changed", artifact_id=str(artifact.id))
        raise DigestMismatch
    return artifact


async def read_range(
    services: Services, artifact: Artifact, first: int, last: int
) -> AsyncIterator[bytes]:
    """The bytes from `first` to `last` inclusive; a part of a body cannot be verified."""
    if last >= first:
        async for piece in services.objects.read(artifact.key, first, last):
            yield piece


async def read_whole(services: Services, artifact: Artifact) -> AsyncIterator[bytes]:
    """The whole body, verified while it is read.

    The last piece is given out only if the digest fits; otherwise DigestMismatch is raised, and
    whoever has been told the size knows that it is not whole.
    """
    sha256 = hashlib.sha256()
    held = b""
    if artifact.byte_size:
        async for piece in services.objects.read(artifact.key):
            sha256.update(piece)
            if held:
                yield held
            held = piece
    if f"sha256:{sha256.hexdigest()}" != artifact.digest:
        _LOG.error("artifact.digest_mismatch", artifact_id=str(artifact.id))
        raise DigestMismatch
    if held:
        yield held


async def read_verified(services: Services, artifact: Artifact) -> bytes | None:
    """A small body, verified as a whole; None for one that is too large to hold back.

    Raises DigestMismatch.
    """
    if artifact.byte_size > _CHECK_FIRST_BYTES:
        return None
    return b"".join([piece async for piece in read_whole(services, artifact)])


async def readable_for_lease(services: Services, command: FindArtifact) -> Artifact:
    """An artifact that a runner may read under its lease: one of the same operation.

    Raises as `readable_artifact` does, or what stands against the lease.
    """
    place = await live_place(services, command)
    artifact = await readable_artifact(services, command.artifact_id)
    if artifact.operation_id != place.operation_id:
        raise ArtifactNotFound
    return artifact


async def sign_download(services: Services, artifact: Artifact, disposition: str) -> Signed | None:
    """A signed address of the body, where the settings want downloads from the store itself."""
    if services.settings.objects.downloads != "redirect":
        return None
    return await services.objects.signer.sign_get(artifact.key, artifact.content_type, disposition)
